"""Starts, stops and watches the pipelines of one replica.

A life goes one way: new, started, shut down, drained. Saying the same thing twice does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Self

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock.clock import is_real
from rowlock.database.notify_channel import check_name, notifying_engine
from rowlock.errors import ConfigurationError, PipelineError
from rowlock.hints import Notifier, PipelineHinter, pipeline_hinter
from rowlock.logs import get_logger, tell_counts
from rowlock.pipelines.attempt import Gate, Seams, Surround
from rowlock.pipelines.heartbeat_thread import HeartbeatThread
from rowlock.pipelines.lock_graph import LockGraph
from rowlock.pipelines.pipeline import Pipeline, check_is_built
from rowlock.pipelines.statistics import ItemView, ManagerHealth, PipelineStatistics
from rowlock.rows.lock_tokens import replica_mark
from rowlock.tasks import finish

logger = get_logger(__name__)

RENEW_TIMEOUT = timedelta(seconds=1)
"""Longest renewal assumed of pipelines that are registered after the start."""
ITEMS_MAX = 100
"""Most items of one pipeline that are shown, unless more are asked for."""
DRAIN_GRACE = timedelta(seconds=30)
"""How long running work may go on after a shutdown by default."""


class PipelineManager:
    """The pipelines of one replica.

    Args:
        session_factory: the host's; every transaction has a session of its own.
        pipelines: more may come by `register`.
        notify: exchange hints with other replicas, over a connection outside the pool (PostgreSQL
            only). A name instead of True tells hosts apart that work in one schema. A process that
            runs no pipelines may have a manager without any, to send its hints.
        heartbeat_thread: renew leases in a thread, over a connection beside the pool, so that code
            that blocks the event loop costs no lease.
        check_indexes: a few seconds after the start, look once at the indexes of each pipeline's
            table, and log a warning if none can serve the claim, or if one mentions a lock column.
        gates: conditions of every claim of every pipeline, such as "it is not paused": functions
            of a pipeline's table and name that return an SQL expression, called at the start.
        surround: context managers around every attempt, such as a span: functions of the item.
            Entered in the task, or for a plain `process` in the context, in which `process` runs.
            They see its error and cannot swallow it; what they raise themselves is logged.

    Attributes:
        session_factory: the host's.
        hinter: reaches the pipelines of this manager; `pipeline_hinter` reaches those of every
            started one.

    Raises:
        ConfigurationError: the session factory cannot serve a pipeline, two pipelines have one
            name, the database cannot notify, or `gates` or `surround` holds what is none.
    """

    def __init__(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        pipelines: Iterable[Pipeline[Any]] = (),
        *,
        notify: bool | str = False,
        heartbeat_thread: bool = True,
        check_indexes: bool = True,
        gates: Iterable[Gate] = (),
        surround: Iterable[Surround] = (),
    ) -> None:
        self.hinter = PipelineHinter()
        self._hinters = self.hinter, pipeline_hinter
        self.session_factory = session_factory
        self._pipelines: dict[str, Pipeline[Any]] = {}
        self._lock_graph = LockGraph()
        self._notifier: Notifier | None = None
        self._wants_heartbeat_thread = heartbeat_thread
        self._check_indexes = check_indexes
        self._heartbeats: HeartbeatThread | None = None
        self._seams = Seams.of(gates, surround)
        self._started = False
        self._shut_down = False
        if not isinstance(pipelines, Iterable):
            raise ConfigurationError(
                "pipelines is a list: PipelineManager(session_factory, [VolumePipeline()])"
            )
        for pipeline in pipelines:
            self.register(pipeline)
        if notify is not False:
            if notify is not True:
                check_name(notify)
            engine = notifying_engine(session_factory, [one.leased for one in self.pipelines])
            name = None if notify is True else notify
            self._notifier = Notifier(engine, name, hinter=self.hinter)

    def __repr__(self) -> str:
        return f"<PipelineManager of {', '.join(map(repr, self._pipelines.values())) or 'nothing'}>"

    @property
    def pipelines(self) -> tuple[Pipeline[Any], ...]:
        """The pipelines that are registered so far."""
        return tuple(self._pipelines.values())

    @property
    def gates(self) -> tuple[Gate, ...]:
        """Conditions of every claim."""
        return self._seams.gates

    def register(self, pipeline: Pipeline[Any]) -> None:
        """Add `pipeline`; if the manager runs, it is started at once.

        Raises:
            ConfigurationError: the name is taken, the session factory cannot serve it, it works in
                another database than those that notify, or, in a manager that runs, the pipelines
                would lock each other's rows in a circle.
            PipelineError: the manager was shut down, or the pipeline was started before.
        """
        if not isinstance(pipeline, Pipeline):
            raise ConfigurationError(
                f"a pipeline is an instance of a Pipeline subclass, not {pipeline!r:.100}"
            )
        # Of a class whose ``__init__`` a decorator has made, nothing was checked yet.
        check_is_built(pipeline)
        if self._shut_down:
            raise PipelineError("the manager was shut down; build a new one")
        if pipeline.name in self._pipelines:
            raise ConfigurationError(
                f"two pipelines are named {pipeline.name}; the class name is the owner of their"
                " leases: rename one"
            )
        pipeline.check_can_run(self.session_factory)
        self._seams.conditions(pipeline.leased, pipeline.name)
        if self._notifier is not None:
            tables = [one.leased for one in (*self.pipelines, pipeline)]
            notifying_engine(self.session_factory, tables)  # refuses one in another database
        if self._started:
            LockGraph([*self._pipelines.values(), pipeline]).check()
        self._pipelines[pipeline.name] = pipeline
        self._lock_graph.pipelines.append(pipeline)
        if self._started:
            self._start(pipeline)

    def start(self) -> None:
        """Start every pipeline in the running event loop; a second call does nothing.

        Raises:
            PipelineError: the manager was shut down, or no event loop runs.
            LockCycleError: the pipelines lock each other's rows in a circle; none was started.
        """
        if self._shut_down:
            raise PipelineError(
                "the manager was shut down and cannot be started again; build a new one"
            )
        if self._started:
            return
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise PipelineError(
                "start() needs the running event loop: call it from the host's start-up coroutine"
            ) from None
        self._lock_graph.check()
        for pipeline in self._pipelines.values():
            pipeline.check_can_run(self.session_factory)
        self._started = True
        extra = {"replica": replica_mark()}
        logger.info("This replica is %(replica)s: so end the tokens of its leases", extra)
        if self._wants_heartbeat_thread and is_real():
            limits = [pipeline.settings.renew_timeout for pipeline in self._pipelines.values()]
            self._heartbeats = HeartbeatThread(
                self.session_factory, renew_timeout=min(limits, default=RENEW_TIMEOUT)
            )
        if self._notifier is not None:
            self._notifier.start()
            for hinter in self._hinters:
                hinter.attach_relay(self._notifier.pass_on)
        for pipeline in self._pipelines.values():
            self._start(pipeline)

    def shutdown(self) -> None:
        """Fetch no more and release what was not started; work that runs goes on until `drain`.

        Does nothing before `start`. After that it may be called at any time, from any thread, and
        from a signal handler: the loop does it in its next iteration.
        """
        if not self._started:
            return
        self._shut_down = True
        for pipeline in self._pipelines.values():
            pipeline.shutdown()

    async def drain(self, timeout: timedelta | float | None = None) -> None:
        """Shut down, wait for running work for `timeout` (default `DRAIN_GRACE`; a number is
        seconds), then interrupt it.

        Interrupted rows are released. It returns when every loop has ended. Until then hints are
        still sent to other replicas.
        """
        grace = DRAIN_GRACE if timeout is None else timeout
        grace = grace if isinstance(grace, timedelta) else timedelta(seconds=grace)
        self.shutdown()
        try:
            await asyncio.gather(*(pipeline.drain(grace) for pipeline in self._pipelines.values()))
        finally:
            # Not before: an outcome may still hint a pipeline, and it is not missing.
            for pipeline in self._pipelines.values():
                for hinter in self._hinters:
                    hinter.detach(pipeline.leased.name, pipeline.hint)
            # Whole, even if the caller is cancelled: half of it could not be made up for.
            await finish(self._stop_threads(), purpose="stop heartbeats and notifications")
            tell_counts()

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.drain()

    def statistics(self) -> dict[str, PipelineStatistics]:
        """Return what each pipeline has done, by name."""
        return {name: pipeline.statistics() for name, pipeline in self._pipelines.items()}

    def items(self, limit: int = ITEMS_MAX) -> list[ItemView]:
        """Return what this replica has in hand, at most `limit` of each pipeline: what runs or is
        being settled, the oldest first, then what is queued, in its order.
        """
        return [view for pipeline in self._started_ones() for view in pipeline.run.items(limit)]

    async def return_queued(self, pipeline_name: str) -> int:
        """Release what a pipeline has queued, as if it had never been claimed, and return how many
        rows. What runs goes on.

        Raises:
            ConfigurationError: the manager has no such pipeline.
        """
        pipeline = self._pipelines.get(pipeline_name)
        if pipeline is None:
            known = ", ".join(self._pipelines) or "none"
            raise ConfigurationError(
                f"this manager has no pipeline {pipeline_name!r}; it has: {known}"
            )
        return 0 if pipeline.state == "new" else await pipeline.run.return_queued()

    def health(self) -> ManagerHealth:
        """Return the health of every pipeline, and the state of the channel to other replicas."""
        notifications = None if self._notifier is None else self._notifier.statistics()
        stall_s = 0.0 if self._heartbeats is None else self._heartbeats.monitor.longest_stall_s
        pipelines = tuple(pipeline.health() for pipeline in self._pipelines.values())
        return ManagerHealth(pipelines, notifications, stall_s)

    def _start(self, pipeline: Pipeline[Any]) -> None:
        pipeline.start(
            self.session_factory,
            self.hinter,
            self._lock_graph,
            heartbeat_thread=self._heartbeats,
            seams=self._seams,
            # Under a test's clock nothing waits for real, and what runs is compared.
            check_indexes=self._check_indexes and is_real(),
        )
        pipeline.run.fetcher.heartbeaters = lambda: [
            one.run.heartbeater for one in self._started_ones()
        ]
        for hinter in self._hinters:
            hinter.attach(pipeline.leased.name, pipeline.hint)
        if self._shut_down:
            # By a signal handler, before this one was started.
            pipeline.shutdown()

    def _started_ones(self) -> list[Pipeline[Any]]:
        return [pipeline for pipeline in self._pipelines.values() if pipeline.state != "new"]

    async def _stop_threads(self) -> None:
        # A drain that was cancelled leaves work behind, which still needs its leases.
        if self._heartbeats is not None and all(
            pipeline.state == "stopped" for pipeline in self._pipelines.values()
        ):
            await self._heartbeats.stop()
        if self._notifier is not None:
            for hinter in self._hinters:
                hinter.detach_relay(self._notifier.pass_on)
            await self._notifier.stop()
