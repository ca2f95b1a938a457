"""The answer of `Insight.rows`: one page of the rows of one state.

The one idea: a page is found by the last row of the one before, so it costs the same wherever it
is, and a row that does not move is on one page only while others come and go. No page reads more
than some 10,000 rows. What an index finds is read in its order; what none finds, such as live
leases, is sought among the next 10,000 rows that the pipeline wants, and the page after goes on
behind them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self

from pydantic_core import to_jsonable_python
from sqlalchemy import (
    ColumnElement,
    Text,
    and_,
    case,
    literal,
    null,
    or_,
    select,
    true,
    tuple_,
    type_coerce,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import database_now
from rowlock.errors import AppError, describe
from rowlock.insight.asking import ask_part
from rowlock.insight.questions import ListedState, RowAsked, StateRows
from rowlock.insight.shown import ago, ahead, pipeline_command, read_key, shown, table_text
from rowlock.insight.verdicts import Refused
from rowlock.spi import LeasedTable, mark_of, order_column, with_zone

COUNTED_MAX: Final = 10_000  # how far rows are counted, and sought; beyond, it is more
CURSOR_CHARS_MAX: Final = 4_000


@dataclass(frozen=True, slots=True)
class RowCursor:
    """The last row of a page; `place` is the time of its order, as the driver gives it."""

    place: datetime | str | None
    key: Any

    def text(self) -> str:
        is_time = isinstance(self.place, datetime)
        place = self.place.isoformat() if isinstance(self.place, datetime) else self.place
        key = self.key if isinstance(self.key, int | str) else str(self.key)
        document = json.dumps([is_time, place, key], separators=(",", ":"))
        return base64.urlsafe_b64encode(document.encode()).decode().rstrip("=")

    @classmethod
    def of(cls, text: str, leased: LeasedTable) -> Self:
        """Return the cursor that `text` was made of; raises AppError if it is none."""
        cut = text[: CURSOR_CHARS_MAX + 1]
        padded = cut + "=" * (-len(cut) % 4)
        try:
            read = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
            is_time, place, key = read
            if not isinstance(key, int | str) or not isinstance(place, str | None):
                raise TypeError(text)
            at = datetime.fromisoformat(place) if is_time and place else place
            return cls(at, read_key(leased, key))
        except (ValueError, TypeError, RecursionError) as error:
            raise AppError(f"no page of rows begins behind {shown(text, 40)}") from error


# ---------------------------------------------------------------- the answer


SCHEMA: Final = "rowlock.rows/1"
KEY_CHARS_MAX: Final = 60
ERROR_CHARS_MAX: Final = 80
NOTHING: Final = "\N{EN DASH}"


@dataclass(frozen=True, slots=True)
class ListedRow:
    """One row of a page.

    Attributes:
        row_id: its key, as text.
        place_s: when it is due, or was processed, in seconds from now; negative if that is past;
            None if it was never processed.
        attempts: how often it failed in a row; None without `ScheduleColumns`.
        owner: who holds it, or had reset it.
        mark: of the replica that holds it.
        lease_ends_in_s: how much of its lease is left; negative if it has ended.
        parked_s: for how long it has been set aside.
        last_error: of its last attempt, shortened.
    """

    row_id: str
    place_s: float | None
    attempts: int | None = None
    owner: str | None = None
    mark: str | None = None
    lease_ends_in_s: float | None = None
    parked_s: float | None = None
    last_error: str | None = None

    def place_text(self, state: ListedState) -> str:
        """Return when, in words."""
        if state is ListedState.PARKED and self.parked_s is not None:
            return ago(self.parked_s)
        if self.place_s is None:
            return "never"
        return ahead(self.place_s) if self.place_s > 0 else ago(-self.place_s)

    def holder_text(self, names: Mapping[str, str]) -> str:
        """Return who holds it, in words; `names` are those of replicas, by their marks."""
        if self.owner is None:
            return NOTHING
        who = names.get(self.mark or "", self.mark or "")
        text = shown(f"{self.owner} on {who}" if who else f"kept for {self.owner}", KEY_CHARS_MAX)
        ends_s = self.lease_ends_in_s
        if ends_s is None:
            return text
        return f"{text}, {f'ends {ahead(ends_s)}' if ends_s > 0 else f'ended {ago(-ends_s)}'}"


@dataclass(frozen=True, slots=True)
class RowPage:
    """The answer of `Insight.rows`.

    Attributes:
        pipeline: its name.
        model: the class of its rows.
        state: in which they all are.
        at: when it was asked, by the database's clock; None if there are no rows.
        rows: at most as many as were asked for.
        next: behind which the next page begins; None if there are no more.
        is_whole: whether everything was looked through from where the page begins to its last row;
            if not, rows were sought among the first `COUNTED_MAX` alone, and `next` goes on.
        refused: why the database gave no rows; None if it did.
        names: of the replicas that hold rows, by their marks.
    """

    pipeline: str
    model: str
    state: ListedState
    at: datetime | None
    rows: tuple[ListedRow, ...]
    next: str | None = None
    is_whole: bool = True
    refused: str | None = None
    names: Mapping[str, str] | None = None

    needs_person = False

    def remarks(self) -> list[str]:
        """Return what is to be known besides the rows."""
        if self.refused is not None:
            return [f"the database gave no rows: {shown(self.refused)}"]
        if not self.is_whole:
            is_parked = self.state is ListedState.PARKED
            finds = f"; parked_index({self.model}) finds them all" if is_parked else ""
            return [f"sought among {COUNTED_MAX:,} rows in order; there may be more{finds}"]
        return [] if self.rows else [f"no rows are {self.state}"]

    def cells(self) -> list[tuple[str, ...]]:
        """Return the rows as texts: key, place, attempts, holder, last error."""
        names = self.names or {}
        return [
            (
                shown(one.row_id, KEY_CHARS_MAX),
                one.place_text(self.state),
                NOTHING if one.attempts is None else str(one.attempts),
                one.holder_text(names),
                shown(one.last_error or NOTHING, ERROR_CHARS_MAX),
            )
            for one in self.rows
        ]

    def text(self, width: int = 100) -> str:
        """Return it for a terminal of `width` columns, without colours."""
        when = "" if self.at is None else f"   {self.at.astimezone(UTC):%H:%M:%S} UTC"
        lines = [f"{self.pipeline} · {self.state}{when}"]
        if self.rows:
            table = [("ID", "PLACE", "ATT", "HOLDER", "LAST ERROR"), *self.cells()]
            lines += [line[:width] for line in table_text(table, right=frozenset({2})).split("\n")]
        lines += [f"! {remark}" for remark in self.remarks()]
        if self.next is not None:
            options = ("--state", self.state, "--after", self.next)
            lines.append(f"older  {pipeline_command('rows', self.pipeline, *options)}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        told = {"schema": SCHEMA, **to_jsonable_python(self)}
        del told["names"]
        return told


# ---------------------------------------------------------------- the statement


LOCKS = ("lock_owner", "lock_token", "lock_expires_at")
SCHEDULE = ("attempts", "last_error", "parked_at")


@dataclass(frozen=True, slots=True)
class StateQuestion(StateRows):
    """A page of them; `after` is where the page before ended."""

    limit: int
    after: RowCursor | None = None


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
    place = [] if question.place is None else [question.first_placed(first.c.place)]
    return select(first).where(first.c.is_it == 1).order_by(*place, first.c.key).limit(limit)


async def read_keys(connection: AsyncConnection, question: StateQuestion) -> tuple[str, ...]:
    """Return the first keys of a state that an index finds; joins the caller's transaction."""
    key = question.leased.attribute(question.leased.key_name)
    rows = await connection.execute(_found(question, [key]).limit(question.limit))
    return tuple(str(key) for key in rows.scalars())


async def read_page(
    connection: AsyncConnection, question: StateQuestion, redacted: Callable[[str], str]
) -> RowPage:
    found = (await connection.execute(page_of(question))).all()
    shown_rows, last, is_whole = found[: question.limit], None, True
    if len(found) > question.limit:
        last = shown_rows[-1]
    elif question.is_sought:
        # The last row that was sought through, if there are so many.
        sought = select(*_columns(question)).where(_behind(question), question.among())
        ordered = sought.order_by(*question.order()).offset(COUNTED_MAX - 1).limit(1)
        last = (await connection.execute(ordered)).first()
        is_whole = last is None
    return RowPage(
        question.owner,
        question.leased.name,
        question.state,
        found[0].now if found else None,
        tuple(_listed(row, question, redacted) for row in shown_rows),
        None if last is None else RowCursor(last.as_written, last.key).text(),
        is_whole,
    )


def _found(question: StateQuestion, columns: Sequence[Any]) -> Any:
    where = and_(_behind(question), question.condition())
    return select(*columns).where(where).order_by(*question.order())


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

    # Without `ScheduleColumns` there are none of these.
    attempts, error, parked_at = (getattr(row, name, None) for name in SCHEDULE)
    parked = seconds(parked_at, "parked_at")
    return ListedRow(
        str(row.key),
        seconds(row.place, order_column(leased).key),
        attempts,
        row.lock_owner,
        None if row.lock_token is None else mark_of(row.lock_token),
        seconds(row.lock_expires_at, "lock_expires_at"),
        None if parked is None else -parked,
        None if error is None else redacted(str(error)),
    )


# ---------------------------------------------------------------- asking


PAGE_ROWS: Final = 50
PAGE_ROWS_MAX: Final = 200


def state_question(asked: RowAsked, state: str, *, after: str | None, limit: int) -> StateQuestion:
    """Return the question for a page; raises AppError if an argument is out of bounds."""
    if state not in set(ListedState):
        states = ", ".join(ListedState)
        raise AppError(f"no rows are {shown(state, 40)}; there are {states}")
    if not 1 <= limit <= PAGE_ROWS_MAX:
        raise AppError(f"a page has 1 to {PAGE_ROWS_MAX} rows, not {limit}")
    leased = asked.pipeline.leased
    cursor = None if after is None else RowCursor.of(after, leased)
    owner, parts = asked.pipeline.name, asked.question.parts
    return StateQuestion(leased, parts, owner, ListedState(state), limit, cursor)


async def page_read(
    connection: AsyncConnection,
    *,
    asked: RowAsked,
    question: StateQuestion,
    redacted: Callable[[str], str],
) -> RowPage:
    if asked.failure is not None:
        found: Any = Refused(f"ready() raises {describe(asked.failure)}")
    else:
        read = partial(read_page, connection, question, redacted)
        found = await ask_part(connection, read, apart=True)
    page: RowPage = found
    if isinstance(found, Refused):
        of = (question.owner, question.leased.name, question.state)
        page = RowPage(*of, None, (), refused=found.why)
    return page
