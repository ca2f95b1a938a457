"""How tests of the engine over wool set a scene: an engine that knows its workers, and an offer
to the first of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import wool

from rowlock.dispatch import Progress, Task
from rowlock.dispatch.engine import Events
from rowlock.dispatch.engines.wool import WoolEngine

from ..host import HANG_S_MAX
from .test_engines import task_of, until


@asynccontextmanager
async def opened(namespace: str, *, workers: int = 2) -> AsyncIterator[WoolEngine]:
    async with WoolEngine(wool.LocalDiscovery(namespace)) as engine:
        await until(lambda: len(engine.workers()) == workers)
        yield engine


async def heard_until_progress(events: Events) -> Progress:
    async with asyncio.timeout(HANG_S_MAX):
        while not isinstance(event := await anext(events), Progress):
            pass
    return event


async def offered(
    engine: WoolEngine, handler: Callable[[Task[Any]], Any], row: Any = None
) -> Events:
    return await engine.offer(min(engine.workers()), task_of(handler, row))


@asynccontextmanager
async def offering(
    engine: WoolEngine, handler: Callable[[Task[Any]], Any], row: Any = None
) -> AsyncIterator[Events]:
    """Offer to the first worker, and close at the end."""
    async with aclosing(await offered(engine, handler, row)) as events:
        yield events
