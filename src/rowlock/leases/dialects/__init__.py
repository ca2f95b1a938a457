"""What the two databases do differently: the same functions, in the same order, in ``postgresql.py`` and ``sqlite.py``.

The conformance tests run against both; a third database would be a third file with these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Column, ColumnElement, Dialect
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import TableValuedAlias

from rowlock.database.binds import check_supported
from rowlock.leases.claim_request import ClaimedRow, ClaimRequest, Lease
from rowlock.leases.dialects import postgresql, sqlite
from rowlock.rows.assignments import Slot
from rowlock.rows.leased_table import LeasedTable


class LeaseDialect(Protocol):
    """One database's way to claim and renew. Every function joins the connection's transaction, except `excluding`."""

    def excluding(self, leased: LeasedTable) -> AbstractAsyncContextManager[frozenset[Any]]:
        """Hold off those of this process who lock keys, around a claim; gives the keys that they hold."""
        ...

    async def claim(self, connection: AsyncConnection, request: ClaimRequest, held: frozenset[Any]) -> list[ClaimedRow]:
        """Lease the rows that `request` describes, save those of `held`; oldest first."""
        ...

    def claims_surely(self, request: ClaimRequest, dialect: Dialect) -> bool:
        """Return whether `claim` is one statement that cannot fail once rows are leased, so that it need not be rolled back."""
        ...

    def matches_leases(self, leased: LeasedTable) -> ColumnElement[bool]:
        """Return the condition that key and token of a row are those of one of the leases in `lease_parameters`."""
        ...

    def lease_parameters(self, leases: Sequence[Lease]) -> dict[str, Any]:
        """Return the parameters of `matches_leases` and of `unnested` for these leases."""
        ...

    def takes_arrays(self, slots: Sequence[Slot]) -> bool:
        """Return whether `unnested` can give values of these types."""
        ...

    def reads_alike(self, slots: Sequence[Slot]) -> bool:
        """Return whether values of these types are the same, in Python, whenever they are read; asked where no arrays are taken."""
        ...

    def unnested(self, leased: LeasedTable, slots: Sequence[Slot]) -> TableValuedAlias:
        """Return leases and values as the rows of a table: key, token, and the names of the slots.

        The parameter for a slot is ``rowlock_held_<name>``, a list.
        """
        ...

    def skip_locked(
        self, leased: LeasedTable, condition: ColumnElement[bool], *, limit: int | None = None
    ) -> ColumnElement[bool]:
        """Narrow `condition` for an UPDATE to at most `limit` rows that it need not wait for."""
        ...

    def is_unchanged(self, column: Column[Any], value: object) -> ColumnElement[bool]:
        """Return the condition that `column` has `value`, nulls being equal."""
        ...

    async def kept_as(
        self, connection: AsyncConnection, column: Column[Any], values: Iterable[datetime]
    ) -> list[ColumnElement[Any]]:
        """Return `values` as `column` keeps what was written of them."""
        ...


_DIALECTS: dict[str, LeaseDialect] = {"postgresql": postgresql, "sqlite": sqlite}


def dialect_named(name: str) -> LeaseDialect:
    """Return the dialect for SQLAlchemy's name of it.

    Raises:
        UnsupportedDialectError: rowlock does not know the database.
    """
    check_supported(name)
    return _DIALECTS[name]


def dialect_of(connection: AsyncConnection) -> LeaseDialect:
    """Return the dialect of the connection's database."""
    return dialect_named(connection.dialect.name)
