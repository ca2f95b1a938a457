"""Break a lease: free a row for a person who knows that its holder is gone, or wants it gone.

The one idea: what a person has seen is the guard. A lease that has another owner or token by now is
another holder's, and nothing is written. The holder itself, if it lives, finds out as with any
lease that it has lost: its renewal and its outcome match nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from sqlalchemy import ColumnElement, and_, or_, true, update
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.database.binds import bind_of
from rowlock.execution import execute
from rowlock.leases.lease_dialect import LEASES
from rowlock.rows.assignments import without_onupdate
from rowlock.rows.database_time import database_instant, is_no_time
from rowlock.rows.lease_values import unlocked_values
from rowlock.rows.leased_table import LeasedTable


class ShownLease(Protocol):
    """What a person was shown of a lease."""

    @property
    def owner(self) -> str | None:
        """Who held the row, or had reset it."""

    @property
    def token(self) -> Any:
        """The token of its lease, as text or as it is; None if there was none."""


async def break_lease(
    session: AsyncSession,
    leased: LeasedTable,
    key: object,
    *,
    seen: ShownLease,
    related: Iterable[LeasedTable] = (),
    only_ended: bool = False,
) -> bool:
    """Free the row of `key` if its owner and token are as `seen`, and what its holder has locked
    under the same token; joins the caller's transaction.

    A reservation is ended likewise. Related rows that somebody has locked for the moment are left
    to their expiry: to wait for them with the row in hand could deadlock.

    Args:
        session: joined; instances that it has are not refreshed.
        leased: the table.
        key: of the row.
        seen: what the caller has looked at.
        related: tables in which its holder may have locked rows.
        only_ended: leave a live lease alone.

    Returns:
        Whether the row was freed. If not, nothing was written: it is gone, it has another owner or
        token, or its lease lives.
    """
    is_it = and_(
        leased.key == key, _is_as(leased, seen), _has_ended(leased) if only_ended else true()
    )
    if not await _clear(session, leased, is_it):
        return False
    if seen.token is None:
        return True
    dialect = LEASES.on(bind_of(session, leased).dialect.name)
    for other in related:
        theirs = other.column("lock_token") == other.as_token(seen.token)
        await _clear(session, other, dialect.skip_locked(other, theirs))
    return True


def _is_as(leased: LeasedTable, seen: ShownLease) -> ColumnElement[bool]:
    token = None if seen.token is None else leased.as_token(seen.token)
    owner_is = leased.column("lock_owner").is_not_distinct_from(seen.owner)
    return and_(owner_is, leased.column("lock_token").is_not_distinct_from(token))


def _has_ended(leased: LeasedTable) -> ColumnElement[bool]:
    expires_at = leased.column("lock_expires_at")
    # Half a lock that was left by hand never ends.
    return or_(expires_at.is_(None), expires_at <= database_instant(), is_no_time(expires_at))


async def _clear(
    session: AsyncSession, leased: LeasedTable, condition: ColumnElement[bool]
) -> bool:
    statement = (
        update(leased.table)
        .where(condition)
        .values(without_onupdate(leased, unlocked_values(leased)))
        .returning(leased.key)
    )
    bind = {"bind": bind_of(session, leased)}
    return (await execute(session, statement, bind_arguments=bind)).first() is not None
