"""Unique names: look which names are taken, take a free one, commit; while nobody else does the
same.

The one idea: whoever has the lock must see what the last holder committed. So the lock lasts until
after the commit, and the reading starts after the lock: on PostgreSQL each statement of READ
COMMITTED has a snapshot of its own; on SQLite a transaction is begun anew once the lock is ours, at
once as a writing one (``BEGIN IMMEDIATE``), which keeps other processes on the file out as well.

Not here: the unique constraint, which the table should have all the same; locks without a snapshot
to mind (``locks/advisory.py``).

Source: SQLite, "Isolation In SQLite"; PostgreSQL, "Transaction Isolation" (13.2).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from rowlock.errors import ConfigurationError
from rowlock.locks.advisory import timed_out, wait_limit_s
from rowlock.locks.lock_dialect import locks_of


@asynccontextmanager
async def lock_unique_names(
    session: AsyncSession, namespace: str, *, timeout: timedelta | float | None = None
) -> AsyncIterator[None]:
    """Be the only one who takes names of `namespace`, until the session's transaction ends; joins
    it and never ends it.

    The lock ends with the commit or rollback, inside the block or after it. To write in the block
    after that is an error: a second name would be taken without the lock. What the session has not
    flushed stays as it is.

    Args:
        session: of an engine on PostgreSQL with READ COMMITTED, the default; or on SQLite, and
            there before the first statement of its transaction.
        namespace: what the names must be unique in, such as ``f"fleet_names_{project_id}"``.
        timeout: longest wait, a number being seconds; 0 asks once, None waits for as long as it
            takes.

    Raises:
        LockWaitTimeout: it was not free in time; the transaction can go on.
        Refusal: too many wait for names already (SQLite).
        ConfigurationError: the session would not see the names that others took before, or could
            lose the lock before the commit; or it wrote after the lock had ended.
        UnsupportedDialectError: the database is unknown, or all its sessions share one connection.
    """
    timeout_s = wait_limit_s(timeout)
    if not isinstance(session, AsyncSession):
        raise TypeError(f"pass an AsyncSession, not a {type(session).__name__}")
    if session.in_nested_transaction():
        raise ConfigurationError(
            "a lock that is taken in a savepoint ends if that is rolled back; take it before"
            " begin_nested()"
        )
    if not await locks_of(session).hold_name_with_snapshot(session, namespace, timeout_s):
        raise timed_out(namespace, timeout_s)
    with _no_writes_without_lock(session.sync_session, namespace):
        yield


@contextmanager
def _no_writes_without_lock(session: Session, namespace: str) -> Iterator[None]:
    locked_in = session.get_transaction()

    def check(session: Session, *_: object) -> None:
        if session.get_transaction() is not locked_in:
            raise ConfigurationError(
                f"the lock on {namespace!r} ended with the transaction, and this would be written"
                " without it; leave the block first, and take the lock again for another name"
            )

    event.listen(session, "before_flush", check)
    try:
        yield
    finally:
        event.remove(session, "before_flush", check)
