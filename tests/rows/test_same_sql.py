"""When two conditions say the same, and when that cannot be told."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import ColumnElement, and_, bindparam, exists, func, literal, not_, or_, select, text, true
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Boolean

from rowlock.rows.database_time import database_now
from rowlock.rows.same_sql import is_same_sql

from ..host import Attachment, Run, Volume


class Sharded(FunctionElement[bool]):
    """A host's own element, which keeps something that SQLAlchemy does not look at."""

    type = Boolean()
    inherit_cache = False

    def __init__(self, shard: int) -> None:
        """Keep it."""
        super().__init__()
        self.shard = shard


class Fussy:
    """A value that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


CONDITIONS = (
    lambda: Volume.status == "submitted",
    lambda: Volume.status == "active",
    lambda: Volume.status != "submitted",
    lambda: Volume.disk_id == "submitted",
    lambda: Volume.status.in_(["a", "b"]),
    lambda: Volume.status.in_(["a", "c"]),
    lambda: Volume.status.in_(["a", "b", "c"]),
    lambda: and_(Volume.size_gb > 1, Volume.disk_id.is_(None)),
    lambda: or_(Volume.size_gb > 1, Volume.disk_id.is_(None)),
    lambda: and_(Volume.size_gb > 2, Volume.disk_id.is_(None)),
    lambda: not_(Volume.size_gb > 1),
    lambda: Volume.active_at < database_now(),
    lambda: func.lower(Volume.status) == "x",
    lambda: func.upper(Volume.status) == "x",
    lambda: text("status = 'a'").self_group(),
    lambda: text("status = 'b'").self_group(),
    lambda: exists().where(Attachment.volume_id == Volume.id, Attachment.status == "a"),
    lambda: exists().where(Attachment.volume_id == Volume.id, Attachment.status == "b"),
    lambda: Volume.id.in_(select(Attachment.volume_id).where(Attachment.status == "a")),
    lambda: Run.status == "submitted",
    true,
)


@pytest.mark.parametrize("number", range(len(CONDITIONS)))
def test_a_condition_is_the_same_as_itself_alone(number: int) -> None:
    """A pipeline would go on claiming by a condition that its host has changed."""
    condition: Any = CONDITIONS[number]()
    same = [other for other, make in enumerate(CONDITIONS) if is_same_sql(condition, make())]  # type: ignore[no-untyped-call]
    assert same == [number]


def test_nothing_is_the_same_as_nothing() -> None:
    """Pipelines that relate their rows by nothing would have their statement made anew each time."""
    assert is_same_sql(None, None)
    assert not is_same_sql(None, true())
    assert not is_same_sql(true(), None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sharded(1),
        lambda: and_(Volume.size_gb > 1, Sharded(1)),
        lambda: Volume.size_gb > bindparam("size", callable_=lambda: 1),
        lambda: Volume.size_gb == literal(Fussy(), Volume.size_gb.type),
    ],
    ids=["element of the host's", "within others", "value asked for late", "value that cannot be compared"],
)
def test_in_doubt_it_is_another_one(make: Any) -> None:
    """What the host's condition keeps outside SQLAlchemy's sight would be frozen as it was the first time."""
    assert not is_same_sql(make(), make())


def test_one_object_is_the_same() -> None:
    """A host that keeps its condition would gain nothing by it."""
    condition: ColumnElement[bool] = Sharded(1)
    assert is_same_sql(condition, condition)
