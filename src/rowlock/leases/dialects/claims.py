"""What is asked of a claim, and what it gives: the two shapes that both dialects share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement
from sqlalchemy.types import TypeEngine

from rowlock.rows.leased_table import LeasedTable

Array: TypeAlias = tuple[str, TypeEngine[Any], list[Any]]
"""Values side by side with those of other arrays: a name, the type, the values."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a row stood in the order of claims when it was claimed.

    Attributes:
        place: the time by which rows are ordered, as the driver gives it and not as Python reads it: on SQLite it is text, and
            only the very text finds those beside it. None if the row was never processed.
        key: tells rows of one place apart.
    """

    place: Any
    key: Any


@dataclass(frozen=True, slots=True)
class ClaimOrder:
    """Lease at most `limit` rows that are `eligible`, oldest first, for `owner`, until `lock_timeout` from now.

    Attributes:
        related: tables of which dead holders may have left rows locked under their tokens.
        after: look only behind this position, and if it is that of a row that was never processed, only at others like it; None
            looks from the head of the line.
    """

    leased: LeasedTable[Any]
    eligible: ColumnElement[bool]
    oldest_first: Sequence[ColumnElement[Any]]
    owner: str
    lock_timeout: timedelta
    limit: int
    related: Sequence[LeasedTable[Any]] = ()
    after: Position | None = None


@dataclass(frozen=True, slots=True)
class ClaimedRow:
    """A row as the claim left it.

    Attributes:
        dead_token: the token of a holder of the same owner that let its lease expire; None if there was none.
        attempts: failed attempts so far; None without a schedule.
        place: the time by which rows are ordered.
        position: the same for a later claim to resume behind.
    """

    id: Any
    lock_token: Any
    lock_expires_at: datetime
    dead_token: Any
    attempts: int | None
    place: datetime | None
    position: Position
