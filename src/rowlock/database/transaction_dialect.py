"""What transactions ask of each database: how one begins, how many claim at once, and how one is
ended from outside.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, Pool
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.dialects import DialectPart


class Connects(Protocol):
    """Gives connections to the same databases beside the host's own:
    ``database/pools.py``.
    """

    def connect(self, engine: Engine) -> AsyncConnection:
        """Return a connection that is to be entered."""
        ...


class TransactionDialect(ABC):
    """One database's connections and transactions.

    Attributes:
        commits_single_statements: whether one statement under AUTOCOMMIT is a transaction by
            itself, with fewer round trips.
        claims_at_once: how many claims of a process may be sent at once; None for as many as the
            pool keeps connections.
        is_ended_by_server: whether a stalled transaction is ended by its server, which may take
            several attempts.
    """

    commits_single_statements: bool
    claims_at_once: int | None
    is_ended_by_server: bool

    @abstractmethod
    def hastened(self, connection: AsyncConnection) -> AbstractContextManager[None]:
        """Let statements take fewer turns between threads in the block, where the driver has a
        thread.
        """

    @abstractmethod
    def is_begun_before(self, error: Exception) -> bool:
        """Return whether AUTOCOMMIT was refused, and nothing else, because a listener of the host's
        had begun a transaction on the connection.
        """

    @abstractmethod
    async def begin_writing(self, connection: AsyncConnection, *, wait_s: float) -> None:
        """Make the transaction one that may write, before its first statement; waits for writers
        for `wait_s` at most.
        """

    @abstractmethod
    def bound_waits(self, pool: Pool, wait: timedelta) -> None:
        """Let no connection that `pool` opens from now on wait longer for a lock, where the wait
        cannot be cancelled.
        """

    @abstractmethod
    def roll_back_before_cancel(self, driver: Any) -> asyncio.Task[bool] | None:
        """Begin to roll back what is out of time, on its own loop, if that must be done before its
        statement is cancelled.
        """

    @abstractmethod
    async def end_stalled(
        self,
        connection: Connection,
        driver: Any,
        separate_pool: Connects,
        *,
        older_than_s: float,
    ) -> bool:
        """End a transaction of another thread's loop that has been open for `older_than_s` at
        least, and return whether it was rolled back. Of `connection` only the engine may be used
        here.
        """

    @abstractmethod
    async def close_stalled(self, driver: Any) -> None:
        """Close the driver's connection of a transaction that was ended, if another loop may."""


TRANSACTIONS: DialectPart[TransactionDialect] = DialectPart("transactions", TransactionDialect)
