"""What a `submit` to a standing graph costs, and a row of a pipeline that makes one."""

from __future__ import annotations

import asyncio
from functools import partial

from drain import LOOKS_EVERY_S, drain_once
from graphs.costs import Way, costs_of, cpu_ratios, per_value
from host import Host, Job
from measure import Figures, Place, Scale, beside
from meter import Meter

from rowlock import Apply, Outcome, PipelineItem, PipelineManager
from rowlock.graph import Flow, GraphPipeline, Items, Outcomes, StandingGraph

STEPS = 4
CALLERS = 20
WORKERS = 100


async def nothing(value: int) -> int:
    return value


async def submits(place: Place, scale: Scale) -> Figures:
    """Return what a value costs on its way through four coroutines that do nothing."""
    del place
    count = scale.pick(4_000, 400)
    ways: dict[str, Way] = {
        "submit": partial(_submitted, count),
        f"submit, {CALLERS} callers": partial(_submitted_by_many, count),
        "a task": partial(_tasks, count),
        "awaited": partial(_awaited, count),
    }
    costs = await costs_of(ways, scale)
    return per_value(costs, count) | cpu_ratios(costs, [("submit", "a task")])


def _build(flow: Flow[int], *, lanes: int = 1) -> Flow[int]:
    for _ in range(STEPS):
        flow = flow.amap(nothing, lanes=lanes)
    return flow


async def _submitted(count: int) -> None:
    async with StandingGraph(_build) as standing:
        for value in range(count):
            assert await standing.submit(value) == value


async def _submitted_by_many(count: int) -> None:
    async with StandingGraph(_build) as standing:

        async def call() -> None:
            for value in range(count // CALLERS):
                assert await standing.submit(value) == value

        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(call())


async def _tasks(count: int) -> None:
    for value in range(count):
        assert await asyncio.create_task(_line(value)) == value


async def _awaited(count: int) -> None:
    for value in range(count):
        assert await _line(value) == value


async def _line(value: int) -> int:
    for _ in range(STEPS):
        value = await nothing(value)
    return value


class Through(GraphPipeline[Job]):
    """Settles a row behind four coroutines of a graph that do nothing."""

    model = Job

    def __init__(self, until: int, *, workers_num: int) -> None:
        self.begun = asyncio.Event()
        self._left = until
        super().__init__(workers_num=workers_num)

    def ready(self):  # noqa: ANN201
        return Job.status == "submitted"

    def build(self, items: Items[Job]) -> Outcomes:
        """Pass items through three coroutines, and settle them in the fourth."""
        for _ in range(STEPS - 1):
            items = items.amap(self.passed_on, lanes=WORKERS // STEPS)
        return items.amap(self.settled, lanes=WORKERS // STEPS)

    async def passed_on(self, item: PipelineItem[Job]) -> PipelineItem[Job]:
        return item

    async def settled(self, item: PipelineItem[Job]) -> Outcome:
        """Settle a row, and tell when the last one was begun."""
        del item
        self._left -= 1
        if not self._left:
            self.begun.set()
        return Apply({"status": "settled"})


async def drain(place: Place, scale: Scale) -> Figures:
    """Return rows per second through a graph, beside those of a pipeline without one."""

    async def plain() -> Figures:
        return await drain_once(place, rows=scale.rows, workers=WORKERS)

    theirs, figures = await beside(
        plain, partial(_drained, place, scale.rows), limit_first=scale.limit_first
    )
    return figures | {
        "plain rows/s": theirs["rows/s"],
        "plain client µs/row": theirs["client µs/row"],
        "of the plain drain": figures["rows/s"] / theirs["rows/s"],
    }


async def _drained(place: Place, rows: int) -> Figures:
    async with Host.opened(place.url) as host:
        await host.add(rows, Job)
        pipeline = Through(rows, workers_num=WORKERS)
        meter = await Meter.on(host.engine)
        meter.start()
        async with PipelineManager(host.session_factory, [pipeline]):
            await pipeline.begun.wait()
            while pipeline.statistics().counters["applied"] < rows:  # noqa: ASYNC110 - as in drain_once
                await asyncio.sleep(LOOKS_EVERY_S)
            meter.stop()
    return {"rows/s": rows / meter.seconds, **meter.cpu_per(rows)}
