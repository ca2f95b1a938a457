"""Who takes part in a run: replicas, services, and the one who puts the rows in.

The one idea: each is a process with a line and an engine of its own; a replica is a whole
`PipelineManager` in it. Host code is watched: while somebody who may still trust its lease works on
a row, nobody else may begin to.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rowlock import Outcome, Pipeline, PipelineItem, PipelineManager

from .environment.engines import Engines, PooledEngine
from .environment.faulty_connection import FaultyConnection
from .environment.processes import Process, current_process
from .faults.conditions import Conditions
from .faults.hostile_host import HostileHost
from .judge.state import Place
from .scenario import Scenario, World
from .trace import Trace, place_of_row, reason

SLIPS = (TypeError, NameError, AttributeError)
"""What a database that fails does not raise: so a service did something that it did not mean."""


@dataclass(eq=False)
class SimulatedReplica:
    """One life of a replica.

    Attributes:
        ending: runs from its shutdown on.
    """

    process: Process
    pooled: PooledEngine
    manager: PipelineManager
    pipelines: list[Pipeline[Any]]
    ending: asyncio.Task[None] | None = None

    @property
    def is_in_service(self) -> bool:
        return self.process.is_alive and self.ending is None

    def shut_down(self, grace_s: float, trace: Trace) -> None:
        self.ending = self.process.spawn(
            self._end(grace_s, trace), name=f"end of {self.process.name}"
        )

    async def _end(self, grace_s: float, trace: Trace) -> None:
        troubles = self._troubles()
        await self.manager.drain(grace_s)
        trace.record("has ended")
        abandoned = sum(one.counters["abandoned"] for one in self.manager.statistics().values())
        if self._troubles() != troubles or abandoned:
            return
        for place in trace.held_by(self.process.name):
            trace.wrong(
                f"{self.process.name} was shut down without any trouble, and still holds the row",
                place=place,
            )

    def _troubles(self) -> tuple[int, float]:
        return self.process.faulty_connection.failures, self.process.thawed_at_s


class Participants:
    """All processes of one run.

    Attributes:
        replicas: every life of every replica, in order.
        services: the services that were started, with their tasks.
        latency_s: how long one way to the database takes everybody, on average.
        conditions: what is true for all of the run.
        host: raises where they say so.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        world: World,
        engines: Engines,
        trace: Trace,
        rng: Random,
        conditions: Conditions,
    ) -> None:
        self.replicas: list[SimulatedReplica] = []
        self.services: dict[Process, asyncio.Task[None]] = {}
        self.latency_s = 0.0
        self.conditions = conditions
        self.host = HostileHost(conditions, seed=world.seed, is_calm=lambda: world.is_calm)
        self._scenario, self._world, self._engines, self._trace, self._rng = (
            scenario,
            world,
            engines,
            trace,
            rng,
        )
        self._at_work: dict[Place, list[_Work]] = {}

    @property
    def in_service(self) -> list[SimulatedReplica]:
        return [replica for replica in self.replicas if replica.is_in_service]

    @property
    def processes(self) -> list[Process]:
        """Replicas and services that were not killed and have not ended."""
        ending = [
            one.process
            for one in self.replicas
            if one.process.is_alive and not (one.ending and one.ending.done())
        ]
        return ending + [
            process
            for process, task in self.services.items()
            if process.is_alive and not task.done()
        ]

    @property
    def is_served(self) -> bool:
        return any(process.is_alive and not task.done() for process, task in self.services.items())

    @property
    def hungry(self) -> set[str]:
        """The pipelines of which some replica looks for rows without being hinted."""
        return {
            pipeline.name
            for replica in self.in_service
            for pipeline in replica.pipelines
            if pipeline.statistics().queued < pipeline.settings.queue_low_watermark
        }

    def raise_the_dead(self) -> None:
        """Let dead processes go on as ghosts that reach nothing, so that their tasks can be
        ended.
        """
        for process in (*(replica.process for replica in self.replicas), *self.services):
            if process.is_alive:
                process.thaw()
            else:
                process.rise()

    def new_process(self, name: str) -> tuple[Process, PooledEngine]:
        faulty_connection = FaultyConnection(self._rng, on_commit=self._committed)
        faulty_connection.latency_s, faulty_connection.round_trip_s = (
            self.latency_s,
            self.conditions.round_trip_s,
        )
        process, pooled = (
            Process(name, faulty_connection),
            self._engines.next_engine(faulty_connection),
        )
        self._world.add(process, pooled)
        return process, pooled

    def new_replica(self) -> SimulatedReplica:
        process, pooled = self.new_process(f"replica {len(self.replicas) + 1}")

        def start() -> SimulatedReplica:
            pipelines = list(self._scenario.pipelines())
            for pipeline in pipelines:
                self._watch(pipeline)
            manager = PipelineManager(pooled.session_factory, pipelines, gates=self._scenario.gates)
            # Before the manager's own: a wake that raises would keep those from being called.
            self.host.attach(pipelines)
            manager.start()
            for pipeline in pipelines:
                self.host.spoil_hooks(pipeline)
            return SimulatedReplica(process, pooled, manager, pipelines)

        replica = process.call(start)
        self.replicas.append(replica)
        self._trace.record(f"{process.name} starts")
        return replica

    def new_service(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        name = getattr(work, "__name__", "service").strip("_")
        process, _ = self.new_process(f"{name} {len(self.services) + 1}")
        self.services[process] = process.spawn(self._serve(work), name=process.name)

    def _committed(self) -> None:
        self._trace.read_changes()
        try:
            self._scenario.always()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - it must not spoil the COMMIT that was made
            self._trace.wrong(f"what must always be true is not: {reason(error)}")

    async def _serve(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except AssertionError as error:
            self._trace.wrong(f"a service says: {reason(error)}")
        except SLIPS as error:
            self._trace.wrong(f"a service has a slip: {reason(error)}")
        except Exception as error:  # noqa: BLE001 - whatever the database does to it
            self._trace.record(f"gives up: {type(error).__name__}: {error}")

    def _watch(self, pipeline: Pipeline[Any]) -> None:
        # In the loop also where they are plain functions: threads are not simulated.
        process, on_stale = pipeline.process, pipeline.on_stale

        async def watched_process(item: PipelineItem[Any]) -> Any:
            place = place_of_row(pipeline.leased.table.name, item.id)
            work = _Work(current_process.get(), pipeline.name, item)
            self._begin(place, work)
            try:
                return self.host.spoil_outcome(await _in_the_loop(process, item))
            finally:
                self._at_work[place].remove(work)

        async def watched_on_stale(item: PipelineItem[Any], outcome: Outcome) -> None:
            await _in_the_loop(on_stale, item, outcome)

        pipeline.process = watched_process  # type: ignore[method-assign]
        pipeline.on_stale = watched_on_stale  # type: ignore[method-assign]

    def _begin(self, place: Place, work: _Work) -> None:
        others = self._at_work.setdefault(place, [])
        for other in others:
            if work.is_trusted() and (other.is_trusted() or other.is_left_at_work()):
                self._trace.wrong(f"{work} begins while {other} is at work", place=place)
        others.append(work)


@dataclass(eq=False, slots=True)
class _Work:
    process: Process | None
    pipeline: str
    item: PipelineItem[Any]
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)

    @property
    def token(self) -> str:
        return str(self.item.lock_token)[:8]

    def __str__(self) -> str:
        return (
            f"{self.pipeline} of {self.process.name if self.process else 'nobody'} (token"
            f" {self.token})"
        )

    def is_left_at_work(self) -> bool:
        """Whether its time is over and nobody has told it so, though its process could have."""
        if self.task is None or self.process is None or not self.process.is_running:
            return False
        return (
            self.task.cancelling() == 0
            and asyncio.get_running_loop().time() > self.process.thawed_at_s
        )

    def is_trusted(self) -> bool:
        return self.process is not None and self.process.is_running and self.item.is_trusted()


async def _in_the_loop(function: Callable[..., Any], *args: object) -> Any:
    result = function(*args)
    return await result if inspect.isawaitable(result) else result
