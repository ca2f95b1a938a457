"""A host process for the dispatch walks: ``python replica.py URL WORKERS``; dispatches
until told to end, by a line or a signal.

Tells each attempt that it begins, one JSON object a line. A scene named ``held`` waits for ever;
the others take a moment.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock import PipelineManager
from rowlock.dispatch import AttemptEvent, Completed, DispatchPipeline, LoopEngine, StageDone, Task
from tests.dispatch.renders import Render

WORK_S = 0.05


async def render(task: Task[Render]) -> AsyncIterator[AttemptEvent]:
    tell(event="Begun", key=task.row.dedup_key, stages=sorted(task.stages))
    yield StageDone("raw")
    if task.row.scene == "held":
        await asyncio.Event().wait()
    await asyncio.sleep(WORK_S)
    yield Completed({"url": task.row.scene})


def tell(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


async def main(url: str, workers: str) -> None:
    engine = create_async_engine(url)
    renders = DispatchPipeline(
        Render,
        handler=render,
        engine=LoopEngine(int(workers)),
        lock_timeout=4,
        heartbeat_trigger=3,
        heartbeat_interval=0.1,
        renew_timeout=1,
        heartbeat=0.5,
        retry_interval=0.5,
        fetch_delays=(0.05, 0.1, 0.2),
    )
    async with PipelineManager(async_sessionmaker(engine), [renders]):
        tell(event="Ready")
        await asyncio.to_thread(sys.stdin.readline)
    await engine.dispose()
    tell(event="Done")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
