"""Transactions of ours that hold the write lock of a SQLite file, and how one is ended that is out of time or left standing.

The one idea: a host that blocks its loop in the middle of a transaction keeps the whole file locked, for itself too: no lease could
be renewed. The bound that the loop cannot keep is kept from another thread, which closes the connection. SQLite rolls back what was
not committed, and to its owner the transaction is one that ran out of time.

One that is out of time on a loop that turns is ended in the same way before it is cancelled. Cancelled within a statement, its
connection would be closed with a cursor still open somewhere in a traceback, and SQLite keeps the lock until that is collected.

PostgreSQL locks rows only, and claims pass them over: there nothing of the kind is needed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from types import CoroutineType
from typing import Any, Protocol

from sqlalchemy import PoolProxiedConnection
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.clock import monotonic
from rowlock.errors import HostCodeError, TransactionTimeout, describe

logger = logging.getLogger(__name__)

STATEMENT_S_MAX = 0.1
"""How long a statement may still run whose transaction is given up, in seconds; then it is stopped."""
CLOSE_S_MAX = 2.0
"""How long closing a connection may take, in seconds: it waits for the statement that runs."""


class _Driver(Protocol):
    """What is used of aiosqlite's `Connection`: its statements run in a thread of its own, in order, so any loop may queue one."""

    def interrupt(self) -> Awaitable[None]: ...
    def rollback(self) -> Awaitable[None]: ...
    def close(self) -> Awaitable[None]: ...


class Standing:
    """One transaction, from the moment at which it asks for the write lock.

    Attributes:
        was_cut: its connection was closed under it.
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
            self._retire(self._pooled)
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S_MAX):
                    await _roll_back(self._driver)
                    await self._driver.close()
        logger.warning("A transaction was ended that kept the database locked while the event loop stood still")

    def give_up(self, task: asyncio.Task[Any]) -> asyncio.Task[None] | None:
        """End it, which is out of time, if its `task` waits for a statement; called on its own loop, before that is cancelled.

        Returns:
            What ends it, to be waited for.
        """
        driver, pooled = self._driver, self._pooled
        if driver is None or pooled is None or self.was_cut or not _is_within(task, driver):
            return None
        # Its cancellation closes the connection, but only then.
        self._retire(pooled)
        return asyncio.create_task(_roll_back(driver), name="rowlock: roll back what is out of time")

    def _retire(self, pooled: PoolProxiedConnection) -> None:
        self.was_cut = True
        # Not given to anybody else: the pool opens another one in its place.
        pooled.invalidate(soft=True)


_standing: set[Standing] = set()


def _is_within(task: asyncio.Task[Any], driver: _Driver) -> bool:
    """Whether `task` waits in code of the driver's package, and not in the host's."""
    package = type(driver).__module__.rpartition(".")[0]
    step: Any = task.get_coro()
    while isinstance(step, CoroutineType):
        if step.cr_frame is not None and step.cr_frame.f_globals["__name__"].startswith(package):
            return True
        step = step.cr_await
    return False


async def _roll_back(driver: _Driver) -> None:
    # Queued first, and only then is a statement stopped that keeps it waiting: SQLite would stop a rollback that comes later, too.
    # Both may find that the connection is gone.
    rolling_back = asyncio.ensure_future(driver.rollback())
    with suppress(Exception):
        _, pending = await asyncio.wait({rolling_back}, timeout=STATEMENT_S_MAX)
        if pending:
            await driver.interrupt()
        await rolling_back


@asynccontextmanager
async def standing(transaction: Standing, *, purpose: str, timeout_s: float) -> AsyncIterator[None]:
    """Be `transaction` for the time of the block.

    Raises:
        TransactionTimeout: it was cut. Whether it was committed is unknown.
    """
    error: Exception | None = None
    try:
        yield
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
