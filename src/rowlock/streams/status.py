"""How far a flow is, and what it waits for: values, the words for them, and the statements that
read them, of which each has a bound, and none locks anything or reads a row of a source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import RowlockError
from rowlock.spi import database_instant
from rowlock.stream_errors import ShardsMissingError
from rowlock.streams.computing.hashing import BucketRange, is_part, merged
from rowlock.streams.cursors import DISCARDED
from rowlock.streams.flow_row import absence_of
from rowlock.streams.flow_view import lease_holds
from rowlock.streams.inputs.candidates import OpenWriter
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.layout import check_layout
from rowlock.streams.shards.replicas import REPLICAS_MAX, StepFailures
from rowlock.streams.stalls import (
    BusyCall,
    FlowLook,
    ShardLook,
    SourceLook,
    parked_of,
    stall_of_cuts,
    stall_of_steps,
)

NOTHING = "nothing"
"""What a flow waits for that has done all rows."""


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """How far a shard is.

    Attributes:
        lo: its first bucket.
        hi: the bucket behind its last one.
        replica: the name of the replica that holds it; None if none does.
        step: what it does next.
        lag: how many steps are cut that it has not done.
        is_parked: it has failed too often at a step, or repeated one with another result, and
            waits for `StreamFlow.unpark`.
        error: of its last failure at `step`, or at a step that it repeats; None if there was none.
        text: what it waits for; None if it has done all that is cut.
    """

    lo: int
    hi: int
    replica: str | None
    step: int
    lag: int
    is_parked: bool
    error: str | None
    text: str | None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How far a flow is with one of its sources.

    Attributes:
        name: within the flow.
        done: the position up to which all shards have done it.
        cut: the position up to which it is cut into steps.
        mark: its high-water mark, as far as one look tells: no row can appear at or below this
            position any more.
        newest: the last position that is visible.
        lag_rows: how many rows are visible and not done. Behind the first `LAG_ROWS_MAX` of them
            positions are counted, of which some may have no row.
        held_back_by: the transactions that may still add rows below `newest`, the one that has been
            open for longest first.
        text: why its rows are not cut; None if they are.
        begins_after: the position behind which the flow began: there was nothing before it, or it
            was deleted, or the flow began with what came next (``start="now"``).
    """

    name: str
    done: int
    cut: int
    mark: int
    newest: int
    lag_rows: int
    held_back_by: tuple[OpenWriter, ...]
    text: str | None
    begins_after: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """How far a consumer of results is.

    Attributes:
        output: what it reads.
        consumer: its name.
        step: the last one that it has acknowledged; -1 if it has only begun to read.
        lag: how many steps have been done since the first one whose results it has not
            acknowledged, that one included; 0 if there is none.
        at: when it acknowledged, or began, in seconds before now.
    """

    output: str
    consumer: str
    step: int
    lag: int
    at: float


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """A replica that works on a flow.

    Attributes:
        name: of its machine and process.
        code_version: of its flow, as the host says it.
        shards: how many it holds, as it said last.
        seen: when it said so, in seconds before now.
    """

    name: str
    code_version: str
    shards: int
    seen: float


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """How far a flow is, and what it waits for.

    Attributes:
        flow: its name.
        state: ``running``, ``paused``, ``stopped``; ``new`` as long as it was never started;
            ``lost`` if its row was deleted, and others of it are there.
        next_step: the first step that is not cut.
        frontier: the first step that is not done by all shards; where shards are missing, as it
            was known last.
        lag_rows: how many rows of all sources are visible and not done.
        lag_s: for how long the oldest of them has waited, in seconds: since its step was cut. For
            rows that are not cut, which have no time of their own: since the oldest transaction
            began that holds them back, or else since the last cut, which may be too much.
        text: what it waits for, or which shards are missing; `NOTHING` if all rows are done, and
            no shard is parked.
        shards: in the order of their buckets.
        sources: in the order of their declaration.
        consumers: that have a name, by output and name.
        replicas: that were seen, by name.
        differs: which of the steps that were verified has other events than it was done with; None
            if none has. The coordinator verifies the last ones every ten minutes.
    """

    flow: str
    state: str
    next_step: int
    frontier: int
    lag_rows: int
    lag_s: float
    text: str
    shards: Sequence[ShardStatus] = ()
    sources: Sequence[SourceStatus] = ()
    consumers: Sequence[ConsumerStatus] = ()
    replicas: Sequence[ReplicaStatus] = ()
    differs: str | None = None


def flow_text(look: FlowLook) -> str:
    if look.missing is not None:
        return look.missing
    if look.frontier < look.next_step:
        return stall_of_steps(look).text
    waits = cut_text(look)
    if waits is not None:
        return waits
    # Nothing is lost by it yet, but it would not be known before the next row comes.
    parked = parked_of(look.shards)
    return NOTHING if parked is None else parked.text


def cut_text(look: FlowLook) -> str | None:
    """Return why rows that are visible are not cut; None: there are none."""
    if all(source.upto >= source.newest and source.error is None for source in look.sources):
        return None
    if look.state != "running":
        return f"the flow is {look.state}"
    stall = stall_of_cuts(look, look)
    return None if stall is None else stall.text


def source_text(look: FlowLook, source: SourceLook) -> str | None:
    """Return why rows of one source are not cut; None: they are."""
    return cut_text(replace(look, sources=[source]))


def shard_text(look: FlowLook, shard: ShardLook) -> str | None:
    """Return what a shard waits for; None: it has done all that is cut."""
    if parked := parked_of([shard]):
        return parked.text
    if shard.step >= look.next_step:
        return None
    awaited = {each for ranges in look.unsent.values() for each in ranges}
    if awaited and shard.step == look.frontier and shard.range not in awaited:
        return flow_text(look)
    return stall_of_steps(replace(look, shards=[shard], unsent={}, missing=None)).text


def why_not_done(look: FlowLook, positions: Mapping[str, int]) -> str:
    """Return why rows at `positions`, by source, are not done."""
    for source in look.sources:
        position = positions.get(source.name, 0)
        if source.upto >= position:
            continue
        is_free = not source.held_back_by and source.upstream is None
        if source.error is None and is_free and source.newest < position:
            return (
                f"no row of {source.name} is visible at position {position}: its transaction has"
                " not committed, or was rolled back"
            )
        # As if the row were the newest one, which it may not be visible to be.
        wanted = replace(source, newest=max(source.newest, position))
        return source_text(look, wanted) or "it was just cut"
    return flow_text(look)


# ---------------------------------------------------------------- flow looks


LAST_STEPS = 64
"""In so many steps before the next one is looked for what took a shard how long."""


class FlowLooker:
    def __init__(self, program: FlowProgram, *, present_for: timedelta) -> None:
        self._program = program
        self._present_for = present_for
        self._watches = {name: source.watcher() for name, source in program.sources.items()}

    async def look(self, connection: AsyncConnection) -> FlowLook | None:
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
        return FlowLook(
            row.state,
            row.next_step,
            _shard_looks(rows, replicas, now),
            [await self._source(connection, name, row.upto[name]) for name in self._watches],
            missing=self._missing(rows),
            recorded=row.frontier,
            begins_after=row.begins_after or {},
            differs=row.differs,
            replicas=sum(one.seen_at > since or one.id in holding for one in replicas),
        )

    def _missing(self, shards: Sequence[Any]) -> str | None:
        try:
            check_layout(self._program.name, shards)
        except ShardsMissingError as error:
            return error.message
        return None

    async def with_causes(self, connection: AsyncConnection, seen: FlowLook) -> FlowLook:
        """Add how long the last steps of shards took, and for whose messages others wait."""
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
        """Return the shards whose messages others wait for at the frontier, by stage."""
        # There is one such stage at most: to send to the next one, a shard needs all messages of
        # this one.
        own = self._program.tables.exchange.c
        of_step = (own.flow_id == self._program.id, own.step == seen.frontier)
        found = select(own.stage, own.lo, own.hi).where(*of_step).distinct()
        sent: dict[str, list[BucketRange]] = {}
        for stage, lo, hi in await connection.execute(found):
            sent.setdefault(stage, []).append(BucketRange(lo, hi))
        last = [shard.range for shard in seen.shards if shard.step == seen.frontier]
        unsent = {
            stage: [
                each
                for each in last
                if not any(lo <= each.lo and each.hi <= hi for lo, hi in merged(senders))
            ]
            for stage, senders in sent.items()
        }
        return {stage: late for stage, late in unsent.items() if late}

    async def _replicas(self, connection: AsyncConnection) -> Sequence[Any]:
        table = self._program.tables.replicas
        busy = [column for column in table.c if column.name.startswith("busy_")]
        found = select(table.c.id, table.c.name, table.c.seen_at, *busy).where(
            table.c.flow_id == self._program.id
        )
        return (await connection.execute(found)).all()

    async def _shards(self, connection: AsyncConnection) -> Sequence[Any]:
        shards = self._program.tables.shards
        is_held = lease_holds(self._program.tables).label("is_held")
        found = select(shards, is_held).where(shards.c.flow_id == self._program.id)
        return (await connection.execute(found.order_by(shards.c.lo))).all()

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
    busy = {
        (row.id, row.busy_lo): BusyCall(
            row.busy_stage, row.busy_key, (now - row.busy_since).total_seconds()
        )
        for row in replicas
        if row.busy_since
    }
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


# ---------------------------------------------------------------- status reader


LAG_ROWS_MAX: Final = 10_000
"""Most rows of a source that are counted one by one."""
CONSUMERS_MAX: Final = 1000
"""Most consumers that are shown."""
PRESENT_FOR: Final = timedelta(minutes=1)


async def look_at(connection: AsyncConnection, program: FlowProgram) -> FlowLook | None:
    """Return what is seen of a flow now; None if it has no row yet."""
    looker = FlowLooker(program, present_for=PRESENT_FOR)
    seen = await looker.look(connection)
    if seen is None or seen.frontier >= seen.next_step:
        return seen
    return await looker.with_causes(connection, seen)


async def status_of(connection: AsyncConnection, program: FlowProgram) -> StreamStatus:
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
        rows.flow_id == c.flow_id, rows.output == c.output, rows.step > c.step, rows.step < frontier
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
        .where(c.flow_id == program.id)
        .order_by(c.name)
        .limit(REPLICAS_MAX)
    )
    return [
        ReplicaStatus(row.name, row.code_version, row.shards, (now - row.seen_at).total_seconds())
        for row in await connection.execute(found)
    ]
