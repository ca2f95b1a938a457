"""Release: release rows that were claimed and not worked on; clear what no pipeline will come back
for; and break the lease of a holder that a person knows to be gone, or wants gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Update, and_, or_, true, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.database.transaction import bind_of
from rowlock.dialects.contract import LEASES
from rowlock.execution import execute
from rowlock.leases.item import PipelineItem, leases_of
from rowlock.rows.assignments import without_onupdate
from rowlock.rows.database_time import (
    STAMP_AHEAD_MAX,
    database_instant,
    database_now,
    database_time_after,
    is_no_time,
)
from rowlock.rows.eligibility import is_owned_by
from rowlock.rows.lease_values import unlocked_values
from rowlock.rows.leased_table import LeasedTable

SWEPT_ROWS_MAX = 1000
"""Most rows that one sweep clears."""


async def release(
    connection: AsyncConnection,
    leased: LeasedTable,
    items: Sequence[PipelineItem[Any]],
    *,
    waits: bool = True,
) -> frozenset[Any]:
    """Unlock rows that were not worked on, as if they had never been claimed, and return their
    keys. The others were lost or, with ``waits=False``, are locked by another transaction.
    """
    dialect = LEASES.of(connection)
    ours = dialect.matches_leases(leased)
    values = without_onupdate(leased, unlocked_values(leased))
    unlocked = ours if waits else dialect.skip_locked(leased, ours)
    statement = update(leased.table).where(unlocked).values(values).returning(leased.key)
    parameters = dialect.lease_parameters(leased, leases_of(items))
    return frozenset((await connection.scalars(statement, parameters)).all())


async def release_dead(
    connection: AsyncConnection,
    leased: LeasedTable,
    dead_tokens: Sequence[Any],
    *,
    only_ended: bool = False,
) -> int:
    """Free related rows that dead holders left under their tokens, except locked ones, and return
    how many. With `only_ended`, live leases are left alone: the row that was claimed may have been
    a related row itself, of a living holder.
    """
    tokens = [leased.as_token(token) for token in dead_tokens]
    is_theirs = leased.column("lock_token").in_(tokens)
    has_ended = leased.column("lock_expires_at") <= database_now() if only_ended else true()
    left = LEASES.of(connection).skip_locked(leased, and_(is_theirs, has_ended))
    return (await connection.execute(_cleared(leased, left))).rowcount


async def sweep(
    connection: AsyncConnection,
    leased: LeasedTable,
    *,
    older_than: timedelta,
    owner: str | None = None,
) -> int:
    """Clear the lock columns of rows that were left behind longer than `older_than` ago, at most
    `SWEPT_ROWS_MAX`, and return how many; with `owner`, only of rows that it left.

    No pipeline claims a row that is no longer ready, or whose pipeline is gone from the code: it
    would say for ever that its holder died. The same goes for a row that was reset and whose owner
    never came back, and for half a lock that was left by hand, or one with an end that is no time.
    """
    lock_owner, expires_at = leased.column("lock_owner"), leased.column("lock_expires_at")
    token, last = leased.column("lock_token"), leased.column("last_processed_at")
    limit = database_time_after(-older_than)
    # One that is so far ahead was written before the clock was set back, or by hand.
    is_far_off = or_(last < limit, last > database_time_after(older_than))
    never_returned = and_(token.is_(None), is_far_off)
    # No lease is without an end, and no row is reset without a stamp.
    half_a_lock = and_(expires_at.is_(None), or_(token.is_not(None), last.is_(None)))
    # An end that is no time may stand behind all times, and would never come.
    endless = is_no_time(expires_at)
    left_by = or_(lock_owner.is_not(None), endless) if owner is None else is_owned_by(leased, owner)
    orphaned = and_(left_by, or_(expires_at < limit, never_returned, half_a_lock, endless))
    narrowed = LEASES.of(connection).skip_locked(leased, orphaned, limit=SWEPT_ROWS_MAX)
    return (await connection.execute(_cleared(leased, narrowed))).rowcount


async def mend_stamps(connection: AsyncConnection, leased: LeasedTable) -> int:
    """Let rows whose last stamp is far ahead of the clock count as processed now, at most
    `SWEPT_ROWS_MAX`, and return how many. Without a schedule, such a row would be due in a hundred
    years.
    """
    last = leased.column("last_processed_at")
    ahead = and_(leased.column("lock_token").is_(None), last > database_time_after(STAMP_AHEAD_MAX))
    narrowed = LEASES.of(connection).skip_locked(leased, ahead, limit=SWEPT_ROWS_MAX)
    values = without_onupdate(leased, {last: database_now()})
    return (await connection.execute(update(leased.table).where(narrowed).values(values))).rowcount


def _cleared(leased: LeasedTable, condition: ColumnElement[bool]) -> Update:
    values = without_onupdate(leased, unlocked_values(leased))
    return update(leased.table).where(condition).values(values)


async def break_lease(
    session: AsyncSession,
    leased: LeasedTable,
    key: object,
    *,
    seen: Any,
    related: Iterable[LeasedTable] = (),
    only_ended: bool = False,
) -> bool:
    """Free the row of `key`, and what its holder has locked under the same token in tables of
    `related`, and return whether it was freed; with `only_ended`, unless its lease is live.

    What a person has `seen`, an owner and a token, is the guard: with others the lease is another
    holder's, and nothing is written. A live holder finds out as with any lost lease. A reservation
    is ended likewise. Related rows that are locked at the moment are left to their expiry: waiting
    for them with the row in hand could deadlock.
    """
    is_it = and_(leased.key == key, is_as_shown(leased, seen))
    if only_ended:
        ends_at = leased.column("lock_expires_at")
        # Half a lock that was left by hand never ends.
        is_it &= or_(ends_at.is_(None), ends_at <= database_instant(), is_no_time(ends_at))
    if not await _clear(session, leased, is_it):
        return False
    if seen.token is None:
        return True
    dialect = LEASES.on(bind_of(session, leased).dialect.name)
    for other in related:
        theirs = other.column("lock_token") == other.as_token(seen.token)
        await _clear(session, other, dialect.skip_locked(other, theirs))
    return True


def is_as_shown(leased: LeasedTable, seen: Any) -> ColumnElement[bool]:
    """The lease of a row, or its reservation, is the one that a person was shown."""
    token = None if seen.token is None else leased.as_token(seen.token)
    owner_is = leased.column("lock_owner").is_not_distinct_from(seen.owner)
    return and_(owner_is, leased.column("lock_token").is_not_distinct_from(token))


async def _clear(
    session: AsyncSession, leased: LeasedTable, condition: ColumnElement[bool]
) -> bool:
    statement = _cleared(leased, condition).returning(leased.key)
    bind = {"bind": bind_of(session, leased)}
    return (await execute(session, statement, bind_arguments=bind)).first() is not None
