"""A place in line for each claim of this process, so that a crowd of pipelines does not fight itself for the database.

The one idea: claims share the connections that the engine's pool keeps. More at once would open further connections and close them
again, which costs more than the claims, and leave none to the host; on SQLite, where one writes at a time, they would poll for the
file and some of them in vain. Who waits here has sent nothing yet, so no time of its transaction passes.

It keeps order and is no limit: a claim that has waited for long goes on all the same, since those before it may hang.

Not here: the row locks and locksets that keep claims apart.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, Pool, QueuePool

CONNECTIONS = 5
"""How many claims are sent at once where a pool does not say how many connections it keeps."""


@asynccontextmanager
async def in_line(engine: Engine, *, wait_s: float) -> AsyncIterator[None]:
    """Wait for a place among the claims that are sent over `engine` from the running loop, `wait_s` at most."""
    places = _places_of(engine)
    has_place = False
    try:
        async with asyncio.timeout(wait_s):
            has_place = await places.acquire()
    except TimeoutError:
        pass
    try:
        yield
    finally:
        if has_place:
            places.release()


def _places_of(engine: Engine) -> asyncio.Semaphore:
    loop = asyncio.get_running_loop()
    # Loops of other threads look here, too.
    with _places_lock:
        if loop not in _places:
            # A semaphore that was waited for knows its loop, and so keeps its own key alive.
            for ended in [known for known in _places if known.is_closed()]:
                del _places[ended]
            _places[loop] = WeakKeyDictionary()
        by_pool = _places[loop]
        if engine.pool not in by_pool:
            by_pool[engine.pool] = asyncio.Semaphore(_claims_at_once(engine))
        return by_pool[engine.pool]


def _claims_at_once(engine: Engine) -> int:
    if engine.dialect.name == "sqlite":
        return 1
    kept = engine.pool.size() if isinstance(engine.pool, QueuePool) else 0
    return kept or CONNECTIONS


_places_lock = threading.Lock()
_places: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakKeyDictionary[Pool, asyncio.Semaphore]] = WeakKeyDictionary()
