"""Reads how far a flow is: some statements, of which each has a bound, and none locks anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import and_, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.rows.database_time import database_instant
from rowlock.streams.coordinating.flow_looks import FlowLooker
from rowlock.streams.coordinating.stalls import FlowLook, ShardLook, SourceLook
from rowlock.streams.outputs.cursors import DISCARDED
from rowlock.streams.program import FlowProgram
from rowlock.streams.queries.absence import absence_of
from rowlock.streams.queries.status import (
    ConsumerStatus,
    ReplicaStatus,
    ShardStatus,
    SourceStatus,
    StreamStatus,
    cut_text,
    flow_text,
    shard_text,
    source_text,
)
from rowlock.streams.shards.replicas import REPLICAS_MAX

LAG_ROWS_MAX: Final = 10_000
"""Most rows of a source that are counted one by one."""
CONSUMERS_MAX: Final = 1000
"""Most consumers that are shown."""
PRESENT_FOR: Final = timedelta(minutes=1)


async def look_at(connection: AsyncConnection, program: FlowProgram) -> FlowLook | None:
    """Return what is seen of a flow at this moment; None if it has no row yet; joins the caller's
    transaction.
    """
    looker = FlowLooker(program, present_for=PRESENT_FOR)
    seen = await looker.look(connection)
    if seen is None:
        return None
    is_behind = seen.look.frontier < seen.look.next_step
    return await looker.with_causes(connection, seen.look) if is_behind else seen.look


async def status_of(connection: AsyncConnection, program: FlowProgram) -> StreamStatus:
    """Return how far a flow is, and what it waits for; joins the caller's transaction."""
    look = await look_at(connection, program)
    if look is None:
        absence = await absence_of(connection, program)
        return StreamStatus(program.name, absence.state, 0, 0, 0, 0.0, absence.text)
    now = await connection.scalar(select(database_instant()))
    assert isinstance(now, datetime)
    cuts = await _cuts(connection, program, look)
    upto = cuts[look.frontier - 1].upto if look.frontier - 1 in cuts else {}
    sources = [
        await _source(connection, program, look, source=one, upto=upto) for one in look.sources
    ]
    lag_rows = sum(source.lag_rows for source in sources)
    is_done = look.frontier >= look.next_step and cut_text(look) is None
    return StreamStatus(
        program.name,
        look.state,
        look.next_step,
        look.frontier,
        lag_rows,
        0.0 if is_done and not lag_rows else _lag_s(look, cuts, now),
        flow_text(look),
        [_shard(look, one) for one in look.shards],
        sources,
        await _consumers(connection, program, frontier=look.frontier, now=now),
        await _replicas(connection, program, now),
        look.differs,
    )


async def _cuts(
    connection: AsyncConnection, program: FlowProgram, look: FlowLook
) -> Mapping[int, Any]:
    c = program.tables.steps.c
    wanted = {look.frontier - 1, look.frontier, look.next_step - 1}
    found = select(c.step, c.upto, c.now).where(c.flow_id == program.id, c.step.in_(wanted))
    return {row.step: row for row in await connection.execute(found)}


def _lag_s(look: FlowLook, cuts: Mapping[int, Any], now: datetime) -> float:
    if look.frontier < look.next_step:
        since = cuts.get(look.frontier)
        return 0.0 if since is None else max(0.0, (now - since.now).total_seconds())
    ages = [
        one.age_s for source in look.sources for one in source.held_back_by if one.age_s is not None
    ]
    last = cuts.get(look.next_step - 1)
    if ages or last is None:
        return max(ages, default=0.0)
    return max(0.0, float((now - last.now).total_seconds()))


def _shard(look: FlowLook, shard: ShardLook) -> ShardStatus:
    lag = max(0, look.next_step - shard.step)
    return ShardStatus(
        shard.range.lo,
        shard.range.hi,
        shard.replica if shard.is_held else None,
        shard.step,
        lag,
        shard.parked is not None,
        shard.error if lag or shard.is_to_replay else None,
        shard_text(look, shard),
    )


async def _source(
    connection: AsyncConnection,
    program: FlowProgram,
    look: FlowLook,
    *,
    source: SourceLook,
    upto: Mapping[str, int],
) -> SourceStatus:
    done = upto.get(source.name, 0)
    ahead: Sequence[int] = ()
    if source.newest > done:
        found = await program.sources[source.name].ahead(
            connection, after=done, upto=source.newest, limit=LAG_ROWS_MAX
        )
        ahead = found.positions
    more = source.newest - ahead[-1] if len(ahead) == LAG_ROWS_MAX else 0
    return SourceStatus(
        source.name,
        done,
        source.upto,
        max(source.mark, source.upto),
        source.newest,
        len(ahead) + more,
        source.held_back_by,
        source_text(look, source),
        look.begins_after.get(source.name, 0),
    )


async def _consumers(
    connection: AsyncConnection, program: FlowProgram, *, frontier: int, now: datetime
) -> list[ConsumerStatus]:
    c, rows = program.tables.cursors.c, program.tables.outputs.c
    unread = select(func.min(rows.step)).where(
        rows.flow_id == c.flow_id,
        rows.output == c.output,
        rows.step > c.step,
        rows.step < frontier,
    )
    found = (
        select(c.output, c.consumer, c.step, c.at, unread.scalar_subquery().label("unread"))
        .where(c.flow_id == program.id, c.consumer != DISCARDED)
        .order_by(c.output, c.consumer)
        .limit(CONSUMERS_MAX)
    )
    return [
        ConsumerStatus(
            row.output,
            row.consumer,
            row.step,
            0 if row.unread is None else frontier - row.unread,
            (now - row.at).total_seconds(),
        )
        for row in await connection.execute(found)
    ]


async def _replicas(
    connection: AsyncConnection, program: FlowProgram, now: datetime
) -> list[ReplicaStatus]:
    c = program.tables.replicas.c
    found = (
        select(c.name, c.code_version, c.shards, c.seen_at)
        .where(and_(c.flow_id == program.id))
        .order_by(c.name)
        .limit(REPLICAS_MAX)
    )
    return [
        ReplicaStatus(row.name, row.code_version, row.shards, (now - row.seen_at).total_seconds())
        for row in await connection.execute(found)
    ]
