"""The answer of `Insight.timeline`: what happened to a row, the newest first.

The one idea: what is missing is shown in its place. A gap belongs to no row, so every timeline that
spans it shows it; and without the table the row itself says the last thing that happened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from pydantic_core import to_jsonable_python
from sqlalchemy import Row, Table, and_, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import database_now
from rowlock.insight.asking import ask_first, ask_part
from rowlock.insight.history import EntryKind, stored_key
from rowlock.insight.shown import by_the_database, clock_time, shown, table_text
from rowlock.insight.steering import is_there
from rowlock.insight.verdicts import Refused
from rowlock.spi import LeasedTable

SCHEMA: Final = "rowlock.timeline/1"
ENTRIES_MAX: Final = 1_000
GAPS_MAX: Final = 100  # most gaps, and actions on pipelines, that are told beside them
NO_TABLE: Final = (
    "no table of the history: insight_tables(metadata, history=True), its migration, and an"
    " Observer in each replica"
)
THE_ROW: Final = "the row"
NONE: Final = "\N{EN DASH}"
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
            shown(entry.pipeline, 40) or NONE,
            NONE if mark is None else shown(self.replicas.get(mark, mark), 40),
            NONE if entry.attempt is None else str(entry.attempt),
            NONE if entry.took_s is None else f"{entry.took_s:,.1f} s",
            entry.what(),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        told = {"schema": SCHEMA, **to_jsonable_python(replace(self, entries=None))}
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
