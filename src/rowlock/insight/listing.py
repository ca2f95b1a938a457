"""The answers of `Insight.rows` and `Insight.timeline`: one page of the rows of one state, and what
happened to a row, the newest first.

The one idea of a page: it is found by the last row of the one before, so it costs the same wherever
it is, and a row that does not move is on one page only while others come and go. No page reads more
than some 10,000 rows. What an index finds is read in its order; what none finds, such as live
leases, is sought among the next 10,000 rows that the pipeline wants, and the page after goes on
behind them.

The one idea of a timeline: what is missing is shown in its place. A gap belongs to no row, so every
timeline that spans it shows it; and without the table the row itself says the last thing that
happened.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self

from pydantic_core import to_jsonable_python
from sqlalchemy import (
    ColumnElement,
    Row,
    Table,
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
from rowlock.insight.asking import ask_first, ask_part
from rowlock.insight.questions import ListedState, RowAsked, StateRows
from rowlock.insight.recorder import EntryKind, stored_key
from rowlock.insight.shown import (
    ago,
    ahead,
    by_the_database,
    clock_time,
    pipeline_command,
    read_key,
    shown,
    table_text,
)
from rowlock.insight.steering import is_there
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
    refused = None if asked.failure is None else f"ready() raises {describe(asked.failure)}"
    if refused is None:
        read = partial(read_page, connection, question, redacted)
        found: RowPage | Refused = await ask_part(connection, read, apart=True)
        if isinstance(found, RowPage):
            return found
        refused = found.why
    of = (question.owner, question.leased.name, question.state)
    return RowPage(*of, None, (), refused=refused)


# ---------------------------------------------------------------- what happened to a row


TIMELINE_SCHEMA: Final = "rowlock.timeline/1"
ENTRIES_MAX: Final = 1_000
GAPS_MAX: Final = 100  # most gaps, and actions on pipelines, that are shown beside them
NO_TABLE: Final = (
    "no table of the history: insight_tables(metadata, history=True), its migration, and an"
    " Observer in each replica"
)
THE_ROW: Final = "the row"
ERROR_CHARS: Final = 120  # most characters of an error in a line of text; JSON has all of it


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One thing that happened.

    Attributes:
        at: when, by the database's clock.
        kind: what.
        pipeline: whose it is; empty for a gap, and for an action on a row.
        replica: the mark of the process; None for an action.
        attempt: which one it was.
        columns: names of those that were set.
        error: what went wrong.
        waited_s: how long the row had been due when the attempt began, in seconds.
        took_s: how long the attempt took, in seconds.
        trace_id: of the attempt's span.
        actor: who did it, for an action.
        action: what was done.
        reason: why.
        dropped: how many entries are missing, for a gap.
    """

    at: datetime
    kind: str
    pipeline: str
    replica: str | None = None
    attempt: int | None = None
    columns: tuple[str, ...] = ()
    error: str | None = None
    waited_s: float | None = None
    took_s: float | None = None
    trace_id: str | None = None
    actor: str | None = None
    action: str | None = None
    reason: str | None = None
    dropped: int | None = None

    @classmethod
    def of(cls, row: Row[Any]) -> TimelineEntry:
        """Return the entry of a row of the table."""
        values = row._asdict()
        names = [name for name in cls.__dataclass_fields__ if name != "columns"]
        columns = tuple(filter(None, (values["columns"] or "").split(", ")))
        return cls(**{name: values[name] for name in names}, columns=columns)

    def what(self) -> str:
        """Return the rest of its line."""
        if self.kind == EntryKind.GAP:
            return f"{self.dropped or 0:,} entries are missing here, of any row"
        if self.kind == EntryKind.ACTION:
            return shown(f"{self.action} by {self.actor}: {self.reason}")
        words = [shown(self.error, ERROR_CHARS)] if self.error else []
        if self.columns and not self.error:
            words.append(f"set {shown(', '.join(self.columns), ERROR_CHARS)}")
        return " ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        told: dict[str, Any] = to_jsonable_python(self)
        return told | {"pipeline": self.pipeline or None}


@dataclass(frozen=True, slots=True)
class RowNow:
    last_processed_at: datetime | None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened to a row.

    Attributes:
        model: the class of the row.
        row_id: its key, as text.
        at: when it was asked, by the database's clock.
        row: what the row says now; None if it is not there.
        entries: the newest first; None if the host keeps no history.
        is_cut: whether there are older entries.
        replicas: names of the replicas that are known, by their marks.
        unknown: what could not be read, and why.
    """

    model: str
    row_id: str
    at: datetime
    row: RowNow | None
    entries: tuple[TimelineEntry, ...] | None
    is_cut: bool
    replicas: Mapping[str, str]
    unknown: tuple[str, ...] = ()

    needs_person = False

    def presented(self, replicas: Mapping[str, str], redact: Callable[[str], str]) -> Timeline:
        """Return it with the names of replicas, and each error as `redact` returns it."""
        row = self.row
        if row is not None and row.last_error:
            row = replace(row, last_error=redact(row.last_error))
        entries = self.entries
        if entries is not None:
            entries = tuple(
                replace(one, error=redact(one.error)) if one.error else one for one in entries
            )
        return replace(self, row=row, entries=entries, replicas=replicas)

    @property
    def is_known(self) -> bool:
        """Whether the row is there, or was."""
        entries = self.entries or ()
        is_told = any(entry.kind != EntryKind.GAP for entry in entries)
        return self.row is not None or self.is_row_unknown or is_told

    @property
    def is_row_unknown(self) -> bool:
        """Whether the row could not be read."""
        return any(line.startswith(THE_ROW) for line in self.unknown)

    def text(self, width: int = 100) -> str:
        """Return it for a terminal, without colours."""
        name = f"{shown(self.model)} {shown(self.row_id)} · what happened"
        asked = by_the_database(self.at)
        title = f"{name}{asked.rjust(max(len(asked) + 2, width - len(name)))}"
        return "\n".join([title, *self._body()])

    def _body(self) -> list[str]:
        lines = []
        if self.row is None and not self.is_row_unknown:
            lines.append("the row is not there")
        lines += [f"? {shown(line)}" for line in self.unknown]
        if self.entries is None:
            is_told = len(self.unknown) > self.is_row_unknown
            lacking = [] if is_told else [f"? {NO_TABLE}"]
            return [*lines, *lacking, *self._of_the_row()]
        if not self.entries:
            return [*lines, "no entries: nothing happened for some days", *self._of_the_row()]
        lines.append(table_text([HEAD, *map(self._cells, self.entries)], right=frozenset({4, 5})))
        return [*lines, "older entries are not shown"] if self.is_cut else lines

    def _of_the_row(self) -> list[str]:
        if self.row is None:
            return []
        processed = self.row.last_processed_at
        when = "never" if processed is None else clock_time(processed, now=self.at)
        error = self.row.last_error
        return [f"last processed: {when}"] + ([f"last error: {shown(error)}"] if error else [])

    def _cells(self, entry: TimelineEntry) -> tuple[str, ...]:
        mark = entry.replica
        return (
            clock_time(entry.at, now=self.at),
            shown(entry.kind, 16),
            shown(entry.pipeline, 40) or NOTHING,
            NOTHING if mark is None else shown(self.replicas.get(mark, mark), 40),
            NOTHING if entry.attempt is None else str(entry.attempt),
            NOTHING if entry.took_s is None else f"{entry.took_s:,.1f} s",
            entry.what(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        told = {"schema": TIMELINE_SCHEMA, **to_jsonable_python(replace(self, entries=None))}
        names = told.pop("replicas")
        if self.entries is not None:
            told["entries"] = [
                entry.to_dict() | {"replica_name": names.get(entry.replica)}
                for entry in self.entries
            ]
        return told


HEAD: Final = ("TIME", "KIND", "PIPELINE", "REPLICA", "ATT", "TOOK", "")


async def read_timeline(
    connection: AsyncConnection,
    history: Table | None,
    leased: LeasedTable,
    *,
    key: object,
    pipelines: Iterable[str],
    limit: int,
) -> Timeline:
    """Return the history of a row, and the actions on `pipelines`."""
    now: datetime = (await connection.execute(select(database_now()))).scalar_one()
    timeline = Timeline(leased.name, str(key), now, None, None, is_cut=False, replicas={})
    # A migration under way costs the row, or the history, and not both.
    columns = [leased.column("last_processed_at")]
    columns += [leased.column("last_error")] if leased.has_schedule else []
    now_there = select(*columns).where(leased.key == key)
    row = await ask_first(connection, now_there, apart=True)
    if isinstance(row, Refused):
        timeline = replace(timeline, unknown=(f"{THE_ROW}: {row.why}",))
    elif row is not None:
        timeline = replace(timeline, row=RowNow(*row))
    if history is None:
        return timeline
    ask = partial(
        _entries,
        connection,
        history,
        (leased.name, stored_key(key)),
        pipelines=pipelines,
        limit=limit,
    )
    found = await ask_part(connection, ask, apart=True)
    if isinstance(found, Refused):
        if not await is_there(connection, history):
            return timeline
        return replace(timeline, unknown=(*timeline.unknown, f"the history: {found.why}"))
    entries, is_cut = found
    return replace(timeline, entries=entries, is_cut=is_cut)


async def _entries(
    connection: AsyncConnection,
    history: Table,
    row: tuple[str, str],
    *,
    pipelines: Iterable[str],
    limit: int,
) -> tuple[tuple[TimelineEntry, ...], bool]:
    columns = history.c
    of_row = and_(columns.model == row[0], columns.row_id == row[1])
    newest = select(history).where(of_row).order_by(columns.id.desc()).limit(limit + 1)
    rows = (await connection.execute(newest)).all()
    shown_rows, is_cut = rows[:limit], len(rows) > limit
    told = or_(columns.kind == EntryKind.GAP.value, columns.pipeline.in_(sorted(pipelines)))
    beside = and_(columns.model == "", columns.row_id == "", told)
    if is_cut:
        beside = and_(beside, columns.id > shown_rows[-1].id)
    others = select(history).where(beside).order_by(columns.id.desc()).limit(GAPS_MAX)
    rows_beside = (await connection.execute(others)).all()
    ordered = sorted([*shown_rows, *rows_beside], key=lambda row: (row.at, row.id), reverse=True)
    return tuple(TimelineEntry.of(row) for row in ordered), is_cut
