"""Transactions that end: each runs whole in a task of its own, shielded from its caller's cancellation and bounded in time.

The trap this closes: a task cancelled in the middle of a SQLite transaction leaves the file's write lock held until the garbage
collector finds the connection, and a storm of cancellations leaves PostgreSQL running the statement. So a cancelled caller
waits until its transaction has ended, and only then is cancelled.

A transaction that the database rolled back for another one's sake (a serialization failure, a deadlock) is run again here, since
nobody else could tell it from one that was never begun. Not here: what to do about any other error; ``leases/faults.py`` says
whether it passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.backoff import exponential
from rowlock.clock import sleep
from rowlock.containment import contained_task
from rowlock.errors import LockWaitTimeout, PipelineError, TransactionTimeout
from rowlock.leases.dialects import bind_of, dialect_named, dialect_of
from rowlock.leases.faults import is_conflict
from rowlock.leases.stalled_transactions import CancelPlan, OpenTransaction, tracked_open
from rowlock.logs import get_logger
from rowlock.rows.leased_table import LeasedTable

logger = get_logger(__name__)

T = TypeVar("T")
SessionFactory: TypeAlias = Callable[[], AsyncSession]

CANCEL_WAIT_S_MAX = 3.0
"""How long a transaction that is out of time may take to be cancelled, in seconds."""

STALL_S_MAX = 1.0
"""A timeout that goes off later than this tells of an event loop that stood still; so long it has to catch up then, in seconds."""

WAITING_MAX = 0.5
"""Largest share of its time that a transaction may wait for its begin."""

CONFLICTS_MAX = 6
"""How often a transaction may be rolled back by the database for another one's sake; the last time, the error is raised."""
CONFLICT_DELAY_S = 0.01
CONFLICT_DELAY_S_MAX = 0.2
"""Shortest and longest rest before it is run again, in seconds."""

_overdue: set[asyncio.Task[Any]] = set()


async def in_transaction(
    session_factory: SessionFactory,
    leased: LeasedTable[Any],
    work: Callable[[AsyncSession, AsyncConnection], Awaitable[T]],
    *,
    purpose: str,
    timeout: timedelta,
    writes: bool = True,
    autocommit: bool = False,
) -> T:
    """Open a session, run `work` in one transaction, commit, and return what it returned.

    If the database rolls it back for another transaction's sake, it is run again, in a new session, within the same `timeout`.

    Args:
        session_factory: the host's; the session is opened and closed here.
        leased: the table that it is about, which tells a session with several engines where to go.
        work: gets the session and its connection in a begun transaction; must not commit. May be called several times, each
            time in another transaction, of which one at most is committed.
        purpose: a verb phrase for errors and logs, such as ``"claim rows"``.
        timeout: longest time for the whole, connecting and committing included.
        writes: whether SQLite takes its write lock at the start (``BEGIN IMMEDIATE``).
        autocommit: whether `work` is one statement that is a transaction by itself: PostgreSQL is then spared two round trips.

    Raises:
        TransactionTimeout: it did not end in time. Whether it was committed is unknown.
    """
    own, timeout_s = OpenTransaction(purpose), timeout.total_seconds()

    async def once() -> T:
        async with (
            session_factory() as session,
            tracked_open(own, purpose=purpose, timeout_s=timeout_s),
            session.begin(),
        ):
            bind = bind_of(session, leased)
            autocommits = autocommit and bind.dialect.name == "postgresql" and not _runs_at_begin(session, bind)
            options = {"isolation_level": "AUTOCOMMIT"} if autocommits else {}
            connection = await session.connection(bind_arguments={"bind": bind}, execution_options=options)
            dialect = dialect_of(connection)
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
                logger.debug("A transaction is run again: %s", purpose, extra={"purpose": purpose}, exc_info=error)
            await sleep(exponential(conflicts, first_s=CONFLICT_DELAY_S, most_s=CONFLICT_DELAY_S_MAX))
            own = OpenTransaction(purpose)
        return await once()

    def plan_cancel(task: asyncio.Task[T]) -> CancelPlan:
        # Of the session that is open now.
        return own.plan_cancel(task)

    return await finish(with_conflicts_retried(), purpose=purpose, timeout=timeout, plan_cancel=plan_cancel)


def _runs_at_begin(session: AsyncSession, bind: Any) -> bool:  # noqa: ANN401 - SQLAlchemy types no `dispatch`
    """Whether code of the host runs at the begin of each transaction: without one, what that sets ``LOCAL`` is gone at once."""
    dispatch: Any = session.sync_session.dispatch
    return bool(dispatch.after_begin) or bool(bind.dispatch.begin)


@asynccontextmanager
async def lockset_guard(
    session_factory: SessionFactory, leased: LeasedTable[Any], *, timeout: timedelta
) -> AsyncIterator[frozenset[Any]]:
    """Hold off those of this process who take rows by a lockset, around a transaction that leases rows; gives their keys.

    Raises:
        LockWaitTimeout: somebody kept the lockset still for so long.
    """
    dialect = dialect_named(bind_of(session_factory(), leased).dialect.name)
    async with AsyncExitStack() as stack:
        wait_s = timeout.total_seconds()
        try:
            # Bounded by itself: once leases are sent for, they must not be dropped by anybody's timeout.
            async with asyncio.timeout(wait_s):
                held = await stack.enter_async_context(dialect.excluding(leased))
        except TimeoutError:
            raise LockWaitTimeout(namespace=leased.table.name, keys=(), timeout_s=wait_s) from None
        yield held


async def finish(
    work: Coroutine[Any, Any, T],
    *,
    purpose: str,
    timeout: timedelta | None = None,
    plan_cancel: Callable[[asyncio.Task[T]], CancelPlan] = lambda _task: CancelPlan(),
) -> T:
    """Run `work` to its end in a task of its own, even if the caller is cancelled meanwhile; then let the cancellation out.

    Args:
        work: what is to be done.
        purpose: a verb phrase for errors and logs.
        timeout: how long it may take; then it is cancelled.
        plan_cancel: called with its task before that.

    Raises:
        TransactionTimeout: `work` did not end within `timeout`.
        PipelineError: `work` let a cancellation escape that was not its caller's.
        HostCodeError: a listener, a type or another part of the host's raised what would have ended the event loop.
    """
    task = contained_task(work, name=f"rowlock: {purpose}")
    cancelled = await _wait_shielded(task, None if timeout is None else timeout.total_seconds())
    out_of_time = not task.done()
    if out_of_time:
        cancelled = await _cancel_overdue(task, plan_cancel(task)) or cancelled
    if cancelled is not None:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            logger.warning(
                "The transaction of a cancelled caller failed: %s", purpose, extra={"purpose": purpose}, exc_info=error
            )
        raise cancelled
    if out_of_time and (not task.done() or task.cancelled()):
        raise TransactionTimeout(purpose=purpose, timeout_s=timeout.total_seconds() if timeout else 0.0)
    if task.cancelled():
        raise PipelineError(f"the transaction to {purpose} was cancelled from within")
    return task.result()


async def _wait_shielded(task: asyncio.Task[Any], timeout_s: float | None) -> asyncio.CancelledError | None:
    loop = asyncio.get_running_loop()
    ends_at = None if timeout_s is None else loop.time() + timeout_s
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        left_s = None if ends_at is None else ends_at - loop.time()
        if left_s is not None and left_s < -STALL_S_MAX:
            # The loop stood still. What the database said meanwhile has not been heard yet, so that says nothing about it.
            ends_at, left_s = loop.time() + STALL_S_MAX, STALL_S_MAX
        if left_s is not None and left_s <= 0:
            break
        try:
            await asyncio.wait({task}, timeout=left_s)
        except asyncio.CancelledError as error:
            cancelled = error
    return cancelled


async def _cancel_overdue(task: asyncio.Task[Any], plan: CancelPlan) -> asyncio.CancelledError | None:
    _overdue.add(task)
    task.add_done_callback(_forget)
    task.cancel(plan.message)
    cancelled = await _wait_shielded(task, CANCEL_WAIT_S_MAX)
    if plan.ending is None:
        return cancelled
    return await _wait_shielded(plan.ending, CANCEL_WAIT_S_MAX) or cancelled


def _forget(task: asyncio.Task[Any]) -> None:
    _overdue.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning(
            "An overdue transaction failed in the end: %s",
            task.get_name(),
            extra={"task": task.get_name()},
            exc_info=error,
        )
