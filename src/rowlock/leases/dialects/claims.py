"""What is asked of a claim, and what it gives: the two shapes that both dialects share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement
from sqlalchemy.sql.elements import UnaryExpression
from sqlalchemy.types import TypeEngine

from rowlock.rows.leased_table import LeasedTable

Array: TypeAlias = tuple[str, TypeEngine[Any], list[Any]]
"""Values side by side with those of other arrays: a name, the type, the values."""


@dataclass(frozen=True, slots=True)
class ClaimOrder:
    """Lease at most `limit` rows that are `eligible`, oldest first, for `owner`, until `lock_timeout` from now.

    Attributes:
        related: tables of which dead holders may have left rows locked under their tokens.
    """

    leased: LeasedTable[Any]
    eligible: ColumnElement[bool]
    oldest_first: UnaryExpression[Any]
    owner: str
    lock_timeout: timedelta
    limit: int
    related: Sequence[LeasedTable[Any]] = ()


@dataclass(frozen=True, slots=True)
class ClaimedRow:
    """A row as the claim left it.

    Attributes:
        dead_token: the token of a holder of the same owner that let its lease expire; None if there was none.
        attempts: failed attempts so far; None without a schedule.
        place: the time by which rows are ordered.
    """

    id: Any
    lock_token: Any
    lock_expires_at: datetime
    dead_token: Any
    attempts: int | None
    place: datetime | None
