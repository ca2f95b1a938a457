"""What leases ask of each database: to claim, to find rows by their leases, to compare.

The conformance tests (``tests/conformance``) run against every dialect, and say what each of these
must do.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, ColumnElement
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import TableValuedAlias

from rowlock.database.binds import bind_of
from rowlock.database.transaction import SessionFactory
from rowlock.dialects import DialectPart
from rowlock.errors import LockWaitTimeout
from rowlock.leases.claim_request import ClaimedRow, ClaimRequest, Lease
from rowlock.leases.indexes.plans import Query
from rowlock.rows.assignments import Slot
from rowlock.rows.leased_table import LeasedTable


class LeaseDialect(ABC):
    """One database's way to claim and renew. Every function joins the connection's transaction,
    except `excluding`.
    """

    @abstractmethod
    def excluding(self, leased: LeasedTable) -> AbstractAsyncContextManager[frozenset[Any]]:
        """Hold off those of this process who lock keys, around a claim; gives the keys that they
        hold.
        """

    @abstractmethod
    async def claim(
        self, connection: AsyncConnection, request: ClaimRequest, held: frozenset[Any]
    ) -> list[ClaimedRow]:
        """Lease the rows that `request` describes, save those of `held`; oldest first."""

    @abstractmethod
    async def release_claim(self, connection: AsyncConnection, request: ClaimRequest) -> None:
        """Release the rows of a claim that was committed and whose answer could not be read, as
        they were before; one that is locked at the moment is left to its expiry.
        """

    @abstractmethod
    def matches_leases(self, leased: LeasedTable) -> ColumnElement[bool]:
        """Return the condition that key and token of a row are those of one of the leases in
        `lease_parameters`.
        """

    @abstractmethod
    def lease_parameters(self, leases: Sequence[Lease]) -> dict[str, Any]:
        """Return the parameters of `matches_leases` and of `unnested` for these leases."""

    @abstractmethod
    def takes_arrays(self, slots: Sequence[Slot]) -> bool:
        """Return whether `unnested` can give values of these types."""

    @abstractmethod
    def reads_alike(self, slots: Sequence[Slot]) -> bool:
        """Return whether values of these types are the same, in Python, whenever they are read;
        asked where no arrays are taken.
        """

    @abstractmethod
    def unnested(self, leased: LeasedTable, slots: Sequence[Slot]) -> TableValuedAlias:
        """Return leases and values as the rows of a table: key, token, and the names of the slots.

        The parameter for a slot is ``rowlock_held_<name>``, a list.
        """

    @abstractmethod
    def skip_locked(
        self, leased: LeasedTable, condition: ColumnElement[bool], *, limit: int | None = None
    ) -> ColumnElement[bool]:
        """Narrow `condition` for an UPDATE to at most `limit` rows that it need not wait for."""

    @abstractmethod
    def is_unchanged(self, column: Column[Any], value: object) -> ColumnElement[bool]:
        """Return the condition that `column` has `value`, nulls being equal."""

    @abstractmethod
    async def kept_as(
        self, connection: AsyncConnection, column: Column[Any], values: Iterable[datetime]
    ) -> list[ColumnElement[Any]]:
        """Return `values` as `column` keeps what was written of them."""

    @abstractmethod
    async def is_served_by(
        self, connection: AsyncConnection, leased: LeasedTable, *, query: Query, index: str
    ) -> bool:
        """Return whether the planner can read an index for `query`, in its order, however little
        that may be worth; `query` is a SELECT of the leased table alone.
        """


LEASES: DialectPart[LeaseDialect] = DialectPart("leases", LeaseDialect)


@asynccontextmanager
async def lockset_guard(
    session_factory: SessionFactory, leased: LeasedTable, *, timeout: timedelta
) -> AsyncIterator[frozenset[Any]]:
    """Hold off those of this process who take rows by a lockset, around a transaction that leases
    rows; gives their keys.

    Raises:
        LockWaitTimeout: somebody kept the lockset still for so long.
    """
    dialect = LEASES.on(bind_of(session_factory(), leased).dialect.name)
    async with AsyncExitStack() as stack:
        wait_s = timeout.total_seconds()
        try:
            # Bounded by itself: once leases are sent for, they must not be dropped by anybody's
            # timeout.
            async with asyncio.timeout(wait_s):
                held = await stack.enter_async_context(dialect.excluding(leased))
        except TimeoutError:
            raise LockWaitTimeout(namespace=leased.table.name, keys=(), timeout_s=wait_s) from None
        yield held
