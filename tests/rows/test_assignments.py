"""Assignments as data: the two rules, on both databases, and which maps share a statement."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import BigInteger, ColumnElement, bindparam, case, func, literal, select, update

from rowlock import database_now
from rowlock.rows import leased_table
from rowlock.rows.assignments import (
    ColumnValues,
    Shape,
    UnlessChanged,
    can_be_kept,
    set_clause,
    slots_of,
    split,
)
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from ..host import Base, Run

NOON = datetime(2031, 5, 17, 12, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
C = Run.__table__.c


class Unlike(ColumnElement[str]):
    """SQL of a host's own, of which SQLAlchemy cannot tell whether two are alike."""

    inherit_cache = False


def shape_of(values: ColumnValues) -> Shape:
    return split(values)[0]


def parameters_of(values: ColumnValues) -> dict[str, Any]:
    shape, parameters = split(values)
    return dict(zip((name for name, _ in slots_of(shape)), parameters, strict=True))


async def after(
    database: TemporaryDatabase, held: dict[str, Any], *values: ColumnValues
) -> list[dict[str, Any]]:
    """Return what rows that hold `held` are after one statement wrote `values`, one map for each
    of them.
    """
    await database.create_tables(Base.metadata)
    numbers = range(1, len(values) + 1)
    async with database.session_factory.begin() as session:
        session.add_all(Run(id=number, **held) for number in numbers)
    async with database.engine.begin() as connection:
        clause = set_clause(shape_of(values[0]))
        for number, one in zip(numbers, map(parameters_of, values), strict=True):
            await connection.execute(
                update(Run.__table__).where(C.id == number).values(clause), one
            )
        return [
            dict(row._mapping)
            for row in await connection.execute(select(Run.__table__).order_by(C.id))
        ]


@pytest.mark.parametrize(
    ("held", "as_read", "written"),
    [
        (NOON, NOON, NOON + SECOND),
        (NOON, NOON - SECOND, NOON),
        (NOON, None, NOON),
        (None, None, NOON + SECOND),
        (None, NOON, None),
    ],
)
async def test_unless_changed(
    database: TemporaryDatabase,
    held: datetime | None,
    as_read: datetime | None,
    written: datetime | None,
) -> None:
    """What a service wrote while the row was worked on would be overwritten, or nothing would
    ever be written over null.
    """
    values: ColumnValues = {C.parked_at: UnlessChanged(NOON + SECOND, as_read=as_read)}
    (row,) = await after(database, {"parked_at": held}, values)
    assert row["parked_at"] == written


def unless_parked(value: str) -> Any:
    return case((C.parked_at.is_(None), value), else_=C.last_error)


@pytest.mark.parametrize(("parked_at", "written"), [(None, "new"), (NOON, "old")])
async def test_unless_set(
    database: TemporaryDatabase, parked_at: datetime | None, written: str
) -> None:
    """What a person has said of a row would be overwritten by what came of its attempt."""
    held = {"parked_at": parked_at, "last_error": "old"}
    values: ColumnValues = {C.last_error: unless_parked("new")}
    (row,) = await after(database, held, values)
    assert (row["last_error"], can_be_kept(shape_of(values))) == (written, True)


async def test_many_maps_of_one_shape_in_one_statement(database: TemporaryDatabase) -> None:
    """One row would get another one's values."""
    one_more = C.attempts + 1
    maps: list[ColumnValues] = [
        {
            C.status: f"s{n}",
            C.result: {"n": n},
            C.last_processed_at: NOON + n * SECOND,
            C.parked_at: UnlessChanged(NOON + n * SECOND, as_read=None),
            C.attempts: one_more,
            C.last_error: None,
        }
        for n in range(3)
    ]
    assert len({shape_of(one) for one in maps}) == 1
    rows = await after(database, {"attempts": 4, "last_error": "old"}, *maps)
    assert [(row["status"], row["result"], row["last_processed_at"]) for row in rows] == [
        (f"s{n}", {"n": n}, NOON + n * SECOND) for n in range(3)
    ]
    assert [(row["parked_at"], row["attempts"], row["last_error"]) for row in rows] == [
        (NOON + n * SECOND, 5, None) for n in range(3)
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({C.status: "a"}, {C.status: "b"}),
        ({C.status: "a"}, {C.status: None}),
        (
            {C.due_at: UnlessChanged(NOON, as_read=None)},
            {C.due_at: UnlessChanged(NOON, as_read=NOON)},
        ),
        ({C.last_error: unless_parked("a")}, {C.last_error: unless_parked("b")}),
        ({C.attempts: C.attempts}, {C.attempts: C.attempts}),
        ({C.attempts: C.attempts + 1}, {C.attempts: C.attempts + 2}),
        ({C.status: func.concat(C.status, "a", 1)}, {C.status: func.concat(C.status, "b", 2)}),
    ],
)
def test_maps_that_one_statement_can_write(one: ColumnValues, other: ColumnValues) -> None:
    """Outcomes of one kind would take a round trip each."""
    assert shape_of(one) == shape_of(other)
    assert hash(shape_of(one)) == hash(shape_of(other))
    written, others = (
        list(map(str, set_clause(shape_of(values)).values())) for values in (one, other)
    )
    assert written == others


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({C.status: "a"}, {C.last_error: "a"}),
        ({C.status: "a"}, {C.status: "a", C.last_error: "b"}),
        ({C.due_at: NOON}, {C.due_at: UnlessChanged(NOON, as_read=None)}),
        ({C.due_at: NOON}, {C.due_at: database_now()}),
        ({C.attempts: C.attempts + 1}, {C.attempts: C.attempts - 1}),
        ({C.attempts: C.attempts + 1}, {C.attempts: C.attempts + literal(1, BigInteger)}),
        ({C.status: C.status.in_(["a"])}, {C.status: C.status.in_(["b"])}),
        ({C.status: func.lower("A")}, {C.status: func.upper("a")}),
        ({C.status: Run.last_error}, {C.status: "a"}),
    ],
)
def test_maps_that_need_statements_of_their_own(one: ColumnValues, other: ColumnValues) -> None:
    """A row would be written by another outcome's SQL."""
    assert len({shape_of(one), shape_of(other)}) == 2


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ({C.status: "a", C.due_at: NOON, C.parked_at: UnlessChanged(NOON, as_read=None)}, True),
        ({C.status: "a", C.updated_at: C.updated_at}, True),
        ({C.status: "a", C.attempts: C.attempts + 1}, True),
        ({C.status: func.upper(C.status)}, True),
        ({C.status: Unlike()}, False),
        ({C.attempts: C.attempts + bindparam("asked", callable_=lambda: 1)}, False),
    ],
)
def test_statements_of_sql_that_is_like_no_other_are_not_remembered(
    values: ColumnValues, *, kept: bool
) -> None:
    """Each outcome of such a pipeline would take one of the places, for a statement that is
    never asked for again.
    """
    assert can_be_kept(shape_of(values)) == kept


def test_a_table_remembers_so_many_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outcomes of ever new shapes would fill the memory."""
    monkeypatch.setattr(leased_table, "PREPARED_MAX", 2)
    leased, built = LeasedTable.of(Run), list[int]()
    for key in (1, 2, 3, 1, 2, 3):
        leased.prepared(key, lambda key=key: built.append(key) or key)
    assert built == [1, 2, 3, 3]


async def test_sql_of_the_host_is_written_as_it_is(database: TemporaryDatabase) -> None:
    """A host's expression would be bound as a value."""
    values: ColumnValues = {
        C.status: func.upper(C.status),
        C.attempts: Run.id + 41,
        C.last_error: Run.status,
    }
    (row,) = await after(database, {"status": "done"}, values)
    assert (row["status"], row["attempts"], row["last_error"]) == ("DONE", 42, "done")
    assert parameters_of(values) == {"rowlock_in_1_0": 41}
