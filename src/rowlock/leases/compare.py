"""Compare: whether rows still have the values that were read of them, many in one statement.

The caller has locked the rows in the same transaction: what is so here is so when they are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Column, Integer, Select, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.leases.claim_request import Lease
from rowlock.leases.lease_dialect import LEASES
from rowlock.leases.renew import LEASES_PER_STATEMENT_MAX
from rowlock.rows.assignments import ColumnValues, Slot
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.model_check import with_zone

T = TypeVar("T")
AsRead: TypeAlias = tuple[Lease, ColumnValues]
"""A row's lease, and columns with the values that were read of it."""

COMPARED_MAX = 100
"""Most rows of one statement that no array can compare, in rows: each has a condition of its own
in it.
"""

_NUMBER: Slot = ("rowlock_number", Integer())


async def compare_many(
    connection: AsyncConnection, leased: LeasedTable, rows: Sequence[AsRead]
) -> dict[int, bool]:
    """Return by its number whether a row is unchanged, for those that the database compares with
    others in one round trip.
    """
    dialect = LEASES.of(connection)
    groups: dict[tuple[Column[Any], ...], list[int]] = {}
    for number, (_, values) in enumerate(rows):
        if values:
            groups.setdefault(tuple(values), []).append(number)
    compared: dict[int, bool] = {}
    for guarded, members in groups.items():
        slots = _slots_of(guarded)
        if len(members) == 1 or not (dialect.takes_arrays(slots) or dialect.reads_alike(slots)):
            continue
        compare = _compared_there if dialect.takes_arrays(slots) else _compared_here
        for some in in_pieces(members, LEASES_PER_STATEMENT_MAX):
            unchanged = await compare(connection, leased, {number: rows[number] for number in some})
            compared |= {number: number in unchanged for number in some}
    return compared


def _slots_of(columns: Sequence[Column[Any]]) -> list[Slot]:
    return [(f"rowlock_was_{place}", column.type) for place, column in enumerate(columns)]


async def _compared_there(
    connection: AsyncConnection, leased: LeasedTable, rows: Mapping[int, AsRead]
) -> frozenset[int]:
    """Return the numbers of those that are unchanged, of `rows` that are compared in the same
    columns.
    """
    dialect, guarded = LEASES.of(connection), tuple(next(iter(rows.values()))[1])
    slots = _slots_of(guarded)

    def build() -> Select[Any]:
        given = dialect.unnested(leased, [_NUMBER, *slots])
        held = (leased.key == given.c.key, leased.column("lock_token") == given.c.token)
        pairs = zip(guarded, slots, strict=True)
        still = (column.is_not_distinct_from(given.c[name]) for column, (name, _) in pairs)
        return select(given.c[_NUMBER[0]]).where(*held, *still)

    statement = leased.prepared((_compared_there, dialect, guarded), build)
    parameters = dialect.lease_parameters([lease for lease, _ in rows.values()])
    parameters[f"rowlock_held_{_NUMBER[0]}"] = list(rows)
    for column, (name, _) in zip(guarded, slots, strict=True):
        parameters[f"rowlock_held_{name}"] = [as_read[column] for _, as_read in rows.values()]
    return frozenset((await connection.scalars(statement, parameters)).all())


async def _compared_here(
    connection: AsyncConnection, leased: LeasedTable, rows: Mapping[int, AsRead]
) -> frozenset[int]:
    """As `_compared_there`, but read and compared in Python: of plain types what is read again
    is the same if it is unchanged.
    """
    dialect, guarded = LEASES.of(connection), tuple(next(iter(rows.values()))[1])
    statement = leased.prepared(
        (_compared_here, dialect, guarded),
        lambda: select(leased.key, *guarded).where(dialect.matches_leases(leased)),
    )
    found = await connection.execute(
        statement, dialect.lease_parameters([lease for lease, _ in rows.values()])
    )
    # Not by their tokens: related rows of one item have the same one.
    there = {key: values for key, *values in found}

    def is_same(lease: Lease, as_read: ColumnValues) -> bool:
        values = there.get(lease[0])
        return values is not None and list(map(with_zone, values, guarded)) == list(
            as_read.values()
        )

    return frozenset(number for number, (lease, as_read) in rows.items() if is_same(lease, as_read))


async def all_unchanged(
    connection: AsyncConnection, leased: LeasedTable, rows: Sequence[AsRead]
) -> bool:
    """Return whether every row is unchanged."""
    compared = await compare_many(connection, leased, rows)
    rest = [row for number, row in enumerate(rows) if row[1] and number not in compared]
    if not all(compared.values()):
        return False
    dialect = LEASES.of(connection)
    for some in in_pieces(rest, COMPARED_MAX):
        each = (
            and_(
                leased.key == key,
                *(dialect.is_unchanged(column, value) for column, value in values.items()),
            )
            for (key, _), values in some
        )
        unchanged = await connection.scalar(
            select(func.count()).select_from(leased.table).where(or_(*each))
        )
        if unchanged != len(some):
            return False
    return True


def in_pieces(members: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Give `members` in pieces of at most `size`."""
    return (members[start : start + size] for start in range(0, len(members), size))
