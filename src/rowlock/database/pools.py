"""How many connections we take: a slot for each claim within the host's pool, and a pool of our own
for leases that must be renewed whatever the host does.

*Slots*: claims share the connections that the engine's pool keeps. More at once would open and
close others, which costs more than the claims, and leave none to the host; on SQLite they would
poll for the file. A claim that has waited for long goes on, since those before it may hang.

*The separate pool*: an engine like the host's, with the same way to connect and the same listeners,
so that a renewal waits for no connection that the host keeps and can run on another event loop. A
statement that waits for a locked SQLite file cannot be cancelled, so that wait is bounded.

Source: `Engine.dispose` of SQLAlchemy replaces the pool in the same way, by `Pool.recreate`.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, Pool, QueuePool
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from rowlock.database.transaction import SessionFactory
from rowlock.dialects.contract import TRANSACTIONS

CONNECTIONS_AT_ONCE = 5
"""How many claims are sent at once where a pool does not say how many connections it keeps."""


@asynccontextmanager
async def claim_slot(engine: Engine, *, wait_s: float) -> AsyncIterator[None]:
    """Wait, `wait_s` at most, for a slot."""
    slots, has_slot = _slots_of(engine), False
    with suppress(TimeoutError):
        # No timer where there is nothing to wait for: this is on the way of every claim.
        async with asyncio.timeout(wait_s) if slots.locked() else nullcontext():
            has_slot = await slots.acquire()
    try:
        yield
    finally:
        if has_slot:
            slots.release()


_slots: WeakKeyDictionary[Pool, tuple[asyncio.AbstractEventLoop, asyncio.Semaphore]] = (
    WeakKeyDictionary()
)


def _slots_of(engine: Engine) -> asyncio.Semaphore:
    loop, (of, slots) = asyncio.get_running_loop(), _slots.get(engine.pool, (None, None))
    # A pool serves one loop at a time, and that of the next `asyncio.run` begins anew.
    if slots is None or of is not loop:
        most = TRANSACTIONS.on(engine.dialect.name).claims_at_once
        kept = engine.pool.size() if isinstance(engine.pool, QueuePool) else 0
        slots = asyncio.Semaphore(most or kept or CONNECTIONS_AT_ONCE)
        _slots[engine.pool] = loop, slots
    return slots


class SeparatePool:
    """Sessions as the host makes them, on connections of our own; for one event loop only."""

    def __init__(self, session_factory: SessionFactory, *, file_wait: timedelta) -> None:
        self._session_factory = session_factory
        self._file_wait = file_wait
        self._engines: dict[Pool, Engine] = {}

    def __call__(self) -> AsyncSession:
        session = self._session_factory()
        route = session.sync_session.get_bind
        # One each, or a session that asks twice (in a listener of the host's, say) would be in two
        # transactions.
        clones: dict[Any, Engine] = {}

        def get_bind(*arguments: Any, **named: Any) -> Any:
            engine: Any = route(*arguments, **named)
            if engine not in clones:
                clones[engine] = clone = self._clone(engine)
                clones[clone] = clone
            return clones[engine]

        session.sync_session.get_bind = get_bind  # type: ignore[method-assign]
        return session

    def connect(self, engine: Engine) -> AsyncConnection:
        return AsyncEngine(self._clone(engine)).connect()

    async def close(self) -> None:
        """In the loop that used the connections."""
        while self._engines:
            _, engine = self._engines.popitem()
            await AsyncEngine(engine).dispose()

    def _clone(self, engine: Engine) -> Engine:
        if (proxied := getattr(engine, "_proxied", None)) is not None:
            # Made by `execution_options`, perhaps for this one session: it has no pool of its own,
            # but asks the engine that it was made of.
            clone = copy.copy(engine)
            clone._proxied = self._clone(proxied)  # type: ignore[attr-defined]
            return clone
        if engine.pool not in self._engines:
            self._engines[engine.pool] = self._clone_of_root(engine)
        clone = self._engines[engine.pool]
        # Whether there are listeners at all is kept beside them, and a host may add its first one
        # later.
        clone._has_events = engine._has_events
        return clone

    def _clone_of_root(self, engine: Engine) -> Engine:
        # Made when it is first asked for; a copy without it would have listeners of its own.
        assert engine.dispatch is not None
        clone = copy.copy(engine)
        clone.pool = engine.pool.recreate()
        # After the host's own listeners, which may bound them, too.
        TRANSACTIONS.on(engine.dialect.name).bound_waits(clone.pool, self._file_wait)
        return clone
