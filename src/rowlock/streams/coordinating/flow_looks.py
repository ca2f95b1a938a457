"""Looks at a flow: its row, its shards, the replicas, and how far its sources are.

Nothing is locked, and no row of a source is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import RowlockError
from rowlock.rows.database_time import database_instant
from rowlock.stream_errors import ShardsMissingError
from rowlock.streams.computing.buckets import BucketRange, is_part, merged
from rowlock.streams.coordinating.stalls import BusyCall, FlowLook, ShardLook, SourceLook
from rowlock.streams.cutting.flow_view import lease_holds
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.failures import StepFailures
from rowlock.streams.shards.layout import check_layout

LAST_STEPS = 64
"""In so many steps before the next one is looked for what took a shard how long."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of a flow.

    Attributes:
        look: of what it does.
        replicas: how many work on it.
    """

    look: FlowLook
    replicas: int


class FlowLooker:
    """Looks at one flow, again and again.

    Args:
        program: the flow.
        present_for: how long a replica counts as there after it was seen.
    """

    def __init__(self, program: FlowProgram, *, present_for: timedelta) -> None:
        self._program = program
        self._present_for = present_for
        self._watches = {name: source.watcher() for name, source in program.sources.items()}

    def __repr__(self) -> str:
        return f"<FlowLooker of {self._program.name}>"

    async def look(self, connection: AsyncConnection) -> Seen | None:
        """Look at the flow; None if it is not there; joins the caller's transaction."""
        flows = self._program.tables.flows
        names = ("state", "next_step", "upto", "frontier", "begins_after", "differs")
        columns = [flows.c[name] for name in names]
        own = select(*columns, database_instant().label("clock")).where(
            flows.c.id == self._program.id
        )
        row = (await connection.execute(own)).first()
        if row is None:
            return None
        now = row.clock
        replicas = await self._replicas(connection)
        rows = await self._shards(connection)
        holding = {row.replica for row in rows if row.is_held}
        since = now - self._present_for
        present = sum(one.seen_at > since or one.id in holding for one in replicas)
        look = FlowLook(
            row.state,
            row.next_step,
            _shard_looks(rows, replicas, now),
            [await self._source(connection, name, row.upto[name]) for name in self._watches],
            missing=self._missing(rows),
            recorded=row.frontier,
            begins_after=row.begins_after or {},
            differs=row.differs,
        )
        return Seen(look, present)

    def _missing(self, shards: Sequence[Any]) -> str | None:
        try:
            check_layout(self._program.name, shards)
        except ShardsMissingError as error:
            return error.message
        return None

    async def with_causes(self, connection: AsyncConnection, seen: FlowLook) -> FlowLook:
        """Add how long the last steps of shards took, and for whose messages others wait; joins the
        caller's transaction.
        """
        parts = self._program.tables.parts
        found = (
            select(parts.c.lo, parts.c.seconds)
            .where(parts.c.flow_id == self._program.id, parts.c.step >= seen.frontier - LAST_STEPS)
            .order_by(parts.c.step)
        )
        took = {row.lo: row.seconds for row in await connection.execute(found)}
        shards = [replace(one, seconds=took.get(one.range.lo)) for one in seen.shards]
        return replace(seen, shards=shards, unsent=await self._unsent(connection, seen))

    async def _unsent(
        self, connection: AsyncConnection, seen: FlowLook
    ) -> dict[str, list[BucketRange]]:
        """Return the shards without messages in the step of the frontier, by the stage to which
        others have sent. There is one such stage at most: to send to the next one, a shard needs
        all messages of this one. Where none has sent, messages may stay in memory.
        """
        own = self._program.tables.exchange.c
        of_step = (own.flow_id == self._program.id, own.step == seen.frontier)
        found = select(own.stage, own.lo, own.hi).where(*of_step).distinct()
        sent: dict[str, list[BucketRange]] = {}
        for stage, lo, hi in await connection.execute(found):
            sent.setdefault(stage, []).append(BucketRange(lo, hi))
        last = [shard.range for shard in seen.shards if shard.step == seen.frontier]
        unsent = {
            stage: [each for each in last if not _are_within(each, senders)]
            for stage, senders in sent.items()
        }
        return {stage: late for stage, late in unsent.items() if late}

    async def _replicas(self, connection: AsyncConnection) -> Sequence[Any]:
        """Return the rows of the replicas."""
        table = self._program.tables.replicas
        busy = [column for column in table.c if column.name.startswith("busy_")]
        found = select(table.c.id, table.c.name, table.c.seen_at, *busy).where(
            table.c.flow_id == self._program.id
        )
        return (await connection.execute(found)).all()

    async def _shards(self, connection: AsyncConnection) -> Sequence[Any]:
        """Return the rows of the shards."""
        c = self._program.tables.shards.c
        found = select(
            c.lo,
            c.hi,
            c.step,
            c.version,
            c.replica,
            c.failures,
            c.failed_step,
            c.last_error,
            c.parked_at,
            lease_holds(self._program.tables).label("is_held"),
        ).where(c.flow_id == self._program.id)
        return (await connection.execute(found.order_by(c.lo))).all()

    async def _source(self, connection: AsyncConnection, name: str, upto: int) -> SourceLook:
        try:
            seen = await self._watches[name].look(connection, recorded=upto)
        except RowlockError as error:
            return SourceLook(name, upto, upto, upto, error=error.message)
        return SourceLook(
            name, upto, seen.newest, seen.mark, seen.held_back_by, upstream=seen.upstream
        )


def _shard_looks(
    shards: Sequence[Any], replicas: Sequence[Any], now: datetime
) -> Sequence[ShardLook]:
    names = {row.id: row.name for row in replicas}
    busy = {(row.id, row.busy_lo): _call_of(row, now) for row in replicas if row.busy_since}
    return [
        ShardLook(
            BucketRange(row.lo, row.hi),
            row.step,
            bool(row.is_held),
            replica=names.get(row.replica, "a replica that is gone"),
            parked=None if row.parked_at is None else row.last_error or "no reason is stored",
            failures=StepFailures(row.failures, row.failed_step).at(row.step),
            error=row.last_error,
            version=row.version,
            busy=busy.get((row.replica, row.lo)),
        )
        for row in shards
        if is_part(row.lo, row.hi)
    ]


def _call_of(row: Any, now: datetime) -> BusyCall:
    return BusyCall(row.busy_stage, row.busy_key, (now - row.busy_since).total_seconds())


def _are_within(buckets: BucketRange, ranges: Sequence[BucketRange]) -> bool:
    return any(lo <= buckets.lo and buckets.hi <= hi for lo, hi in merged(ranges))
