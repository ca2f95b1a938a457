"""Transactions that end: each runs whole in a task of its own, shielded from its caller's
cancellation and bounded in time.

A transaction that the database rolled back for another one's sake (a serialization failure, a
deadlock) is run again here, since no caller could tell it from one that was never begun.

The trap: a host that blocks its loop in the middle of a transaction keeps locked what that has
locked, for its own heartbeats too. The bound that the loop cannot keep is kept from another thread
(`abort_stalled`), which closes the connection, or has the server end it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from types import CoroutineType
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, Engine, ExceptionContext, PoolProxiedConnection, event, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from rowlock.clock import exponential, monotonic, sleep
from rowlock.database.faults import is_conflict, is_of_the_server
from rowlock.dialects import dialect_named
from rowlock.dialects.contract import TRANSACTIONS, Connect
from rowlock.errors import ConfigurationError, TransactionTimeout, UnsupportedDialectError
from rowlock.logs import get_logger
from rowlock.rows.leased_table import LeasedTable
from rowlock.tasks import CancelPlan, finish, log_in_thread

logger = get_logger(__name__)
T = TypeVar("T")
SessionFactory: TypeAlias = Callable[[], AsyncSession]

OUT_OF_TIME = "rowlock: the database did not answer in time"
"""Message of the cancellation of a transaction that waits for a statement."""
CLOSE_S_MAX = 2.0
"""How long closing a connection may take, in seconds: it waits for the statement that runs."""
WAITING_MAX = 0.5
"""Largest share of its time that a transaction may wait for its begin."""
CONFLICTS_MAX = 6
"""How often a transaction may be rolled back for another's sake before that is raised."""
CONFLICT_DELAY_S = 0.01
CONFLICT_DELAY_S_MAX = 0.2
"""Shortest and longest rest before it is run again, in seconds."""

# Engines that are made of one another, for each session perhaps, share a dialect, and SQLAlchemy
# keeps listeners there. To ask `event.contains` takes longer than the rest of `bind_of`.
_LISTENED: WeakSet[Any] = WeakSet()


def bind_of(session: AsyncSession, leased: LeasedTable) -> Engine | Connection:
    """Return the bind that the session's own routing gives for an UPDATE: a lease is read where it
    is written. From now on its pool replaces the connections to a server of no use.
    """
    if not hasattr(session, "sync_session"):
        raise TypeError(f"pass an AsyncSession, not a {type(session).__name__}")
    clause = leased.prepared(bind_of, lambda: update(leased.table))
    bind = session.sync_session.get_bind(leased.mapper, clause=clause)
    if bind.dialect not in _LISTENED:
        _LISTENED.add(bind.dialect)
        event.listen(bind.engine, "handle_error", _replace_connections)
    return bind


def _replace_connections(context: ExceptionContext) -> None:
    """Have SQLAlchemy invalidate all connections to a server of no use, such as a standby."""
    if is_of_the_server(context.original_exception):
        context.is_disconnect = True


def check_session_factory(session_factory: Any, leased: LeasedTable) -> None:
    """Refuse, without connecting, a factory whose sessions cannot keep leases of `leased`: by
    `ConfigurationError`, and by `ModelError` for its tokens.
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
    dialect_named(bind.dialect.name)  # refuses a database that rowlock does not know
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
    refuse_one_connection(bind.engine)


def refuse_one_connection(engine: Engine) -> None:
    if isinstance(engine.pool, StaticPool | SingletonThreadPool):
        raise UnsupportedDialectError(
            "all sessions of this engine share one connection, and with it one transaction (SQLite"
            " in memory?); use a file, or one in a temporary folder",
            dialect_name=engine.dialect.name,
        )


def _isolation_level(session: AsyncSession, bind: Engine) -> object:
    """Return the isolation level that was asked for; None is the database's own."""
    # Sessions have execution options since SQLAlchemy 2.1. Where several levels are given, the
    # narrowest scope wins.
    of_session = getattr(session.sync_session, "execution_options", {})
    for options in (of_session, bind.get_execution_options()):
        if (level := options.get("isolation_level")) is not None:
            return level
    return getattr(bind.dialect, "_on_connect_isolation_level", None)


class OpenTransaction:
    """One transaction, from the moment at which it may take locks.

    Attributes:
        was_aborted: its connection was closed under it.
        was_stalled: by another thread, since its event loop had stalled.
        was_rolled_back: before it was ready to commit, so that no COMMIT can have been sent.
    """

    def __init__(self, purpose: str) -> None:
        self.purpose = purpose
        self.was_aborted = self.was_stalled = self.was_rolled_back = self.is_ready_to_commit = False
        self._pooled: PoolProxiedConnection | None = None
        self._is_over = False
        # It is ended once: by the transaction itself, or by another thread.
        self._ending = threading.Lock()

    def begins(self, connection: AsyncConnection) -> None:
        """From now on it may be aborted."""
        assert connection.sync_connection is not None
        # Asked now: once it was released, a connection no longer says which one it had of the pool.
        self._pooled = connection.sync_connection.connection
        self._engine = connection.sync_connection.engine
        self._began_at, self._thread = monotonic(), threading.get_ident()
        _open.add(self)

    def ends(self) -> None:
        _open.discard(self)
        with self._ending:
            self._pooled = None

    async def abort_if_stalled(self, connect: Connect, *, thread: int, older_than_s: float) -> None:
        """End it, if it is open for so long in the loop of `thread`; called in another one."""
        if self._thread != thread or monotonic() - self._began_at < older_than_s:
            return
        with self._ending:
            # Without a connection of the driver it is committed or rolled back already.
            if (pooled := self._pooled) is None or (driver := pooled.driver_connection) is None:
                return
            if self._is_over:
                return
            if not self.was_aborted:
                self._retire(pooled)
            self.was_stalled = True
        # Where it cannot be ended now, the next look tries again.
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_S_MAX):
                dialect = TRANSACTIONS.on(self._engine.dialect.name)
                ended = await dialect.end_stalled(
                    self._engine, driver, connect, older_than_s=older_than_s
                )
                self._is_over = ended is not None
                self.was_rolled_back = bool(ended) and not self.is_ready_to_commit
        if self._is_over:
            log_in_thread(
                logger.warning,
                "A transaction was aborted since its event loop had stalled: %(purpose)s",
                {"purpose": self.purpose},
            )

    def plan_cancel(self, task: asyncio.Task[Any]) -> CancelPlan:
        """End it, if its `task` waits for a statement; called on its own loop."""
        if (pooled := self._pooled) is None or self.was_aborted:
            return CancelPlan()
        driver: Any = pooled.driver_connection
        if not _is_within(task, driver):
            return CancelPlan()
        rolling_back = TRANSACTIONS.on(self._engine.dialect.name).roll_back_before_cancel(driver)
        if rolling_back is not None:
            # Its cancellation closes the connection, but only then.
            self._is_over = True
            self._retire(pooled)
        return CancelPlan(OUT_OF_TIME, rolling_back)

    def _retire(self, pooled: PoolProxiedConnection) -> None:
        self.was_aborted = True
        # Not given away again: the pool opens another one in its place.
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
async def tracked_open(transaction: OpenTransaction, timeout_s: float) -> AsyncIterator[None]:
    """Track `transaction` in the block; `TransactionTimeout`, outcome unknown, if aborted."""
    cause: Exception | None = None
    try:
        yield
    except Exception as error:
        if not transaction.was_aborted:
            raise
        cause = error
    finally:
        transaction.ends()
    if transaction.was_aborted:
        # Also without an error: a COMMIT on a connection that was closed may say nothing.
        raise TransactionTimeout(
            purpose=transaction.purpose,
            timeout_s=timeout_s,
            was_aborted=transaction.was_stalled,
            was_rolled_back=transaction.was_rolled_back,
        ) from cause


async def abort_stalled(connect: Connect, *, thread: int, older_than_s: float) -> None:
    """End old transactions of the loop in `thread`; called on another loop."""
    for transaction in tuple(_open):
        await transaction.abort_if_stalled(connect, thread=thread, older_than_s=older_than_s)


async def in_transaction(
    session_factory: SessionFactory,
    leased: LeasedTable,
    work: Callable[[AsyncSession, AsyncConnection], Awaitable[T]],
    *,
    purpose: str,
    timeout: timedelta,
    writes: bool = True,
    autocommit: bool = False,
) -> T:
    """Run `work` in one transaction of a new session, and return what it returned.
    `TransactionTimeout` if the whole did not end in time: whether it was committed is unknown then.

    Args:
        session_factory: the host's.
        leased: by which a session with several engines is routed.
        work: must not commit. May be called several times, each time in another transaction, of
            which one at most is committed.
        purpose: a verb phrase for errors and logs, such as ``"claim rows"``.
        timeout: for the whole, connecting and committing included.
        writes: whether a database with one writer lets it write from the start.
        autocommit: whether `work` is one statement, and may be a transaction by itself.
    """
    own, timeout_s = OpenTransaction(purpose), timeout.total_seconds()

    async def once() -> T:
        async with session_factory() as session, tracked_open(own, timeout_s), session.begin():
            bind = bind_of(session, leased)
            dialect = TRANSACTIONS.on(bind.dialect.name)
            connection = await _connection(session, bind, autocommit=autocommit)
            with dialect.hastened(connection):
                if writes:
                    own.begins(connection)
                    await dialect.begin_writing(connection, wait_s=timeout_s * WAITING_MAX)
                result = await work(session, connection)
            own.is_ready_to_commit = True
            return result

    async def with_conflicts_retried() -> T:
        nonlocal own
        for conflicts in range(1, CONFLICTS_MAX):
            try:
                return await once()
            except DBAPIError as error:
                if not is_conflict(error):
                    raise
                extra = {"purpose": purpose}
                logger.debug("A transaction is run again: %(purpose)s", extra, exc_info=error)
            rest_s = exponential(conflicts, first_s=CONFLICT_DELAY_S, most_s=CONFLICT_DELAY_S_MAX)
            await sleep(rest_s)
            own = OpenTransaction(purpose)
        return await once()

    return await finish(
        with_conflicts_retried(),
        purpose=purpose,
        timeout=timeout,
        plan_cancel=lambda task: own.plan_cancel(task),  # noqa: PLW0108 - `own` is replaced
        writes=writes,
    )


async def _connection(session: AsyncSession, bind: Any, *, autocommit: bool) -> AsyncConnection:
    dialect, options = TRANSACTIONS.on(bind.dialect.name), dict[str, Any]()
    # What code of the host sets ``LOCAL`` at the begin of each transaction would be gone at once
    # without one.
    dispatch: Any = session.sync_session.dispatch
    runs_at_begin = bool(dispatch.after_begin) or bool(bind.dispatch.begin)
    if autocommit and dialect.commits_single_statements and not runs_at_begin:
        options = {"isolation_level": "AUTOCOMMIT"}
    try:
        return await session.connection({"bind": bind}, execution_options=options)
    except Exception as error:
        # psycopg refuses AUTOCOMMIT where a listener began a transaction; the name is PEP 249's.
        if not options or type(error).__name__ != "ProgrammingError":
            raise
    # The host's own set-up of connections begins transactions: so this is one, too.
    return await session.connection({"bind": bind})
