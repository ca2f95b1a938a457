"""Transactions of ours that hold the write lock of a SQLite file, and how one is ended that its own event loop leaves standing.

The one idea: a host that blocks its loop in the middle of a transaction keeps the whole file locked, for itself too: no lease could
be renewed. The bound that the loop cannot keep is kept from another thread, which closes the connection. SQLite rolls back what was
not committed, and to its owner the transaction is one that ran out of time.

PostgreSQL locks rows only, and claims pass them over: there nothing of the kind is needed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from sqlalchemy import PoolProxiedConnection
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.clock import monotonic
from rowlock.errors import HostCodeError, TransactionTimeout, describe

logger = logging.getLogger(__name__)

CLOSE_S_MAX = 2.0
"""How long closing a connection may take, in seconds: it waits for the statement that runs."""


class _Driver(Protocol):
    """What is used of aiosqlite's `Connection`: its statements run in a thread of its own, so any loop may queue one."""

    def close(self) -> Awaitable[None]: ...


class Standing:
    """One transaction, from the moment at which it asks for the write lock.

    Attributes:
        was_cut: it was ended from another thread.
    """

    def __init__(self) -> None:
        self.was_cut = False
        self._pooled: PoolProxiedConnection | None = None
        self._driver: _Driver | None = None
        self._began_at = 0.0
        # Held by whoever ends it: a connection must not be closed once it may serve somebody else.
        self._ending = threading.Lock()

    def begins(self, connection: AsyncConnection) -> None:
        """Let it be cut from now on, if it is one that locks the whole file."""
        if connection.dialect.name == "sqlite" and connection.sync_connection is not None:
            self._pooled = connection.sync_connection.connection
            self._driver, self._began_at = self._pooled.driver_connection, monotonic()
            _standing.add(self)

    def ends(self) -> None:
        """Let it not be cut any more."""
        _standing.discard(self)
        with self._ending:
            self._driver = None

    async def cut(self, *, older_than_s: float) -> None:
        """End it, if it has stood for so long; called on another loop than its own."""
        if monotonic() - self._began_at < older_than_s:
            return
        with self._ending:
            if self._driver is None or self._pooled is None or self.was_cut:
                return
            self.was_cut = True
            # Not given to anybody else: the pool opens another one in its place.
            self._pooled.invalidate(soft=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S_MAX):
                    await self._driver.close()
        logger.warning("A transaction was ended that kept the database locked while the event loop stood still")


_standing: set[Standing] = set()


@asynccontextmanager
async def standing(*, purpose: str, timeout_s: float) -> AsyncIterator[Standing]:
    """Give the transaction of the block, which ends with it.

    Raises:
        TransactionTimeout: it was cut. Whether it was committed is unknown.
    """
    transaction = Standing()
    error: Exception | None = None
    try:
        yield transaction
    except Exception as raised:  # noqa: BLE001 - raised again below
        error = raised
    except (SystemExit, KeyboardInterrupt) as raised:
        # Out of a listener or a type of the host's: out of our task it would end the whole event loop.
        error = HostCodeError(describe(raised))
    finally:
        transaction.ends()
    if transaction.was_cut:
        # Also without an error: a COMMIT on a connection that was closed may say nothing.
        raise TransactionTimeout(purpose=purpose, timeout_s=timeout_s) from error
    if error is not None:
        raise error


async def cut_standing(*, older_than_s: float) -> None:
    """End the transactions of this process that keep a SQLite file locked for longer than that; from another loop than theirs."""
    for transaction in tuple(_standing):
        await transaction.cut(older_than_s=older_than_s)
