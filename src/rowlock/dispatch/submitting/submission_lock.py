"""The submission lock: where one writes at a time, the submissions of one process go one after the
other, and the ceiling is exact.

Those who wait for such a database have no order: some would wait for too long. So they wait for
each other in a queue first, each until the transaction of the one before has ended.

Not here: other processes, and how a database queues its writers (`LockDialect.queue_to_write`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.database.binds import bind_of
from rowlock.locks.lock_dialect import LOCKS, LockDialect
from rowlock.rows.leased_table import LeasedTable

SUBMIT_WAIT_S_MAX = 30.0
"""How long a submission waits for its lock, and then for a database that others write to, in
seconds.
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
        # A session with an engine for each class has no one transaction whose end would be told.
        is_bound = session.bind is not None and isinstance(session.get_bind(), Engine)
        return is_bound and await self._locks(session).queue_to_write(
            session, self._name, unless=unless, timeout_s=SUBMIT_WAIT_S_MAX
        )

    def release(self, session: AsyncSession) -> None:
        """Let the next one go on before the transaction has ended; only where nothing was
        written.
        """
        self._locks(session).leave_queue(session, self._name)

    def _locks(self, session: AsyncSession) -> LockDialect:
        return LOCKS.on(bind_of(session, self._leased).dialect.name)
