"""Transactions that end: each runs whole in a task of its own, shielded from its caller's
cancellation and bounded in time.

A transaction that the database rolled back for another one's sake (a serialization failure, a
deadlock) is run again here, since nobody else could tell it from one that was never begun. Not
here: what to do about any other error; ``database/faults.py`` says whether it passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.backoff import exponential
from rowlock.clock import sleep
from rowlock.database.binds import bind_of
from rowlock.database.faults import is_conflict
from rowlock.database.stalled_transactions import OpenTransaction, tracked_open
from rowlock.database.transaction_dialect import TRANSACTIONS
from rowlock.logs import get_logger
from rowlock.rows.leased_table import LeasedTable
from rowlock.shielding import CancelPlan, finish

logger = get_logger(__name__)

T = TypeVar("T")
SessionFactory: TypeAlias = Callable[[], AsyncSession]


WAITING_MAX = 0.5
"""Largest share of its time that a transaction may wait for its begin."""

CONFLICTS_MAX = 6
"""How often a transaction may be rolled back by the database for another one's sake; the last
time, the error is raised.
"""
CONFLICT_DELAY_S = 0.01
CONFLICT_DELAY_S_MAX = 0.2
"""Shortest and longest rest before it is run again, in seconds."""


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
    """Open a session, run `work` in one transaction, commit, and return what it returned.

    If the database rolls it back for another transaction's sake, it is run again, in a new session,
    within the same `timeout`.

    Args:
        session_factory: the host's; the session is opened and closed here.
        leased: the table that it is about, which tells a session with several engines where to go.
        work: gets the session and its connection in a begun transaction; must not commit. May be
            called several times, each time in another transaction, of which one at most is
            committed.
        purpose: a verb phrase for errors and logs, such as ``"claim rows"``.
        timeout: longest time for the whole, connecting and committing included.
        writes: whether a database with one writer lets it write from the start (``BEGIN
            IMMEDIATE``).
        autocommit: whether `work` is one statement, and may be a transaction by itself.

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
                _tell_conflict(purpose, error)
            await sleep(_conflict_delay_s(conflicts))
            own = OpenTransaction(purpose)
        return await once()

    def plan_cancel(task: asyncio.Task[T]) -> CancelPlan:
        # Of the session that is open now.
        return own.plan_cancel(task)

    finished = partial(finish, purpose=purpose, timeout=timeout, writes=writes)
    return await finished(with_conflicts_retried(), plan_cancel=plan_cancel)


def _tell_conflict(purpose: str, error: DBAPIError) -> None:
    extra = {"purpose": purpose}
    logger.debug("A transaction is run again: %s", purpose, extra=extra, exc_info=error)


def _conflict_delay_s(conflicts: int) -> float:
    return exponential(conflicts, first_s=CONFLICT_DELAY_S, most_s=CONFLICT_DELAY_S_MAX)


async def _connection(session: AsyncSession, bind: Any, *, autocommit: bool) -> AsyncConnection:
    options = _autocommit_options(session, bind) if autocommit else {}
    try:
        return await session.connection({"bind": bind}, execution_options=options)
    except Exception as error:
        if not (options and TRANSACTIONS.on(bind.dialect.name).is_begun_before(error)):
            raise
    # The host's own set-up of connections begins transactions: so this is one, too.
    return await session.connection({"bind": bind})


def _autocommit_options(session: AsyncSession, bind: Any) -> dict[str, Any]:
    is_enough = TRANSACTIONS.on(bind.dialect.name).commits_single_statements
    autocommits = is_enough and not _runs_at_begin(session, bind)
    return {"isolation_level": "AUTOCOMMIT"} if autocommits else {}


def _runs_at_begin(session: AsyncSession, bind: Any) -> bool:
    """Whether code of the host runs at the begin of each transaction: without one, what that
    sets ``LOCAL`` is gone at once.
    """
    dispatch: Any = session.sync_session.dispatch
    return bool(dispatch.after_begin) or bool(bind.dispatch.begin)
