"""What is asked of a claim, and what it gives: the two shapes that both dialects share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement
from sqlalchemy.sql.elements import UnaryExpression

from rowlock.rows.leased_table import LeasedTable


@dataclass(frozen=True, slots=True)
class ClaimOrder:
    """Lease at most `limit` rows that are `eligible`, oldest first, for `owner`, until `lock_timeout` from now."""

    leased: LeasedTable[Any]
    eligible: ColumnElement[bool]
    oldest_first: UnaryExpression[Any]
    owner: str
    lock_timeout: timedelta
    limit: int


@dataclass(frozen=True, slots=True)
class ClaimedRow:
    """A row as the claim left it.

    Attributes:
        prev_lock_expired: it still carried a token.
        attempts: failed attempts so far; None without a schedule.
        place: the time by which rows are ordered.
    """

    id: Any
    lock_token: Any
    lock_expires_at: datetime
    prev_lock_expired: bool
    attempts: int | None
    place: datetime | None
