"""What the two databases do differently: the same functions, in the same order, in ``postgresql.py`` and ``sqlite.py``.

The conformance tests run against both; a third database would be a third file with these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import Column, ColumnElement, Connection, Dialect, Engine, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.pool import SingletonThreadPool, StaticPool
from sqlalchemy.sql.selectable import TableValuedAlias

from rowlock.errors import ConfigurationError, UnsupportedDialectError
from rowlock.leases.dialects import postgresql, sqlite
from rowlock.leases.dialects.claim_request import ClaimedRow, ClaimRequest, Lease
from rowlock.rows.assignments import Slot
from rowlock.rows.database_time import SUPPORTED_DIALECTS
from rowlock.rows.leased_table import LeasedTable


class LeaseDialect(Protocol):
    """One database's way to claim and renew. Every function joins the connection's transaction, except `excluding`."""

    def hastened(self, connection: AsyncConnection) -> AbstractContextManager[None]:
        """Let the statements of a transaction of ours take fewer turns between threads in the block, if they take any."""
        ...

    async def begin_writing(self, connection: AsyncConnection, *, wait_s: float) -> None:
        """Make the transaction one that may write, before its first statement; waits for others for `wait_s` at most."""
        ...

    def excluding(self, leased: LeasedTable[Any]) -> AbstractAsyncContextManager[frozenset[Any]]:
        """Hold off those of this process who lock keys, around a claim; gives the keys that they hold."""
        ...

    async def claim(self, connection: AsyncConnection, request: ClaimRequest, held: frozenset[Any]) -> list[ClaimedRow]:
        """Lease the rows that `request` describes, save those of `held`; oldest first."""
        ...

    def claims_surely(self, request: ClaimRequest, dialect: Dialect) -> bool:
        """Return whether `claim` is one statement that cannot fail once rows are leased, so that it need not be rolled back."""
        ...

    def matches_leases(self, leased: LeasedTable[Any]) -> ColumnElement[bool]:
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

    def unnested(self, leased: LeasedTable[Any], slots: Sequence[Slot]) -> TableValuedAlias:
        """Return leases and values as the rows of a table: key, token, and the names of the slots.

        The parameter for a slot is ``rowlock_held_<name>``, a list.
        """
        ...

    def skip_locked(
        self, leased: LeasedTable[Any], condition: ColumnElement[bool], *, limit: int | None = None
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
    if name not in _DIALECTS:
        raise UnsupportedDialectError(
            f"rowlock runs on {' and '.join(SUPPORTED_DIALECTS)}, not on {name!r}; bind the session factory to one of them",
            dialect_name=name,
        )
    return _DIALECTS[name]


def dialect_of(connection: AsyncConnection) -> LeaseDialect:
    """Return the dialect of the connection's database."""
    return dialect_named(connection.dialect.name)


def bind_of(session: AsyncSession, leased: LeasedTable[Any]) -> Engine | Connection:
    """Return the bind that the session's own routing gives for an UPDATE of the table, without connecting.

    A session that sends reads to a replica must not send ours there: a lease is read where it is written.
    """
    return session.sync_session.get_bind(leased.mapper, clause=update(leased.table))


def check_session_factory(session_factory: Any, leased: LeasedTable[Any]) -> LeaseDialect:  # noqa: ANN401 - to be checked
    """Check, without connecting, that sessions of `session_factory` can keep leases of `leased`, and return the dialect.

    Raises:
        ConfigurationError: it is not a factory of async sessions, is bound to nothing or to one connection, gives the same
            session again, commits every statement, or commits in two phases.
        UnsupportedDialectError: the database is unknown, or all its sessions would share one connection.
        ModelError: as `LeasedTable.check_token`.
    """
    session = session_factory() if callable(session_factory) else session_factory
    if not isinstance(session, AsyncSession) or session is session_factory:
        raise ConfigurationError("session_factory must make AsyncSession objects: pass async_sessionmaker(engine)")
    try:
        bind = bind_of(session, leased)
    except SQLAlchemyError as error:
        raise ConfigurationError(f"the session factory is bound to no engine for {leased.name}: {error}") from error
    dialect = dialect_named(bind.dialect.name)
    leased.check_token(bind.dialect)
    if isinstance(bind, Connection):
        raise ConfigurationError(
            "the sessions are bound to one connection and would share its one transaction: pass async_sessionmaker(engine). "
            "In tests use a database of the test's own (rowlock.testing: rowlock_database) instead of a transaction around it"
        )
    if session_factory() is session:
        raise ConfigurationError(
            "the session factory gives the same session again (a scoped session?); every transaction needs one of its own: "
            "pass async_sessionmaker(engine)"
        )
    if _isolation_level(session, bind) == "AUTOCOMMIT":
        raise ConfigurationError(
            "every statement is committed by itself (isolation_level='AUTOCOMMIT' of the engine, or of execution_options), so "
            "nothing can be written under a guard; give rowlock sessions without it"
        )
    if session.sync_session.twophase:
        # Between the phases no connection has the row locks: neither a replica's death nor `pg_terminate_backend` frees them.
        raise ConfigurationError(
            "the sessions commit in two phases (twophase=True), so a replica that dies between them would leave its rows locked "
            "for ever; SQLite and a PostgreSQL without max_prepared_transactions refuse it. Give rowlock sessions without it"
        )
    if isinstance(bind.engine.pool, StaticPool | SingletonThreadPool):
        raise UnsupportedDialectError(
            "all sessions of this engine share one connection, and with it one transaction (SQLite in memory?); use a file, "
            "such as sqlite+aiosqlite:///app.db, or one in a temporary folder",
            dialect_name=bind.dialect.name,
        )
    return dialect


def _isolation_level(session: AsyncSession, bind: Engine) -> object:
    """Return the isolation level that was asked for in the sessions' transactions; None is the database's own."""
    # Sessions have execution options since SQLAlchemy 2.1. Where several levels are given, the narrowest scope wins.
    for options in (getattr(session.sync_session, "execution_options", {}), bind.get_execution_options()):
        if (level := options.get("isolation_level")) is not None:
            return level
    return getattr(bind.dialect, "_on_connect_isolation_level", None)
