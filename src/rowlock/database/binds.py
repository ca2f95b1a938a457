"""Where the sessions of a host lead to, and whether leases can be kept there."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from sqlalchemy import Connection, Engine, ExceptionContext, event, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from rowlock.database.faults import is_of_the_server
from rowlock.dialects import dialect_named
from rowlock.errors import ConfigurationError, UnsupportedDialectError
from rowlock.rows.leased_table import LeasedTable

# To ask `event.contains` for each transaction takes longer than the rest of `bind_of`.
_LISTENED: WeakSet[Engine] = WeakSet()


def bind_of(session: AsyncSession, leased: LeasedTable) -> Engine | Connection:
    """Return the bind that the session's own routing gives for an UPDATE of the table, without
    connecting.

    A session that sends reads to a replica must not send ours there: a lease is read where it is
    written. From now on the bind's pool replaces its connections where one of them answers that
    its server is of no use.

    Raises:
        TypeError: it is no async session.
    """
    if not hasattr(session, "sync_session"):
        raise TypeError(f"pass an AsyncSession, not a {type(session).__name__}")
    bind = session.sync_session.get_bind(leased.mapper, clause=update(leased.table))
    if bind.engine not in _LISTENED:
        _LISTENED.add(bind.engine)
        event.listen(bind.engine, "handle_error", _replace_connections)
    return bind


def _replace_connections(context: ExceptionContext) -> None:
    """Have SQLAlchemy invalidate the connection, and each older one of the pool when it is next
    checked out: they lead to the same server, a standby after a failover, say.
    """
    if is_of_the_server(context.original_exception):
        context.is_disconnect = True


def check_session_factory(session_factory: Any, leased: LeasedTable) -> None:
    """Check, without connecting, that sessions of `session_factory` can keep leases of `leased`.

    Raises:
        ConfigurationError: it is not a factory of async sessions, is bound to nothing or to one
            connection, gives the same session again, commits every statement, or commits in two
            phases.
        UnsupportedDialectError: the database is unknown, or all its sessions would share one
            connection.
        ModelError: as `LeasedTable.check_token`.
    """
    session = session_factory() if callable(session_factory) else session_factory
    if not isinstance(session, AsyncSession) or session is session_factory:
        raise ConfigurationError(
            "session_factory must make AsyncSession objects: pass async_sessionmaker(engine)"
        )
    try:
        bind = bind_of(session, leased)
    except SQLAlchemyError as error:
        raise ConfigurationError(
            f"the session factory is bound to no engine for {leased.name}: {error}"
        ) from error
    check_supported(bind.dialect.name)
    leased.check_token(bind.dialect)
    if isinstance(bind, Connection):
        raise ConfigurationError(
            "the sessions are bound to one connection and would share its one transaction: pass"
            " async_sessionmaker(engine). In tests use a database of the test's own"
            " (rowlock.testing: rowlock_database) instead of a transaction around it"
        )
    if session_factory() is session:
        raise ConfigurationError(
            "the session factory gives the same session again (a scoped session?); every"
            " transaction needs one of its own: pass async_sessionmaker(engine)"
        )
    if _isolation_level(session, bind) == "AUTOCOMMIT":
        raise ConfigurationError(
            "every statement is committed by itself (isolation_level='AUTOCOMMIT' of the engine, or"
            " of execution_options), so nothing can be written under a guard; give rowlock sessions"
            " without it"
        )
    if session.sync_session.twophase:
        # Between the phases no connection has the row locks: neither a replica's death nor
        # `pg_terminate_backend` frees them.
        raise ConfigurationError(
            "the sessions commit in two phases (twophase=True), so a replica that dies between them"
            " would leave its rows locked for ever; SQLite and a PostgreSQL without"
            " max_prepared_transactions refuse it. Give rowlock sessions without it"
        )
    if isinstance(bind.engine.pool, StaticPool | SingletonThreadPool):
        raise UnsupportedDialectError(
            "all sessions of this engine share one connection, and with it one transaction (SQLite"
            " in memory?); use a file, or one in a temporary folder",
            dialect_name=bind.dialect.name,
        )


def check_supported(dialect_name: str) -> None:
    """Refuse a database that rowlock does not know, by SQLAlchemy's name of it.

    Raises:
        UnsupportedDialectError: says which ones it knows.
    """
    dialect_named(dialect_name)


def _isolation_level(session: AsyncSession, bind: Engine) -> object:
    """Return the isolation level that was asked for in the sessions' transactions; None is the
    database's own.
    """
    # Sessions have execution options since SQLAlchemy 2.1. Where several levels are given, the
    # narrowest scope wins.
    for options in (
        getattr(session.sync_session, "execution_options", {}),
        bind.get_execution_options(),
    ):
        if (level := options.get("isolation_level")) is not None:
            return level
    return getattr(bind.dialect, "_on_connect_isolation_level", None)
