"""Conditions of hosts that bind a parameter by a name: each keeps its own value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import ColumnElement, and_, bindparam, exists, literal, select, text, union_all
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import aliased

from rowlock.rows.expressions import with_names_of_its_own

from ..host import Attachment, Volume

Condition = Callable[[str], Any]


def in_a_subquery(value: str) -> ColumnElement[bool]:
    other = aliased(Volume)
    return Volume.id.in_(select(other.id).where(other.status == bindparam("wanted", value)))


CONDITIONS: dict[str, Condition] = {
    "compared": lambda value: Volume.status == bindparam("wanted", value),
    "in": lambda value: Volume.status.in_(bindparam("wanted", [value], expanding=True)),
    "text": lambda value: and_(
        text("volumes.status = :wanted").bindparams(wanted=value), Volume.id > 0
    ),
    "exists": lambda value: exists().where(Attachment.status == bindparam("wanted", value)),
    "subquery": in_a_subquery,
    "asked for": lambda value: Volume.status == bindparam("wanted", callable_=lambda: value),
    "related": (
        lambda value: exists().where(
            Attachment.volume_id == Volume.id, Attachment.status == bindparam("wanted", value)
        )
    ),
}


def flat(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


@pytest.mark.parametrize("name", CONDITIONS)
@pytest.mark.parametrize(
    "dialect", [sqlite.dialect(paramstyle="named"), postgresql.dialect()], ids=["sqlite", "pg"]
)
def test_each_condition_keeps_its_value(name: str, dialect: Any) -> None:
    """Rows of another pipeline's state would be worked on, and those of its own never be found."""
    values = ["one", "two", "three"]
    conditions = [with_names_of_its_own(CONDITIONS[name](value)) for value in values]
    statement = union_all(*(select(Volume.id).where(condition) for condition in conditions))
    parameters = statement.compile(dialect=dialect).construct_params()
    assert [flat(value) for key, value in parameters.items() if key.startswith("wanted")] == values


def test_what_names_nothing_stays_as_it_is() -> None:
    """Each claim would copy its condition."""
    condition = (Volume.status == "submitted") & (literal(1) == 1)
    assert with_names_of_its_own(condition) is condition
