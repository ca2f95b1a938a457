"""Tests of the columns that a host's model makes: values as they were read, sizes, expressions."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Uuid,
)
from sqlalchemy import inspect as sqlalchemy_inspect
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    mapped_column,
)

from rowlock import LockColumns, ScheduleColumns, UtcDateTime
from rowlock.errors import OutcomeError
from rowlock.rows.leased_table import LeasedTable

from .test_leased_table import model_of


class OnceBase(DeclarativeBase):
    """Keeps the model below out of the host's tables."""


class Once(LockColumns, ScheduleColumns, OnceBase):
    """A model with an attribute that is called otherwise in the database, and one that is
    deferred.
    """

    __tablename__ = "once"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str | None] = mapped_column("status")
    notes: Mapped[str | None] = mapped_column(deferred=True)
    seen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


def loaded(**values: object) -> Once:
    row = Once(**values)
    sqlalchemy_inspect(row)._commit_all(row.__dict__)
    return row


def test_a_value_as_it_was_read() -> None:
    """A host that changes its detached row would change what its outcome is compared with."""
    leased, row = LeasedTable.of(Once), loaded(id=1, state="a")
    column = leased.columns_by_name["state"]
    assert leased.value_as_read(row, column) == "a"
    row.state = "b"
    row.state = "c"
    assert leased.value_as_read(row, column) == "a"


def test_a_value_that_was_not_loaded() -> None:
    """An outcome would be compared with nothing, and always be found unchanged."""
    leased, row = LeasedTable.of(Once), loaded(id=1)
    with pytest.raises(
        OutcomeError, match=r"Once\.notes was not loaded; undefer it in options\(\)"
    ) as caught:
        leased.value_as_read(row, leased.columns_by_name["notes"])
    assert caught.value.column == "notes"


def test_a_value_that_was_not_loaded_and_is_set() -> None:
    """What the host wrote into its copy would pass for what the database held."""
    leased, row = LeasedTable.of(Once), loaded(id=1)
    row.notes = "mine"
    with pytest.raises(OutcomeError, match="was not loaded"):
        leased.value_as_read(row, leased.columns_by_name["notes"])


@pytest.mark.parametrize(("column_type", "kind"), [(Uuid(), uuid.UUID), (Uuid(as_uuid=False), str)])
def test_tokens_are_of_the_columns_kind_and_never_repeat(column_type: Any, kind: type) -> None:
    """The token in the ticket would never be equal to the one in the row; or two claims would
    share one.
    """
    leased = LeasedTable.of(model_of(lock_token=Column(column_type)))
    tokens = [leased.new_token() for _ in range(100)]
    assert {type(token) for token in tokens} == {kind}
    assert len(set(tokens)) == 100
