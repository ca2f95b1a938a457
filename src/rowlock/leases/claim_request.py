"""What is asked of a claim, and what it gives: the shapes that all dialects share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import ColumnElement

from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.lock_tokens import fresh_token

StatementT = TypeVar("StatementT")

Lease: TypeAlias = tuple[Any, Any]
"""Key and token."""


class Position(NamedTuple):
    """Where a row stood in the order of claims when it was claimed.

    Attributes:
        place: the time by which rows are ordered, as the driver gives it and not as Python reads
            it: on SQLite it is text, and only the very text finds those beside it. None if the row
            was never processed.
        key: tells rows of one place apart.
    """

    place: Any
    key: Any


class Range(Enum):
    """Which part of the line a claim looks at; each is a statement of its own, and a range of
    the index.
    """

    ALL = "from the head"
    NEVER_PROCESSED = "behind a row that was never processed"
    PLACED = "behind a row that has a place"

    @classmethod
    def of(cls, after: Position | None) -> Range:
        """Return the part behind `after`."""
        if after is None:
            return cls.ALL
        return cls.NEVER_PROCESSED if after.place is None else cls.PLACED


@dataclass(frozen=True, slots=True, eq=False)
class ClaimRequest:
    """Lease at most `limit` rows that are `eligible`, oldest first, for `owner`, until
    `lock_timeout` from now.

    Attributes:
        gates: those parts of `eligible` in which the row has no part, such as a pause.
        lockers: pipelines that lock rows of this model as related ones, for themselves alone.
        related: tables of which dead holders may have left rows locked under their tokens.
        after: look only behind this position, and if it is that of a row that was never processed,
            only at others like it; None looks from the head of the order.
        with_rows: whether all of the rows is to be returned; of plain models alone.
        digits: of a token; where the database makes tokens, those of this one claim have its first
            digits and its mark.
        left_out: keys of rows that are left to other replicas.
        statements: what was prepared for this order; copies that differ in the four above share
            them.
    """

    leased: LeasedTable
    eligible: ColumnElement[bool]
    oldest_first: Sequence[ColumnElement[Any]]
    owner: str
    lock_timeout: timedelta
    limit: int
    gates: tuple[ColumnElement[bool], ...] = ()
    lockers: frozenset[str] = frozenset()
    related: Sequence[LeasedTable] = ()
    after: Position | None = None
    with_rows: bool = False
    digits: str = field(default_factory=lambda: fresh_token().hex)
    left_out: frozenset[Any] = frozenset()
    statements: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def prepared(self, key: Hashable, build: Callable[[], StatementT]) -> StatementT:
        """Return what `build` gives, built once for each `key`; `claim_parameters` says what
        differs from claim to claim.
        """
        if key not in self.statements:
            self.statements[key] = build()
        statement: StatementT = self.statements[key]
        return statement


class ClaimedRow(NamedTuple):
    """A row as the claim left it.

    Attributes:
        dead_token: the token of a pipeline that worked on this row and let its lease expire; None
            if there was none.
        died_here: whether that was a pipeline of this owner.
        attempts: failed attempts so far; None without a schedule.
        place: the time by which rows are ordered.
        place_as_written: the same, as `Position` has it.
        row: the values of all the attributes of a plain model, in their order, if they were asked
            for and can be read.
        unreadable: a column that holds what cannot be read; None if there is none.
    """

    id: Any
    lock_token: Any
    lock_expires_at: datetime
    dead_token: Any
    attempts: int | None
    place: datetime | None
    place_as_written: Any
    row: Sequence[Any] | None = None
    died_here: bool = False
    unreadable: str | None = None

    @property
    def position(self) -> Position:
        """Where a later claim resumes behind this row."""
        return Position(self.place_as_written, self.id)


def claim_parameters(request: ClaimRequest) -> dict[str, Any]:
    """Return what differs from one claim of an order to the next, by the names that its
    statements bind.
    """
    limit = {"rowlock_limit": request.limit}
    if request.after is None:
        return limit
    place = {} if request.after.place is None else {"rowlock_after_place": request.after.place}
    return limit | place | {"rowlock_after_key": request.after.key}
