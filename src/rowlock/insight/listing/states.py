"""The SELECT of one page of rows of one state, and what is read of it.

The one idea: no page reads more than some 10,000 rows. What an index finds is read in its order;
what none finds, such as live leases, is sought among the next 10,000 rows that the pipeline wants,
and the page after goes on behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from sqlalchemy import (
    ColumnElement,
    Text,
    and_,
    case,
    false,
    literal,
    null,
    or_,
    select,
    true,
    tuple_,
    type_coerce,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import InstrumentedAttribute

from rowlock.insight.counting.counts import COUNTED_MAX, has_parked_index, is_resting
from rowlock.insight.listing.cursor import RowCursor
from rowlock.insight.listing.row_page import ListedRow, ListedState
from rowlock.rows.database_time import database_now
from rowlock.rows.eligibility import EligibleParts, order_column
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.lock_tokens import mark_of
from rowlock.rows.model_check import with_zone

Place: TypeAlias = InstrumentedAttribute[Any]
LOCKS = ("lock_owner", "lock_token", "lock_expires_at")
SCHEDULE = ("attempts", "last_error", "parked_at")


@dataclass(frozen=True, slots=True)
class StateQuestion:
    """Which rows are asked for.

    Attributes:
        leased: their table.
        parts: the condition of the pipeline's claims.
        owner: the name of the pipeline.
        state: of the rows.
        limit: how many at most.
        after: where the page before ended; None for the first.
    """

    leased: LeasedTable
    parts: EligibleParts
    owner: str
    state: ListedState
    limit: int
    after: RowCursor | None = None

    @property
    def place(self) -> Place | None:
        """The time by which the rows are ordered; None if they are by their keys alone."""
        if self.state is not ListedState.PARKED:
            return order_column(self.leased)
        is_found = self.leased.has_schedule and has_parked_index(self.leased)
        return self.leased.attribute("parked_at") if is_found else None

    @property
    def is_sought(self) -> bool:
        """Whether no index finds such rows, so that they are sought among others."""
        if self.state is ListedState.PARKED:
            return self.place is None
        return self.state in {ListedState.LEASED, ListedState.ENDED, ListedState.FAILING}

    def order(self) -> tuple[ColumnElement[Any], ...]:
        """Return the order of the rows, which is that of an index."""
        key = self.leased.attribute(self.leased.key_name).asc()
        if self.place is None:
            return (key,)
        return (_placed_first(self, self.place), key)

    def among(self) -> ColumnElement[bool]:
        """Return which rows they are sought among."""
        if self.state is ListedState.PARKED:
            return true()
        is_placed = (
            self.leased.attribute("parked_at").is_(None) if self.leased.has_schedule else true()
        )
        return and_(self.parts.ready, is_placed)

    def condition(self) -> ColumnElement[bool]:
        """Return what makes the state."""
        leased, parts = self.leased, self.parts
        expires_at, lock_owner = map(leased.attribute, ("lock_expires_at", "lock_owner"))
        match self.state:
            case ListedState.DUE:
                return and_(parts.ready, parts.free, parts.due)
            case ListedState.RESTING:
                return and_(is_resting(leased, parts), parts.free)
            case ListedState.LEASED:
                return and_(expires_at > database_now(), lock_owner == self.owner)
            case ListedState.ENDED:
                return expires_at <= database_now()
            case ListedState.FAILING:
                return leased.attribute("attempts") > 0 if leased.has_schedule else false()
            case ListedState.PARKED:
                is_kept = leased.has_schedule
                return leased.attribute("parked_at").is_not(None) if is_kept else false()


def page_of(question: StateQuestion) -> Any:
    """Return the SELECT of the rows, one more than `limit`."""
    columns, limit = _columns(question), question.limit + 1
    if not question.is_sought:
        return _found(question, columns).limit(limit)
    is_it = case((question.condition(), 1), else_=0).label("is_it")
    first = (
        select(*columns, is_it)
        .where(_behind(question), question.among())
        .order_by(*question.order())
        .limit(COUNTED_MAX)
        .subquery()
    )
    place = [] if question.place is None else [_placed_first(question, first.c.place)]
    return select(first).where(first.c.is_it == 1).order_by(*place, first.c.key).limit(limit)


async def read_keys(connection: AsyncConnection, question: StateQuestion) -> tuple[str, ...]:
    """Return the keys of the rows, as text, in the order of the pages and `limit` at most; of a
    state that an index finds. Joins the caller's transaction.
    """
    key = question.leased.attribute(question.leased.key_name)
    rows = await connection.execute(_found(question, [key]).limit(question.limit))
    return tuple(str(key) for key in rows.scalars())


def last_sought(question: StateQuestion) -> Any:
    """Return the SELECT of the last row that was sought through, if there are so many."""
    return (
        select(*_columns(question))
        .where(_behind(question), question.among())
        .order_by(*question.order())
        .offset(COUNTED_MAX - 1)
        .limit(1)
    )


async def read_page(
    connection: AsyncConnection, question: StateQuestion, redacted: Callable[[str], str]
) -> tuple[datetime | None, tuple[ListedRow, ...], RowCursor | None, bool]:
    """Return the database's time, the rows, where the next page begins behind, and whether all up
    to there was read; joins the caller's transaction.
    """
    found = (await connection.execute(page_of(question))).all()
    at = found[0].now if found else None
    shown_rows, last, is_whole = found[: question.limit], None, True
    if len(found) > question.limit:
        last = shown_rows[-1]
    elif question.is_sought:
        last = (await connection.execute(last_sought(question))).first()
        is_whole = last is None
    rows = tuple(_listed(row, question, redacted) for row in shown_rows)
    return at, rows, None if last is None else RowCursor(last.as_written, last.key), is_whole


def _found(question: StateQuestion, columns: Sequence[Any]) -> Any:
    where = and_(_behind(question), question.condition())
    return select(*columns).where(where).order_by(*question.order())


def _placed_first(question: StateQuestion, place: ColumnElement[Any] | Place) -> ColumnElement[Any]:
    return place.asc() if question.leased.has_schedule else place.asc().nulls_first()


def _columns(question: StateQuestion) -> list[ColumnElement[Any]]:
    leased = question.leased
    names = LOCKS + (SCHEDULE if leased.has_schedule else ())
    place = null() if question.place is None else question.place
    return [
        database_now().label("now"),
        leased.attribute(leased.key_name).label("key"),
        order_column(leased).label("place"),
        type_coerce(place, Text).label("as_written"),
        *(leased.attribute(name).label(name) for name in names),
    ]


def _behind(question: StateQuestion) -> ColumnElement[bool]:
    after, place, leased = question.after, question.place, question.leased
    if after is None:
        return true()
    key, last = leased.attribute(leased.key_name), literal(after.key, leased.key.type)
    if place is None:
        return key > last
    if after.place is None:
        return or_(place.is_not(None), and_(place.is_(None), key > last))
    # Times that others wrote in another shape are found by the very text alone.
    as_is = type_coerce(place, Text) if isinstance(after.place, str) else place
    return tuple_(as_is, key) > tuple_(literal(after.place, as_is.type), last)


def _listed(row: Any, question: StateQuestion, redacted: Callable[[str], str]) -> ListedRow:
    leased = question.leased

    def seconds(value: Any, name: str) -> float | None:
        if value is None:
            return None
        return float((with_zone(value, leased.column(name)) - row.now).total_seconds())

    place = seconds(row.place, order_column(leased).key)
    ends = seconds(row.lock_expires_at, "lock_expires_at")
    mark = None if row.lock_token is None else mark_of(row.lock_token)
    if not leased.has_schedule:
        return ListedRow(str(row.key), place, None, row.lock_owner, mark, ends)
    parked = seconds(row.parked_at, "parked_at")
    error = None if row.last_error is None else redacted(str(row.last_error))
    return ListedRow(
        str(row.key),
        place,
        row.attempts,
        row.lock_owner,
        mark,
        ends,
        None if parked is None else -parked,
        error,
    )
