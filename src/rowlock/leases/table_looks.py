"""A leased table as it is in the database: whether an index serves the claim, whether one is
written by every heartbeat, and whether the times of a lease have a zone.

Whether an index can serve is asked of the database's own planner, for a statement like the claim.
Only the planner knows which conditions imply which.

The trap: a table that was not migrated may have times without a zone, which PostgreSQL compares by
the zone of the session. Rows that were written in UTC would wait for hours, or be taken from their
holders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, inspect, literal_column, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.dialects.contract import LEASES, ROWS
from rowlock.errors import ModelError
from rowlock.leases.claim_request import ClaimRequest, spellings_of
from rowlock.rows.eligibility import order_column
from rowlock.rows.leased_table import CLEARED_COLUMNS, LeasedTable, keeps_time

_WITHOUT_ZONE = "timestamp without time zone"


async def check_table(connection: AsyncConnection, leased: LeasedTable) -> None:
    """Check the times that rowlock keeps in the table, and note whether its rows have places; joins
    the transaction. `ModelError` for one without a zone.
    """
    times = [leased.column(name) for name in leased.lease_columns]
    times = [column for column in times if keeps_time(column.type)]
    types = select(*map(ROWS.of(connection).type_of, times))
    naive = [
        column.name
        for column, type_ in zip(times, (await connection.execute(types)).one(), strict=True)
        if type_ == _WITHOUT_ZONE
    ]
    if naive:
        raise ModelError(
            f"{leased.table.fullname} has times without a zone in the database:"
            f" {', '.join(naive)}; make each a TIMESTAMP WITH TIME ZONE (python -m rowlock check"
            " prints the migration)",
            model=leased.name,
            column=naive[0],
        )
    leased.has_places = await LEASES.of(connection).has_places(connection, leased)


@dataclass(frozen=True, slots=True)
class IndexLook:
    """What was seen.

    Attributes:
        is_served: whether an index can serve the claim.
        candidates: indexes that begin with the time by which rows are claimed.
        with_lock_columns: for each index that mentions a lock column, which one.
    """

    is_served: bool
    candidates: tuple[str, ...]
    with_lock_columns: Mapping[str, str]


async def look_at_indexes(connection: AsyncConnection, request: ClaimRequest) -> IndexLook:
    """Look at the indexes of the claimed table; joins a transaction that writes nothing after."""
    leased = request.leased
    table = leased.table
    indexes = await connection.run_sync(
        lambda sync: inspect(sync).get_indexes(table.name, schema=table.schema)
    )
    first = leased.column(order_column(leased).key).name
    candidates = tuple(
        str(index["name"]) for index in indexes if index["column_names"][:1] == [first]
    )
    query: Select[Any] = (
        select(literal_column("1"))
        .select_from(leased.table)
        .where(request.eligible)
        .order_by(*request.oldest_first)
        .limit(1)
    )
    is_served = await _is_served(connection, leased, query, names=candidates)
    return IndexLook(is_served, candidates, _with_lock_columns(leased, indexes))


async def _is_served(
    connection: AsyncConnection, leased: LeasedTable, query: Select[Any], *, names: Iterable[str]
) -> bool:
    serves, refusal = LEASES.of(connection).is_served_by, None
    for spelt in spellings_of(query, connection.dialect):
        try:
            async with connection.begin_nested():
                for name in names:
                    if await serves(connection, leased, query=spelt, index=name):
                        return True
                return False
        except DBAPIError as error:
            refusal = error
    assert refusal is not None
    raise refusal


def _with_lock_columns(leased: LeasedTable, indexes: Iterable[Any]) -> dict[str, str]:
    columns = [leased.column(name).name for name in CLEARED_COLUMNS]
    found = {}
    for index in indexes:
        parts = (
            index["column_names"],
            index.get("expressions", ()),
            index.get("dialect_options", {}).values(),
        )
        text = " ".join(str(part) for some in parts for part in some)
        named = [column for column in columns if re.search(rf"\b{re.escape(column)}\b", text)]
        found.update({str(index["name"]): column for column in named[:1]})
    return found
