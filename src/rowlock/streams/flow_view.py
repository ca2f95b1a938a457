"""How far all shards of a flow are, which leases hold, and the check that no shard is missing.

The frontier and the proof of it are one statement. Where the row of a shard is missing, the lowest
step of the others says nothing about its buckets, so the frontier is null, and every reader stops
with `ShardsMissingError`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ScalarSelect, and_, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.spi import database_instant
from rowlock.streams.computing.hashing import BUCKETS
from rowlock.streams.shards.layout import check_layout
from rowlock.streams.tables import StreamTables, key_of

BEFORE_FIRST = -1
"""The number of the row among the steps that says where the first step begins."""


def frontier_of(tables: StreamTables, flow_id: Any, *, column: str = "step") -> ScalarSelect[Any]:
    """Return the query for the lowest step, or `column`, of a flow; null if shards are missing."""
    c = tables.shards.c
    begins_at = func.coalesce(func.lag(c.hi).over(order_by=c.lo), 0)
    columns = (c.lo, c.hi, c[column].label("at"), begins_at.label("begins_at"))
    own = select(*columns).where(c.flow_id == flow_id).subquery().c
    is_gap = case((own.lo != own.begins_at, 1), else_=0)
    covers = and_(func.sum(is_gap) == 0, func.sum(own.hi - own.lo) == BUCKETS)
    return select(case((covers, func.min(own.at)))).scalar_subquery()


async def read_frontier(connection: AsyncConnection, tables: StreamTables, flow: str) -> int | None:
    """Return the first step that is not done by all shards, None if there is no such flow."""
    found: int | None = await connection.scalar(select(frontier_of(tables, key_of("flow", flow))))
    if found is None:
        await check_shards(connection, tables, flow)
    return found


async def check_shards(connection: AsyncConnection, tables: StreamTables, flow: str) -> None:
    """Refuse to read a flow that lacks shards, unless it is new."""
    flow_id, flows, shards = key_of("flow", flow), tables.flows.c, tables.shards.c
    if await connection.scalar(select(flows.id).where(flows.id == flow_id)) is not None:
        found = select(shards.lo, shards.hi).where(shards.flow_id == flow_id)
        check_layout(flow, await connection.execute(found))


def lease_holds(tables: StreamTables) -> Any:
    c = tables.shards.c
    return func.coalesce(
        and_(c.lock_token.is_not(None), c.lock_expires_at > database_instant()), False
    )
