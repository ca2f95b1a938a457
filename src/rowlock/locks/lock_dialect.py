"""What locks ask of each database: names and rows that are locked until the caller's transaction
ends.

Every method joins the transaction of the session or connection that is its first parameter, and
never ends it. Waits are in seconds: 0 asks once, None waits for as long as it takes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Mapper

from rowlock.dialects import DialectPart


class LockDialect(ABC):
    """One database's locks between transactions."""

    @abstractmethod
    async def hold_name(
        self, connection: AsyncConnection | AsyncSession, resource: str, timeout_s: float | None
    ) -> bool:
        """Lock a name until the transaction ends, and return whether that was granted in time.

        Raises:
            ConfigurationError: the lock could not last until the commit.
        """

    @abstractmethod
    async def hold_name_with_snapshot(
        self, session: AsyncSession, namespace: str, timeout_s: float | None
    ) -> bool:
        """Lock a name as `hold_name`, and see from then on what its last holder committed.

        Raises:
            ConfigurationError: the transaction has a snapshot from before the lock.
        """

    @abstractmethod
    async def hold_rows(
        self,
        session: AsyncSession,
        mapper: Mapper[Any],
        keys: tuple[Hashable, ...],
        *,
        timeout_s: float | None,
    ) -> bool:
        """Lock rows, all or none, until the transaction ends, and return whether that was granted
        in time.
        """

    @abstractmethod
    async def queue_to_write(
        self,
        session: AsyncSession,
        name: str,
        *,
        unless: Callable[[], Awaitable[bool]],
        timeout_s: float,
    ) -> bool:
        """Wait in a queue of this process before writing, where one writes at a time; return
        whether it has been joined here. The queue is left when the transaction ends.

        `unless` says whether nothing will be written; it is asked where waiting would keep others
        from writing.

        Raises:
            LockWaitTimeout: it took longer than `timeout_s`.
        """

    @abstractmethod
    def leave_queue(self, session: AsyncSession, name: str) -> None:
        """Let the next one write before the transaction has ended; only where `queue_to_write`
        joined and nothing was written.
        """


LOCKS: DialectPart[LockDialect] = DialectPart("locks", LockDialect)


def locks_of(connection: AsyncConnection | AsyncSession) -> LockDialect:
    """Return the locks of a database, without connecting.

    Raises:
        TypeError: it is neither an `AsyncSession` nor an `AsyncConnection`.
        UnsupportedDialectError: rowlock does not know the database.
    """
    if isinstance(connection, AsyncConnection):
        return LOCKS.of(connection)
    if isinstance(connection, AsyncSession):
        return LOCKS.on(connection.get_bind().dialect.name)
    raise TypeError(
        f"pass an AsyncSession or an AsyncConnection, not a {type(connection).__name__}"
    )
