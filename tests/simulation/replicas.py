"""Replicas, with a life each: they start, work, and die or are shut down.

The one idea: they have the real actors and fetch when they are told to, which is cheap and finds
the orders of events that a fetcher's rests would hide. Not here: whole managers, as a host starts
them (``family.py``).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any, Final

from rowlock import PipelineError, PipelineHinter
from rowlock.pipelines.attempt import Ended
from rowlock.pipelines.lock_graph import LockGraph
from rowlock.testing import Steps

from .line import Exchange, Line
from .pipelines import SimulatedPipeline

GRACES_S: Final = (0, 0.2, 4)


class Replica:
    """One life of a replica.

    Attributes:
        is_alive: it was neither shut down nor killed.
        line: its line to the database.
    """

    def __init__(
        self, name: str, exchange: Exchange, line: Line, pipelines: list[SimulatedPipeline]
    ) -> None:
        self.name = name
        self.is_alive = True
        self.line = exchange.line = line
        self.pipelines = pipelines
        self.ending: asyncio.Task[None] | None = None
        self._session_factory = exchange.session_factory

    def die(self) -> None:
        if self.is_alive:
            self.line.is_cut = True
            for pipeline in self.pipelines:
                pipeline.is_dead = True
            self._end(0)

    def shut_down(self, grace_s: float) -> None:
        if self.is_alive:
            self._end(grace_s)

    def _end(self, grace_s: float) -> None:
        self.is_alive = False
        self.ending = asyncio.create_task(self.end(grace_s), name=f"end of {self.name}")

    async def fetch(self, index: int) -> None:
        raise NotImplementedError

    async def sweep(self, index: int) -> None:
        """Have it clear what was left behind."""

    async def end(self, grace_s: float) -> None:
        raise NotImplementedError


class SteppedReplica(Replica):
    """Fetches when it is told to; what was fetched is worked on, and its leases are renewed and
    watched, by the real actors.
    """

    def __init__(
        self,
        name: str,
        exchange: Exchange,
        line: Line,
        pipelines: list[SimulatedPipeline],
        *,
        rng: Random,
    ) -> None:
        super().__init__(name, exchange, line, pipelines)
        lock_graph = LockGraph(pipelines)
        lock_graph.check()
        hinter = PipelineHinter()
        for pipeline in pipelines:
            hinter.attach(pipeline.leased.name, lambda: None)
        self._rng = rng
        self._steps = [
            Steps(pipeline.build_run(self._session_factory, hinter, lock_graph))
            for pipeline in pipelines
        ]
        self._tending: dict[int, asyncio.Task[None]] = {}
        self._working: set[asyncio.Task[None]] = set()

    async def fetch(self, index: int) -> None:
        """Fetch, and begin to work on what was found, now or after it has waited in the queue."""
        steps = self._steps[index]
        with suppress(OSError):
            for _ in await steps.fetch_once():
                task = asyncio.create_task(self._work(steps), name=f"worker of {self.name}")
                self._working.add(task)
                task.add_done_callback(self._working.discard)
        if len(steps.run.heartbeater) and (
            index not in self._tending or self._tending[index].done()
        ):
            self._tending[index] = asyncio.create_task(
                _tend(steps), name=f"heartbeater of {self.name}"
            )

    async def sweep(self, index: int) -> None:
        with suppress(OSError):
            await self._steps[index].sweep_once()

    async def _work(self, steps: Steps[Any]) -> None:
        if self.is_alive and not self.pipelines[0].director.is_calm:
            await asyncio.sleep(self._rng.choice((0, 0, 0, 0.3, 2, 7)))
        with suppress(PipelineError):
            await steps.work_once()

    async def end(self, grace_s: float) -> None:
        """Release what was not started, let work go on for a while, then interrupt it in either
        of two ways.
        """
        for steps in self._steps:
            steps.run.shutdown()
        if self._working:
            await asyncio.wait(self._working, timeout=grace_s)
        for steps in self._steps:
            steps.run.context.grace_over = True
            for attempt in steps.run.context.running.values():
                attempt.end(Ended.INTERRUPTED)
        if self._rng.random() < 0.5:
            for task in self._working:
                task.cancel()
        if self._working:
            await asyncio.wait(self._working)
        for task in self._tending.values():
            task.cancel()
        if self._tending:
            await asyncio.wait(self._tending.values())
        await asyncio.gather(*(steps.run.drain(0) for steps in self._steps))


async def _tend(steps: Steps[Any]) -> None:
    heartbeater = steps.run.heartbeater
    watching = asyncio.create_task(heartbeater.watch(), name="lease watch")
    try:
        while len(heartbeater):
            await asyncio.sleep(steps.run.context.settings.heartbeat_interval.total_seconds())
            await heartbeater.beat_once()
    finally:
        watching.cancel()
        await asyncio.wait({watching})
