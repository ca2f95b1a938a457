"""Compare: whether rows still have the values that were read of them, many in one statement.

The caller has locked the rows in the same transaction: what is so here is so when they are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Column, Integer, Select, and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.leases.dialects import dialect_of
from rowlock.leases.dialects.claims import Lease
from rowlock.leases.renew import LEASES_PER_STATEMENT_MAX
from rowlock.rows.assignments import ColumnValues, Slot
from rowlock.rows.leased_table import LeasedTable

T = TypeVar("T")
AsRead: TypeAlias = tuple[Lease, ColumnValues]
"""A row's lease, and columns with the values that were read of it."""

COMPARED_MAX = 100
"""Most rows of one statement that no array can compare, in rows: each has a condition of its own in it."""

_NUMBER: Slot = ("rowlock_number", Integer())


async def compare_by_arrays(
    connection: AsyncConnection, leased: LeasedTable[Any], rows: Sequence[AsRead]
) -> dict[int, bool]:
    """Return by its number whether a row is unchanged, for those that the database compares with others in one round trip."""
    dialect = dialect_of(connection)
    groups: dict[tuple[Column[Any], ...], list[int]] = {}
    for number, (_, values) in enumerate(rows):
        if values:
            groups.setdefault(tuple(values), []).append(number)
    compared: dict[int, bool] = {}
    for guarded, members in groups.items():
        names = {f"rowlock_was_{place}": column for place, column in enumerate(guarded)}
        slots = [(name, column.type) for name, column in names.items()]
        if len(members) == 1 or not dialect.takes_arrays(slots):
            continue

        def build(names: Mapping[str, Column[Any]] = names, slots: Sequence[Slot] = slots) -> Select[Any]:
            given = dialect.side_by_side(leased, [_NUMBER, *slots])
            held = (leased.key == given.c.key, leased.column("lock_token") == given.c.token)
            still = (column.is_not_distinct_from(given.c[name]) for name, column in names.items())
            return select(given.c[_NUMBER[0]]).where(*held, *still)

        statement = leased.prepared((compare_by_arrays, dialect, guarded), build)
        for some in in_pieces(members, LEASES_PER_STATEMENT_MAX):
            parameters = dialect.tokens_given([rows[number][0] for number in some])
            parameters[f"rowlock_held_{_NUMBER[0]}"] = list(some)
            for name, column in names.items():
                parameters[f"rowlock_held_{name}"] = [rows[number][1][column] for number in some]
            unchanged = frozenset((await connection.scalars(statement, parameters)).all())
            compared |= {number: number in unchanged for number in some}
    return compared


async def all_unchanged(connection: AsyncConnection, leased: LeasedTable[Any], rows: Sequence[AsRead]) -> bool:
    """Return whether every row is unchanged."""
    compared = await compare_by_arrays(connection, leased, rows)
    rest = [row for number, row in enumerate(rows) if row[1] and number not in compared]
    if not all(compared.values()):
        return False
    dialect = dialect_of(connection)
    for some in in_pieces(rest, COMPARED_MAX):
        each = (
            and_(leased.key == key, *(dialect.is_still(column, value) for column, value in values.items()))
            for (key, _), values in some
        )
        unchanged = await connection.scalar(select(func.count()).select_from(leased.table).where(or_(*each)))
        if unchanged != len(some):
            return False
    return True


def in_pieces(members: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Give `members` in pieces of at most `size`."""
    return (members[start : start + size] for start in range(0, len(members), size))
