"""A slot for each claim of this process, so that a crowd of pipelines does not fight itself for the
database.

The one idea: claims share the connections that the engine's pool keeps. More at once would open
further connections and close them again, which costs more than the claims, and leave none to the
host; on SQLite, where one writes at a time, they would poll for the file and some of them in vain.
Who waits here has sent nothing yet, so no time of its transaction passes.

It keeps order and is no limit: a claim that has waited for long goes on all the same, since those
before it may hang.

Not here: the row locks and locksets that keep claims apart.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, Pool, QueuePool

from rowlock.database.transaction_dialect import TRANSACTIONS

CONNECTIONS_AT_ONCE = 5
"""How many claims are sent at once where a pool does not say how many connections it keeps."""


@asynccontextmanager
async def claim_slot(engine: Engine, *, wait_s: float) -> AsyncIterator[None]:
    """Wait for a slot among the claims that are sent over `engine` from the running loop,
    `wait_s` at most.
    """
    slots = _slots_of(engine)
    has_slot = False
    try:
        async with asyncio.timeout(wait_s):
            has_slot = await slots.acquire()
    except TimeoutError:
        pass
    try:
        yield
    finally:
        if has_slot:
            slots.release()


def _slots_of(engine: Engine) -> asyncio.Semaphore:
    loop = asyncio.get_running_loop()
    # Loops of other threads look here, too.
    with _slots_lock:
        if loop not in _slots:
            # A semaphore that was waited for knows its loop, and so keeps its own key alive.
            for ended in [known for known in _slots if known.is_closed()]:
                del _slots[ended]
            _slots[loop] = WeakKeyDictionary()
        by_pool = _slots[loop]
        if engine.pool not in by_pool:
            by_pool[engine.pool] = asyncio.Semaphore(_claims_at_once(engine))
        return by_pool[engine.pool]


def _claims_at_once(engine: Engine) -> int:
    if (most := TRANSACTIONS.on(engine.dialect.name).claims_at_once) is not None:
        return most
    kept = engine.pool.size() if isinstance(engine.pool, QueuePool) else 0
    return kept or CONNECTIONS_AT_ONCE


_slots_lock = threading.Lock()
_slots: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakKeyDictionary[Pool, asyncio.Semaphore]] = (
    WeakKeyDictionary()
)
