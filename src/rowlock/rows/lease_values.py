"""Which values the lock columns take when a row is leased, renewed, unlocked or reset."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import case, literal

from rowlock.rows.assignments import ColumnValues, UnlessChanged, without_onupdate
from rowlock.rows.leased_table import CLEARED_COLUMNS, LeasedTable


def leased_values(
    leased: LeasedTable, *, token: object, owner: str, expires_at: object
) -> ColumnValues:
    """The row belongs to `owner` under `token` until `expires_at`."""
    return without_onupdate(
        leased,
        {
            leased.column("lock_token"): token,
            leased.column("lock_owner"): owner,
            leased.column("lock_expires_at"): expires_at,
        },
    )


def renewed_values(leased: LeasedTable, *, expires_at: object) -> ColumnValues:
    return without_onupdate(leased, {leased.column("lock_expires_at"): expires_at})


def unlocked_values(leased: LeasedTable, *, owner: str | None = None) -> ColumnValues:
    """The row is free; or reserved for `owner`, which had reset it before it was locked."""
    token, lock_owner, expires_at = (leased.column(name) for name in CLEARED_COLUMNS)
    return {token: None, lock_owner: owner, expires_at: None}


def reset_values(leased: LeasedTable) -> ColumnValues:
    """The row is free for the pipeline that owns it, which comes back for it."""
    return dict.fromkeys(leased.column(name) for name in ("lock_token", "lock_expires_at"))


def processed_values(leased: LeasedTable, stamp: datetime) -> ColumnValues:
    return {leased.column("last_processed_at"): stamp}


def due_values(leased: LeasedTable, due_at: datetime, *, as_read: datetime | None) -> ColumnValues:
    """The row is due at `due_at`, unless its due time was changed since it was read, by a service
    that made it due: then that time stands, without any minimum interval.
    """
    return {leased.column("due_at"): UnlessChanged(due_at, as_read=as_read)}


def unless_parked(leased: LeasedTable, name: str, value: object) -> ColumnValues:
    """A service that parked the row while its attempt ran gave the time and the reason."""
    column, parked_at = leased.column(name), leased.column("parked_at")
    return {column: case((parked_at.is_(None), literal(value, column.type)), else_=column)}
