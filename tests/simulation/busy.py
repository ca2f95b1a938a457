"""Pipelines that never rest, and what they note: for the bounds on waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, Final

from sqlalchemy import ColumnElement, insert

from rowlock import Apply, Outcome, Pipeline, PipelineItem, PipelineManager
from rowlock.testing import TemporaryDatabase

from .pipelines import SimulatedPipeline, settings_for
from .tables import Base, Fleet, Instance, Mount, Volume

HINT_EVERY_S: Final = 0.1
FETCH_S: Final = 0.2
"""What a hinted claim and the transactions before it take here at most: other writers are waited
for. **Unit** virtual seconds.
"""

Act = Callable[[PipelineItem[Any]], Awaitable[Outcome | None]]


class BusyPipeline(SimulatedPipeline):
    """Finds every row ready at all times, and does what it was given.

    Attributes:
        worked: when an attempt on a row ended, by key.
    """

    min_processing_interval = 0

    def __init__(self, act: Act, **settings: Any) -> None:
        Pipeline.__init__(self, **{**settings_for(self.model), **settings})
        self.act = act
        self.worked: dict[int, list[float]] = {}

    def ready(self) -> ColumnElement[bool]:
        condition: ColumnElement[bool] = self.model.status != "done"
        return condition

    async def process(self, item: PipelineItem[Any]) -> Outcome:
        try:
            return await self.act(item) or Apply()
        finally:
            self.worked.setdefault(item.id, []).append(now())

    def longest_gap(self, key: int, *, since: float, until: float) -> float:
        times = [since, *(time for time in self.worked.get(key, []) if since < time < until), until]
        return max(later - earlier for earlier, later in pairwise(times))


class BusyFleets(BusyPipeline):
    model, locks = Fleet, (Instance,)


class BusyInstances(BusyPipeline):
    model = Instance


class BusyMounts(BusyPipeline):
    model, locks = Mount, (Volume,)


class BusyVolumes(BusyPipeline):
    model = Volume


def now() -> float:
    return asyncio.get_running_loop().time()


def takes(seconds: float) -> Act:
    async def act(_item: PipelineItem[Any]) -> None:
        await asyncio.sleep(seconds)

    return act


async def put(database: TemporaryDatabase, *rows: Any) -> None:
    """Create the tables and put rows in, given as mapped instances or as pairs of a model and
    values.
    """
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        for row in rows:
            if isinstance(row, tuple):
                await session.execute(insert(row[0]).values(row[1]))
            else:
                session.add(row)
                await session.flush()


@asynccontextmanager
async def at_work(
    database: TemporaryDatabase, *pipelines: BusyPipeline, hints: bool = True
) -> AsyncIterator[PipelineManager]:
    manager = PipelineManager(database.session_factory, pipelines)

    async def hint() -> None:
        while True:
            for pipeline in pipelines:
                manager.hinter.hint_fetch(pipeline.model)
            await asyncio.sleep(HINT_EVERY_S)

    manager.start()
    hinting = asyncio.create_task(hint()) if hints else None
    try:
        yield manager
    finally:
        if hinting is not None:
            hinting.cancel()
            await asyncio.wait({hinting})
        await manager.drain(0)
