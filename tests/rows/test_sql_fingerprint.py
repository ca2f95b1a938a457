"""When two conditions say the same, and when that cannot be told."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    ColumnElement,
    String,
    and_,
    bindparam,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    text,
    true,
)
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import Boolean, TypeDecorator

from rowlock import database_now
from rowlock.rows.assignments import formula_of
from rowlock.rows.expressions import fingerprint_of, is_same

from ..host import Attachment, Run, Volume


class Sharded(FunctionElement[bool]):
    """A host's own element, which keeps something that SQLAlchemy does not look at."""

    type = Boolean()
    inherit_cache = False

    def __init__(self, shard: int) -> None:
        super().__init__()
        self.shard = shard


class Metres(TypeDecorator[str]):
    impl = String
    cache_ok = True


class Feet(Metres):
    """Another one."""

    cache_ok = True


class Fussy:
    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def says_the_same(one: ColumnElement[bool], other: ColumnElement[bool]) -> bool:
    return is_same([fingerprint_of(one)], [fingerprint_of(other)])


OF_STATUS = select(Attachment.volume_id).where(Attachment.status == bindparam("status", "z"))
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
    lambda: Volume.size_gb.between(1, 10),
    lambda: Volume.size_gb.between(10, 1),
    lambda: Volume.size_gb == 1,
    lambda: Volume.size_gb == literal(True, Volume.size_gb.type),
    lambda: Volume.status == literal("1", Metres()),
    lambda: Volume.status == literal("1", Feet()),
    lambda: Run.result == literal({"a": 1}, JSON()),
    lambda: Run.result == literal({"a": True}, JSON()),
    true,
)


@pytest.mark.parametrize("number", range(len(CONDITIONS)))
def test_a_condition_is_the_same_as_itself_alone(number: int) -> None:
    """A pipeline would go on claiming by a condition that its host has changed."""
    condition: Any = CONDITIONS[number]()
    same = [other for other, make in enumerate(CONDITIONS) if says_the_same(condition, make())]  # type: ignore[no-untyped-call]
    assert same == [number]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sharded(1),
        lambda: Volume.size_gb > bindparam("size", callable_=lambda: 1),
        lambda: Volume.size_gb == literal(Fussy(), Volume.size_gb.type),
    ],
    ids=["cannot be told", "asked for late", "cannot be compared"],
)
def test_in_doubt_it_is_another_one(make: Any) -> None:
    """What the host's condition keeps outside SQLAlchemy's sight would be frozen as it was the
    first time.
    """
    assert not says_the_same(make(), make())


def test_what_params_of_a_subquery_set_counts() -> None:
    """A pipeline would claim, or write, by what another call of `params()` has set."""
    one, other = (Volume.id.in_(OF_STATUS.params(status=status)) for status in "ab")
    assert not says_the_same(one, other)
    assert formula_of(one) is None or formula_of(one) != formula_of(other)


def test_more_or_fewer_conditions_are_others() -> None:
    """A pipeline that was added, or its lock, would go unnoticed."""
    said = fingerprint_of(true())
    assert is_same([said, said], [said, said])
    assert not is_same([said], [said, said])
    assert not is_same([said, said], [said])
