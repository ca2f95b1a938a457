"""Tracks open transactions and aborts those that time out or whose event loop has stalled.

The one idea: a host that blocks its loop in the middle of a transaction keeps locked what that has
locked, for its own heartbeats too: on SQLite the whole file, on PostgreSQL the rows whose outcomes
are being written. The bound that the loop cannot keep is kept from another thread, which closes the
connection, or has the server end it. What was not committed is rolled back, and to its owner the
transaction is one that ran out of time.

One that is out of time on a loop that turns is rolled back before it is cancelled, on SQLite.
Cancelled within a statement, its connection would be closed with a cursor still open somewhere in a
traceback, and SQLite keeps the lock until that is collected.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import CoroutineType
from typing import Any

from sqlalchemy import Connection, PoolProxiedConnection
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.clock import monotonic
from rowlock.database.transaction_dialect import TRANSACTIONS, Connects
from rowlock.errors import TransactionTimeout
from rowlock.logs import get_logger
from rowlock.shielding import CancelPlan, log_in_thread

logger = get_logger(__name__)

OUT_OF_TIME = "rowlock: the database did not answer in time"
"""Message of the cancellation of a transaction that waits for a statement, perhaps one of the
host's own.
"""
CLOSE_S_MAX = 2.0
"""How long closing a connection may take, in seconds: it waits for the statement that runs."""


class OpenTransaction:
    """One transaction, from the moment at which it may take locks.

    Args:
        purpose: a verb phrase for the log.

    Attributes:
        was_aborted: its connection was closed under it.
        was_stalled: by another thread, since its event loop had stalled.
        was_rolled_back: before it was ready to commit, so that no COMMIT can have been sent.
        is_ready_to_commit: all is done but the COMMIT; written by whoever does it.
    """

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self.was_aborted = self.was_stalled = self.was_rolled_back = self.is_ready_to_commit = False
        self._connection: Connection | None = None
        self._pooled: PoolProxiedConnection | None = None
        self._began_at = 0.0
        self._thread = 0
        self._must_terminate = False
        # Whoever ends it first has it: the transaction itself, or another thread.
        self._ending = threading.Lock()

    def begins(self, connection: AsyncConnection) -> None:
        """Let it be aborted from now on."""
        assert connection.sync_connection is not None
        # Asked now: once it was released, a connection no longer says which one it had of the pool.
        self._connection, self._pooled = (
            connection.sync_connection,
            connection.sync_connection.connection,
        )
        self._began_at = monotonic()
        self._thread = threading.get_ident()
        _open.add(self)

    def ends(self) -> None:
        """Let it not be aborted any more."""
        _open.discard(self)
        with self._ending:
            self._connection = self._pooled = None

    async def abort_if_stalled(
        self, separate_pool: Connects, *, thread: int, older_than_s: float
    ) -> None:
        """End it, if it has stood for so long in the loop of `thread`; called in another one."""
        if self._thread != thread or monotonic() - self._began_at < older_than_s:
            return
        with self._ending:
            connection, pooled = self._connection, self._pooled
            if (
                connection is None
                or pooled is None
                or (self.was_aborted and not self._must_terminate)
            ):
                return
            driver: Any = pooled.driver_connection
            if driver is None:
                # Released already: it is committed or rolled back.
                return
            if not self.was_aborted:
                self._retire(pooled)
            self.was_stalled = True
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_S_MAX):
                dialect = TRANSACTIONS.on(connection.dialect.name)
                # Where it cannot be ended now, the next look tries again.
                self._must_terminate = dialect.is_ended_by_server
                ended = await dialect.end_stalled(
                    connection, driver, separate_pool, older_than_s=older_than_s
                )
                self._must_terminate = dialect.is_ended_by_server and not ended
                self.was_rolled_back = ended and not self.is_ready_to_commit
                await dialect.close_stalled(driver)
        if self._must_terminate:
            return
        told, extra = (
            "A transaction was ended that kept locks while the event loop stood still: %s",
            {"purpose": self._purpose},
        )
        log_in_thread(partial(logger.warning, told, self._purpose, extra=extra))

    def plan_cancel(self, task: asyncio.Task[Any]) -> CancelPlan:
        """End it, which is out of time, if its `task` waits for a statement; called on its own
        loop, before that is cancelled.
        """
        connection, pooled = self._connection, self._pooled
        if connection is None or pooled is None or self.was_aborted:
            return CancelPlan()
        driver: Any = pooled.driver_connection
        if not _is_within(task, driver):
            return CancelPlan()
        rolling_back = TRANSACTIONS.on(connection.dialect.name).roll_back_before_cancel(driver)
        if rolling_back is not None:
            # Its cancellation closes the connection, but only then.
            self._retire(pooled)
        return CancelPlan(OUT_OF_TIME, rolling_back)

    def _retire(self, pooled: PoolProxiedConnection) -> None:
        self.was_aborted = True
        # Not given to anybody else: the pool opens another one in its place.
        pooled.invalidate(soft=True)


_open: set[OpenTransaction] = set()


def _is_within(task: asyncio.Task[Any], driver: object) -> bool:
    """Whether `task` waits in code of the driver's package, and not in the host's."""
    package = type(driver).__module__.rpartition(".")[0]
    step: Any = task.get_coro()
    while isinstance(step, CoroutineType):
        if step.cr_frame is not None and step.cr_frame.f_globals["__name__"].startswith(package):
            return True
        step = step.cr_await
    return False


@asynccontextmanager
async def tracked_open(
    transaction: OpenTransaction, *, purpose: str, timeout_s: float
) -> AsyncIterator[None]:
    """Be `transaction` for the time of the block.

    Raises:
        TransactionTimeout: it was aborted. Whether it was committed is unknown.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:  # noqa: BLE001 - raised again below
        error = raised
    finally:
        transaction.ends()
    if transaction.was_aborted:
        # Also without an error: a COMMIT on a connection that was closed may say nothing.
        raise TransactionTimeout(
            purpose=purpose,
            timeout_s=timeout_s,
            was_aborted=transaction.was_stalled,
            was_rolled_back=transaction.was_rolled_back,
        ) from error
    if error is not None:
        raise error


async def abort_stalled(separate_pool: Connects, *, thread: int, older_than_s: float) -> None:
    """End the transactions of the loop in `thread` that have stood for longer than that; called
    on another loop.
    """
    for transaction in tuple(_open):
        await transaction.abort_if_stalled(separate_pool, thread=thread, older_than_s=older_than_s)
