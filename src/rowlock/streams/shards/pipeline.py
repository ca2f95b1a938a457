"""The pipeline of a flow: its rows are the shards, and `process` of one holds it for as long as it
is this replica's.

Leases, heartbeats, recovery and the end in order are those of every pipeline. What is added to a
fetch: the flow is created if it is new, this replica says that it is there, and only the shards
that are its share are claimed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, ScalarSelect, and_, false, or_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock import (
    Fetcher,
    Outcome,
    Pipeline,
    PipelineHinter,
    PipelineItem,
    database_now,
    pipeline_hinter,
)
from rowlock.clock import monotonic
from rowlock.logs import get_logger
from rowlock.spi import Duration, LockGraph, ModelT, PipelineRun
from rowlock.streams.flow_row import ensure_flow
from rowlock.streams.inputs import high_water
from rowlock.streams.program import FlowProgram, lease_owner
from rowlock.streams.shards.layout import SHARDS_MAX, DynamicShards
from rowlock.streams.shards.replicas import Replicas, presence
from rowlock.streams.shards.runner import FlowRunner
from rowlock.streams.tables import StreamDatabase

logger = get_logger(__name__)

CALM_EVERY = 10
"""A replica that has its share looks around so many times less often, unless a hint has it look."""


CLAIMED_AT_ONCE = 256
"""So many shards are claimed in one statement, and begun in one turn of the event loop."""


class ShardFetcher(Fetcher[ModelT]):
    async def fetch_once(self, limit: int) -> int:
        pipeline = self.context.pipeline
        await pipeline.look_around()
        if pipeline.has_its_share:
            return 0
        claimed = 0
        while True:
            some = min(limit - claimed, CLAIMED_AT_ONCE)
            found = await super().fetch_once(some)
            claimed += found
            if found < some or claimed == limit:
                return claimed


class FlowPipeline(Pipeline[Any], reserved=False):
    fetcher_class: ClassVar[type[Fetcher[Any]]] = ShardFetcher
    process_timeout: Duration | None = None
    min_processing_interval: Duration = timedelta(0)
    queue_lower_limit_factor: float = 0.0
    queue_upper_limit_factor: float = 0.0
    workers_num: int = SHARDS_MAX
    max_attempts: int | None = None
    max_deaths: int | None = None
    # A shard's row is read again under its token whenever its holder is not sure of it.
    _checks_rows: ClassVar[bool] = False
    # Its claims name the keys of the rows.
    _looks_at_indexes: ClassVar[bool] = False

    def __init__(self, program: FlowProgram, **settings: Any) -> None:
        self.program = program
        self.model = program.tables.shard_model
        self.replicas = Replicas(program)
        super().__init__(**settings)
        every, self.replicas.present_for = presence(self.settings.lock_timeout)
        self._every_s = every.total_seconds()
        self.looked_around_at = float("-inf")
        self.replicas.on_change = self.look_around_soon
        self._is_there = False
        self._sources_checked_at = float("-inf")
        self._runner: FlowRunner | None = None
        self._hinters: list[PipelineHinter] = []

    @property
    def name(self) -> str:
        return lease_owner("Flow", self.program.name)

    @property
    def runner(self) -> FlowRunner:
        assert self._runner is not None
        return self._runner

    def ready(self) -> ColumnElement[bool]:
        """Return which shards are this replica's."""
        if not self.replicas.mine:
            return false()
        keys = sorted(self.replicas.mine)
        return and_(self.ready_anywhere(), self.program.tables.shards.c.id.in_(keys))

    def ready_anywhere(self) -> ColumnElement[bool]:
        """Return which shards are to be held, by whichever replica."""
        shards = self.program.tables.shards
        # A shard of a stopped flow has been released, unless it is not yet where that stops.
        is_wanted = or_(
            self._of_flow("state") != "stopped", shards.c.version < self._of_flow("next_step")
        )
        return and_(shards.c.flow_id == self.program.id, is_wanted)

    def _of_flow(self, column: str) -> ScalarSelect[Any]:
        flows = self.program.tables.flows
        return select(flows.c[column]).where(flows.c.id == self.program.id).scalar_subquery()

    async def process(self, item: PipelineItem[Any]) -> Outcome:
        return await self.runner.hold(item)

    def unsettled(self) -> ColumnElement[bool]:
        """Return which shards still have something to do; see `rowlock.testing`."""
        if not self.runner.has_nothing_left():
            return true()
        shards = self.program.tables.shards
        is_behind = and_(
            shards.c.step < self._of_flow("next_step"),
            shards.c.parked_at.is_(None),
            shards.c.due_at <= database_now(),
        )
        return and_(shards.c.flow_id == self.program.id, is_behind)

    def build_run(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        hinter: PipelineHinter,
        lock_graph: LockGraph | None = None,
    ) -> PipelineRun[Any]:
        run = super().build_run(session_factory, hinter, lock_graph)
        self._runner = FlowRunner(self.program, run.context, self.replicas)
        return run

    def start(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        hinter: PipelineHinter,
        lock_graph: LockGraph | None = None,
        **given: Any,
    ) -> None:
        super().start(session_factory, hinter, lock_graph, **given)
        self._hinters = [hinter, pipeline_hinter]
        for one in self._hinters:
            one.attach(self.program.shards_topic, self.look_around_soon)

    def shutdown(self) -> None:
        """Begin nothing more; shards end behind the step that they do."""
        for one in self._hinters:
            one.detach(self.program.shards_topic, self.look_around_soon)
        super().shutdown()

    async def drain(self, grace: timedelta) -> None:
        await super().drain(grace)
        if self._is_there:
            await self.runner.disappear()

    @property
    def has_its_share(self) -> bool:
        """Whether each shard is held, and this replica's are held here, as far as is known."""
        return self.replicas.is_calm(self.runner.shards)

    def look_around_soon(self) -> None:
        """Look around with the next fetch, which is soon; may be called from any thread."""
        self.looked_around_at = float("-inf")
        self.hint()

    async def look_around(self) -> None:
        """Create the flow if it is new, report this replica, find its share; where due."""
        # As long as nothing changes, its leases say that it is there.
        every_s = self._every_s * (CALM_EVERY if self.has_its_share else 1)
        began_at = monotonic()
        if began_at < self.looked_around_at + every_s:
            return
        transact = self.runner.context.transact
        database, is_new = StreamDatabase(transact), not self._is_there
        if began_at >= self._sources_checked_at + high_water.CHECK_EVERY_S:
            await database.read("look at the sources", self._check_sources)
            self._sources_checked_at = began_at
        if is_new:
            await ensure_flow(self.program, transact)
            self._is_there = True

        async def look(connection: AsyncConnection) -> None:
            await self.replicas.appear(connection, shards=len(self.runner.shards))
            if is_new:
                await self.replicas.tell_coordinator(connection)
            await self.replicas.look(connection)

        before = set(self.replicas.mine)
        self.looked_around_at = began_at
        try:
            await database.write("see which replicas are there", look)
        except BaseException:
            # Also if it is cancelled: it has not looked.
            self.looked_around_at = float("-inf")
            raise
        if is_new:
            hinter, flows = self.runner.context.hinter, self.program.tables.flow_model
            if hinter.reaches(flows):
                hinter.hint_fetch(flows)
            self._compare_number()
        if before - set(self.replicas.mine):
            self.runner.wake()

    async def _check_sources(self, connection: AsyncConnection) -> None:
        for source in self.program.sources.values():
            await source.check(connection)

    def _compare_number(self) -> None:
        """Say that a declared number of shards changes nothing, where it is another one."""
        declared, wanted = self.program.shards, self.replicas.wanted
        if isinstance(declared, DynamicShards) or declared == wanted:
            return
        logger.warning(
            "the flow %(flow)s is declared with %(declared)s shards, and has %(shards)s: a"
            " declaration counts when the flow is created; call reshard(session, %(declared)s),"
            " or declare it with %(shards)s",
            {"flow": self.program.name, "declared": declared, "shards": wanted},
        )
