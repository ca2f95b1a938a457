"""The submission lock: on SQLite the submissions of one process go one after the other, so the
ceiling is exact there.

One writes at a time anyway, and those who wait for the file have no order: some would wait for too
long. So they wait for each other in a queue first, each until the transaction of the one before has
ended.

A host whose engine begins transactions itself has read from the moment in which it began; whoever
writes after another one has committed is refused at once. There the lock is the file's write lock
as well.

Not here: other processes, and PostgreSQL, where nobody waits.

Source: SQLAlchemy, "Serializable isolation / Savepoints / Transactional DDL"; SQLite, "Isolation In
SQLite".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.database.binds import bind_of
from rowlock.errors import LockWaitTimeout
from rowlock.locks.unique_names import outside_of_transaction, write_alone
from rowlock.locks.until_commit import (
    hold_in_process,
    is_held_in_process,
    is_in_transaction,
    joined_connection,
    release_in_process,
)
from rowlock.rows.leased_table import LeasedTable

SUBMIT_WAIT_S_MAX = 30.0
"""How long a submission waits for its lock on SQLite, and then for a file that others write to,
in seconds.
"""


class SubmissionLock:
    """The lock of one table's submissions, taken by one session of the process at a time."""

    def __init__(self, leased: LeasedTable) -> None:
        self._leased = leased
        self._name = f"submissions to {leased.table.name}"

    async def acquire(
        self, session: AsyncSession, *, unless: Callable[[], Awaitable[bool]]
    ) -> bool:
        """Acquire the lock for the session, up to the end of its transaction; returns whether it
        was acquired here.

        Args:
            session: joined.
            unless: whether nothing will be written; asked where the lock would keep others from
                writing.

        Raises:
            LockWaitTimeout: it did not come in time.
        """
        if not self._is_needed(session) or is_held_in_process(session, self._name):
            return False
        # Before the wait, so that the holder never wants for one.
        connection, is_new = await joined_connection(session)
        begun_by_host = await is_in_transaction(connection)
        if begun_by_host and (not is_new or await unless()):
            return False  # it has the file already, or a snapshot that a wait would make older
        async with outside_of_transaction(connection):
            await self._wait(session, connection, writes=begun_by_host)
        return True

    def release(self, session: AsyncSession) -> None:
        """Let the next one go on before the transaction has ended; only where nothing was
        written.
        """
        release_in_process(session, self._name)

    def _is_needed(self, session: AsyncSession) -> bool:
        # A session with an engine for each class has no one transaction whose end would be told.
        is_bound = session.bind is not None and isinstance(session.get_bind(), Engine)
        return is_bound and bind_of(session, self._leased).dialect.name == "sqlite"

    async def _wait(
        self, session: AsyncSession, connection: AsyncConnection, *, writes: bool
    ) -> None:
        held = await hold_in_process(session, self._name, SUBMIT_WAIT_S_MAX)
        if held and writes and not await write_alone(session, connection, SUBMIT_WAIT_S_MAX):
            self.release(session)
            held = False
        if not held:
            raise LockWaitTimeout(namespace=self._name, keys=(), timeout_s=SUBMIT_WAIT_S_MAX)
