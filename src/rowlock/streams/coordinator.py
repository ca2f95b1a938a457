"""The coordinator of a flow: a pipeline over the one row of the flow.

It writes how far the flow is and why it goes no further, finds how many shards there are to be, and
deletes old steps with their parts, messages, events of logs, empty states, and replicas that are
gone. No step waits for any of that: cuts, steps and handovers read nothing that a coordinator has
to have written first, so its death, or its absence, stops nothing.

There is one at a time, since the row is leased like any other; a round is one `process`, and its
findings are written with its outcome, under its token. One pipeline for each flow, so that a flow's
settings are those of its coordinator, and a flow that is refused keeps no other one waiting.

What is needed is asked in the transaction that deletes, and it only ever grows less, so no token is
needed: a late or second deletion deletes nothing that is needed. To lock the flow's row meanwhile
would have every cut wait. A new flow is the exception: it and the expiry of a log lock the same row
(`EventLog.lock_expiry`). Messages are kept until the version of each shard is above their step,
since a shard that is opened anew begins there; its `step` says nothing about that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, TypeAlias

from sqlalchemy import ColumnElement, and_, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock import Apply, Outcome, Pipeline, PipelineHinter, PipelineItem, events
from rowlock.clock import monotonic
from rowlock.logs import get_logger
from rowlock.spi import (
    Duration,
    LockGraph,
    PipelineContext,
    PipelineRun,
    database_instant,
    database_time_after,
)
from rowlock.streams.cursors import (
    first_kept_result,
    first_needed_step,
    lowest_version,
    needed_positions,
)
from rowlock.streams.dialects.stream_dialect import delete_some
from rowlock.streams.events import FlowStalled
from rowlock.streams.inputs.event_log import EventLog
from rowlock.streams.inputs.step_inputs import first_difference
from rowlock.streams.key_states import drop_empty
from rowlock.streams.program import FlowProgram, lease_owner
from rowlock.streams.shards.layout import WantedShards
from rowlock.streams.shards.replicas import presence
from rowlock.streams.stalls import FlowLook, Stall, StallKind, stall_of
from rowlock.streams.status import FlowLooker
from rowlock.streams.tables import StreamDatabase, Transact

EXPIRY_ROWS_MAX = 5_000
"""Most rows of a kind that are deleted in one transaction."""
TRANSACTIONS_MAX = 20
"""Most transactions for one kind of rows in one round; the rest is deleted in the next one."""
FORGOTTEN_AFTER = 10
"""The row of a replica that was not seen for so many times as long as it counts as there is
deleted.
"""


DeleteSome: TypeAlias = Callable[[AsyncConnection], Awaitable[int]]
"""Deletes some rows of one kind, and returns how many."""


class Expiry:
    def __init__(self, program: FlowProgram, transact: Transact, *, present_for: timedelta) -> None:
        self._program = program
        self._database = StreamDatabase(transact)
        self._present_for = present_for

    async def run(self, *, goes_on: Callable[[], bool]) -> bool:
        """Delete what is no longer needed, while `goes_on`; return whether there may be more."""
        logs = [one for one in self._program.sources.values() if isinstance(one, EventLog)]
        kinds: Sequence[DeleteSome] = (
            *(self._messages, self._steps, self._empty_states, self._replicas),
            *(partial(self._events, log=log) for log in logs),
        )
        is_more = False
        for kind in kinds:
            is_more |= await self._repeat(kind, goes_on=goes_on)
        return is_more

    async def _repeat(self, kind: DeleteSome, *, goes_on: Callable[[], bool]) -> bool:
        for _ in range(TRANSACTIONS_MAX):
            if not goes_on():
                return False
            if not await self._database.write("delete what has expired", kind):
                return False
        return True

    async def _messages(self, connection: AsyncConnection) -> int:
        tables, flow_id = self._program.tables, self._program.id
        table, own = tables.exchange, tables.exchange.c
        gone = own.step < await lowest_version(connection, tables, flow_id)
        return await delete_some(connection, table, EXPIRY_ROWS_MAX, own.flow_id == flow_id, gone)

    async def _steps(self, connection: AsyncConnection) -> int:
        last = await self._last_expired_step(connection)
        if last is None:
            return 0
        steps, parts = self._program.tables.steps, self._program.tables.parts
        gone = (parts.c.flow_id == self._program.id, parts.c.step <= last)
        if count := await delete_some(connection, parts, EXPIRY_ROWS_MAX, *gone):
            return count
        old = delete(steps).where(steps.c.flow_id == self._program.id, steps.c.step <= last)
        return (await connection.execute(old)).rowcount

    async def _last_expired_step(self, connection: AsyncConnection) -> int | None:
        """Return the last of the steps that may go now, `EXPIRY_ROWS_MAX` at most."""
        tables, flow_id = self._program.tables, self._program.id
        first = await first_needed_step(connection, tables, flow_id)
        result = await first_kept_result(connection, tables, flow_id)
        # A step begins where the one before it ends, and results are read with the time of theirs.
        end = first - 1 if result is None else min(first - 1, result)
        c = tables.steps.c
        some = (
            select(c.step, c.now)
            .where(c.flow_id == flow_id, c.step < end)
            .order_by(c.step)
            .limit(EXPIRY_ROWS_MAX)
            .subquery()
        )
        is_old = some.c.now < database_time_after(-self._program.settings.keep)
        last: int | None = await connection.scalar(select(func.max(some.c.step)).where(is_old))
        return last

    async def _empty_states(self, connection: AsyncConnection) -> int:
        program, flows = self._program, self._program.tables.flows.c
        is_kept = flows.kept_until > database_instant()
        kept = select(flows.kept_snapshot).where(flows.id == program.id, is_kept)
        before = await connection.scalar(kept)
        if before is None:
            before = await lowest_version(connection, program.tables, program.id)
        table = program.tables.state
        return await drop_empty(connection, table, program.id, before=before, limit=EXPIRY_ROWS_MAX)

    async def _replicas(self, connection: AsyncConnection) -> int:
        table = self._program.tables.replicas
        long_ago = database_time_after(-FORGOTTEN_AFTER * self._present_for)
        gone = delete(table).where(table.c.flow_id == self._program.id, table.c.seen_at < long_ago)
        await connection.execute(gone)
        return 0

    async def _events(self, connection: AsyncConnection, log: EventLog[Any]) -> int:
        await log.lock_expiry(connection)
        needed = await needed_positions(connection, self._program.tables, log.name)
        return await log.expire(connection, min(needed.values(), default=0))


logger = get_logger(__name__)

SETTINGS = frozenset(
    {
        *("lock_timeout", "heartbeat_trigger", "heartbeat_interval", "lease_margin"),
        *("renew_timeout", "database_timeout", "cancel_grace", "retry_delay", "retry_delay_max"),
        *("stall_limit", "orphaned_after", "fetch_delays"),
    }
)
"""Those of a flow's settings that are its coordinator's, too."""
EXPIRE_EVERY_S = 60.0
"""Rest between two looks for what is no longer needed, in seconds, unless there was more than one
look deletes.
"""
EXPIRE_QUIET_EVERY_S = 600.0
"""The same where nothing has happened since then: only time makes more needless."""
VERIFY_EVERY_S = 600.0
"""Rest between two looks whether the events of the last steps are as they were, in seconds."""
VERIFIED_STEPS = 4
"""So many steps are compared then."""
QUIET_ROUNDS = 3
"""After so many rounds in which nothing happened the rest between two of them grows no longer; it
doubles until then.
"""


class Coordinator:
    def __init__(self, program: FlowProgram, context: PipelineContext[Any]) -> None:
        self._program = program
        self._name = context.name
        self._database = StreamDatabase(context.transact)
        every, present_for = presence(context.settings.lock_timeout)
        # In two polls a replica has seen what it needs no hint for.
        self._every = max(every, 2 * program.settings.poll_interval)
        self._looker = FlowLooker(program, present_for=present_for)
        self._wanted = WantedShards(
            program.shards, shrinks_after_s=context.settings.lock_timeout.total_seconds()
        )
        self._expiry = Expiry(program, context.transact, present_for=present_for)
        self._expired_at = float("-inf")
        self._expired: FlowLook | None = None
        self._before: FlowLook | None = None
        self._stall: StallKind | None = None
        self._quiet_rounds = 0
        self._verifies_at = float("-inf")

    async def round(self, item: PipelineItem[Any]) -> Outcome:
        seen = await self._database.read("look how far a flow is", self._looker.look)
        if seen is None:
            return Apply(after=self._every)
        stall = await self._stall_of(seen)
        is_more = False
        every_s = EXPIRE_QUIET_EVERY_S if seen == self._expired else EXPIRE_EVERY_S
        if seen.missing is None and monotonic() >= self._expired_at + every_s:
            is_more = await self._expiry.run(
                goes_on=lambda: item.is_trusted() and not item.stop_requested
            )
            self._expired_at = float("-inf") if is_more else monotonic()
            self._expired = seen
        values = self._values(item.row, seen, stall) | await self._verified(item.row, seen)
        is_quiet = self._before == seen and stall is None and not self._wanted.is_waiting
        self._quiet_rounds = min(self._quiet_rounds + 1, QUIET_ROUNDS) if is_quiet else 0
        self._before = seen
        rest = self._every * 2**self._quiet_rounds
        return Apply(values, after=timedelta(0) if is_more else rest)

    def _values(self, row: Any, seen: FlowLook, stall: Stall | None) -> dict[str, Any]:
        """Return what has changed of the columns that a coordinator alone writes."""
        values: dict[str, Any] = {
            "frontier": max(row.frontier, seen.frontier),
            "code_version": self._program.code_version,
            "stalled": None if stall is None else stall.text,
        }
        if self._before is None and stall is None and seen.frontier == row.frontier:
            # What the coordinator before this one has found holds as long as nothing has changed.
            del values["stalled"]
        wanted = self._wanted.after(row.shards_wanted, replicas=seen.replicas, now=monotonic())
        if wanted is not None:
            values["shards_wanted"] = wanted
        return {name: one for name, one in values.items() if one != getattr(row, name)}

    async def _verified(self, row: Any, look: FlowLook) -> dict[str, Any]:
        """Compare the last steps with what they were done with, where due; return what to write."""
        if look.missing is not None or monotonic() < self._verifies_at:
            return {}
        self._verifies_at = monotonic() + VERIFY_EVERY_S
        flow, text, at = self._program.readable, None, None
        steps = range(max(0, look.frontier - VERIFIED_STEPS), look.frontier)
        # A difference stands until the events are as they were.
        for step in ([] if row.differs_at is None else [row.differs_at]) + list(steps):
            compare = partial(first_difference, flow=flow, step=step)
            text = await self._database.read("compare the rows of a step", compare)
            if text is not None:
                at = step
                break
        if text == row.differs:
            return {}
        if text is not None:
            logger.warning(
                "the flow %(flow)s has counted events that were changed or deleted since:"
                " %(reason)s",
                {"flow": flow.name, "reason": text},
            )
        return {"differs": text, "differs_at": at}

    async def _stall_of(self, seen: FlowLook) -> Stall | None:
        if self._before is None and seen.missing is None:
            return None
        before = self._before or seen
        stall = stall_of(before, seen)
        if stall is not None and stall.kind is StallKind.BUSY:
            more = await self._database.read(
                "see what steps wait for",
                lambda connection: self._looker.with_causes(connection, seen),
            )
            stall = stall_of(before, more)
        self._tell(stall)
        return stall

    def _tell(self, stall: Stall | None) -> None:
        """Log and emit once for each kind of reason, not for each look."""
        kind = None if stall is None else stall.kind
        if stall is not None and kind is not self._stall:
            extra = {"flow": self._program.name, "reason": stall.text}
            logger.warning("the flow %(flow)s does not advance: %(reason)s", extra)
            events.emit(FlowStalled(self._name, self._program.name, stall.text))
        self._stall = kind


class CoordinatorPipeline(Pipeline[Any], reserved=False):
    workers_num: int = 1
    queue_lower_limit_factor: float = 0.0
    queue_upper_limit_factor: float = 0.0
    min_processing_interval: Duration = timedelta(0)
    process_timeout: Duration | None = timedelta(minutes=10)
    fetch_delays: Any = (5.0, 60.0)
    # A flow without a coordinator would not be noticed.
    max_attempts: int | None = None
    max_deaths: int | None = None
    _looks_at_indexes: ClassVar[bool] = False

    def __init__(self, program: FlowProgram, **settings: Any) -> None:
        self.program = program
        self.model = program.tables.flow_model
        super().__init__(**{name: one for name, one in settings.items() if name in SETTINGS})
        self._coordinator: Coordinator | None = None

    @property
    def name(self) -> str:
        return lease_owner("FlowRow", self.program.name)

    def ready(self) -> ColumnElement[bool]:
        """Return which row it is, as long as it is of the flow that is declared here."""
        flows = self.program.tables.flows
        return and_(flows.c.id == self.program.id, flows.c.fingerprint == self.program.fingerprint)

    async def process(self, item: PipelineItem[Any]) -> Outcome:
        assert self._coordinator is not None
        return await self._coordinator.round(item)

    def build_run(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        hinter: PipelineHinter,
        lock_graph: LockGraph | None = None,
    ) -> PipelineRun[Any]:
        run = super().build_run(session_factory, hinter, lock_graph)
        self._coordinator = Coordinator(self.program, run.context)
        return run
