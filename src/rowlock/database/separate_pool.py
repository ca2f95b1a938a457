"""Connections of our own to the host's databases, beside the host's pool: for leases that must be
renewed whatever the host does.

The one idea: an engine like the host's, with the same way to connect and the same listeners, but
with a pool of its own. So a renewal waits for no connection that the host keeps, and it can run on
another event loop, in another thread. A pool opens a connection when one is asked for and keeps it:
in practice there is one, at most as many as the host's own pool may have.

A statement that waits for a locked SQLite file cannot be cancelled, so on these connections it does
not wait longer than it may.

Not here: which loop that is (``pipelines/renewing/heartbeat_thread.py``).

Source: `Engine.dispose` of SQLAlchemy replaces the pool in the same way, by `Pool.recreate`.
"""

from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

from sqlalchemy import Engine, Pool
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from rowlock.database.transaction import SessionFactory
from rowlock.database.transaction_dialect import TRANSACTIONS


class SeparatePool:
    """Sessions as the host makes them, on connections of our own.

    Used by one event loop only, the one that first asks for a connection.
    """

    def __init__(self, session_factory: SessionFactory, *, file_wait: timedelta) -> None:
        """Open nothing yet; a statement waits for a locked SQLite file for `file_wait` at most."""
        self._session_factory = session_factory
        self._file_wait = file_wait
        self._engines: dict[Pool, Engine] = {}

    def __call__(self) -> AsyncSession:
        """Return a new session of the host's factory; its statements go to the engines that they
        would go to, by our pools.
        """
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
        """Return a connection to the database of the host's `engine`, to be entered."""
        return AsyncEngine(self._clone(engine)).connect()

    async def close(self) -> None:
        """Close every connection; in the loop that used them."""
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
