"""Compares what a live replica made of a row with what the outcome of the shadow would have
written. Pure.

The one idea: only what is comparable counts. A row says in its columns what was made of it; what it
cannot say, and what only the database could work out, is named and not judged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Column

from rowlock.errors import OutcomeError
from rowlock.insight.rehearsing.answer import HIDDEN, reason_of, written_text
from rowlock.insight.shadowing.shadow_run import OUTCOME, ShadowDifference
from rowlock.insight.shadowing.snapshot import RowValues, columns_of, is_same
from rowlock.insight.shadowing.watching import WatchedRow
from rowlock.insight.shown import shown
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.outcomes import Apply, Outcome, Retry
from rowlock.pipelines.settling.planner import Planner
from rowlock.rows.assignments import UnlessChanged, is_sql
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import NOW_PLACEHOLDER, columns_written, compared_column

APPLIED, RETRIED, RESET, PARKED, DELETED = "applied", "retried", "reset", "parked", "deleted"
APPLIED_OR_RETRIED: Final = "applied or retried"
"""What a row without `ScheduleColumns` tells of an outcome."""
NESTED_MAX: Final = 100
"""How deep a value is searched for the placeholder of a time."""
REFUSED: Final = ", which the database refuses"
_KINDS: Final = {"Apply": APPLIED, "Retry": RETRIED, "Reset": RESET}
_CLASS: Final = re.compile(r"([A-Za-z_][\w.]*)(?::|$)")
"""The class at the beginning of an error's text."""


@dataclass(frozen=True, slots=True)
class ShadowWrite:
    """What an outcome of the shadow would write.

    Attributes:
        kind: what the row would be: ``applied``, ``parked``, ...
        values: what the outcome names, with the time of the live replica's transaction in place of
            `NOW_PLACEHOLDER`.
        timed: which of these have that time in them.
        due_at: when the row would be due again; None where the outcome does not say.
        error: why it would be retried or parked.
    """

    kind: str
    values: Mapping[Column[Any], Any] = field(default_factory=dict)
    timed: frozenset[Column[Any]] = frozenset()
    due_at: datetime | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ComparedColumns:
    """Which columns of a table are compared.

    Attributes:
        leased: the table.
        content: columns that the host alone writes, and whose values can be compared.
        ignored: columns that are not to be compared.
        hidden: columns of which no value is shown.
    """

    leased: LeasedTable
    content: frozenset[Column[Any]]
    ignored: frozenset[Column[Any]]
    hidden: Collection[Column[Any]]

    @classmethod
    def of(
        cls,
        leased: LeasedTable,
        *,
        ignored: frozenset[Column[Any]],
        hidden: Collection[Column[Any]],
    ) -> ComparedColumns:
        """Return those of a table: not the key, what rowlock keeps, or what moves by itself."""
        left_out = {leased.key, leased.version_column, *leased.kept_columns, *ignored}
        left_out |= {*leased.columns_with_onupdate}
        if leased.has_schedule:
            left_out.add(leased.column("due_at"))
        content = {
            one for one in columns_of(leased) if one not in left_out and _says_enough(leased, one)
        }
        return cls(leased, frozenset(content), ignored, hidden)


def _says_enough(leased: LeasedTable, column: Column[Any]) -> bool:
    try:
        compared_column(leased, column)
    except OutcomeError:
        return False
    return True


def write_of(
    planner: Planner, leased: LeasedTable, item: PipelineItem[Any], *, outcome: Outcome
) -> ShadowWrite:
    """Return what an outcome would write, planned as it would be by a replica.

    Raises:
        BaseException: whatever the host's objects raise.
    """
    write = planner.plan(item, outcome)
    given = outcome.values if isinstance(outcome, Apply | Retry) else {}
    named = columns_written(leased, given)
    timed = {column for column, value in zip(named, given.values(), strict=True) if _has_now(value)}
    kind = _KINDS.get(type(outcome).__name__, PARKED)
    if write.deletes or write.parks:
        kind = DELETED if write.deletes else PARKED
    due_at = write.values.get(leased.column("due_at")) if _says_when(outcome) else None
    return ShadowWrite(
        kind,
        {column: write.values[column] for column in named},
        frozenset(timed),
        due_at.value if isinstance(due_at, UnlessChanged) else due_at,
        reason_of(outcome),
    )


def _says_when(outcome: Outcome) -> bool:
    if isinstance(outcome, Apply):
        return outcome.after is not None or outcome.due_at is not None
    return isinstance(outcome, Retry) and outcome.after is not None


def _has_now(value: Any, depth: int = 0) -> bool:
    if value is NOW_PLACEHOLDER:
        return True
    inner = value.values() if isinstance(value, dict) else value
    is_nested = isinstance(value, dict | list | tuple) and depth < NESTED_MAX
    return is_nested and any(_has_now(one, depth + 1) for one in inner)


def live_kind(leased: LeasedTable, row: WatchedRow) -> str | None:
    """Return what a live replica made of a row; None if the row does not tell."""
    if row.after is None:
        return DELETED
    if not leased.has_schedule:
        return None
    if row.after[leased.column("parked_at")] is not None:
        return PARKED
    return RETRIED if row.after[leased.column("attempts")] else APPLIED


def was_worked_on_again(leased: LeasedTable, row: WatchedRow) -> bool:
    """Whether more than one outcome was written before the row was looked at."""
    if row.after is None or not leased.has_schedule:
        return False
    return bool(row.after[leased.column("attempts")] > row.before.attempt)


def to_ask(columns: ComparedColumns, row: WatchedRow, write: ShadowWrite) -> dict[Column[Any], Any]:
    """Return those values of the shadow which are not equal to the row's as they are; as a column
    would keep them they may be.
    """
    if row.after is None:
        return {}
    return {
        column: value
        for column, value in write.values.items()
        if column not in columns.ignored
        and not is_sql(value)
        and is_same(row.after[column], value) is not True
    }


@dataclass(frozen=True, slots=True)
class RowComparison:
    """One row, as a live replica left it and as the shadow would have.

    Attributes:
        columns: that are compared.
        row: as it was watched, with an outcome.
        write: of the shadow.
        kept: what the database makes of the values of `to_ask`; one that it refuses is not there.
    """

    columns: ComparedColumns
    row: WatchedRow
    write: ShadowWrite
    kept: Mapping[Column[Any], Any]

    @property
    def live(self) -> str | None:
        """What the live replica made of it; None if the row does not tell."""
        return live_kind(self.columns.leased, self.row)

    @property
    def live_error(self) -> str | None:
        """What the row says of a failure or of being parked; None of other outcomes."""
        if self.row.after is None or self.live not in {RETRIED, PARKED}:
            return None
        text = self.row.after[self.columns.leased.column("last_error")]
        return None if text is None else str(text)

    def differences(self) -> Iterator[ShadowDifference]:
        """Yield what differs: the outcome first."""
        yield from self._of_outcome()
        if self.row.after is None:
            return
        for column in self._compared():
            if self._judge(column) is False:
                yield self._difference(column)
        yield from self._of_due_time()

    def not_compared(self) -> Iterator[str]:
        """Yield what could not be compared."""
        if self.live is None and self.write.kind in {APPLIED, RETRIED}:
            yield f"{OUTCOME}: without ScheduleColumns a row does not tell a failure from a success"
        if self.row.after is None:
            return
        for column in self._compared():
            if self._judge(column) is None:
                yield f"{column.name}: {self._why_not(column)}"

    def _compared(self) -> list[Column[Any]]:
        columns = self.columns
        written = [one for one in self.write.values if one not in columns.ignored]
        others = [one for one in columns_of(columns.leased) if one in columns.content]
        return list(dict.fromkeys([*written, *others]))

    def _of_outcome(self) -> Iterator[ShadowDifference]:
        live, shadow = self.live, self.write.kind
        if live is None:
            if shadow not in {APPLIED, RETRIED}:
                yield ShadowDifference(OUTCOME, APPLIED_OR_RETRIED, shadow)
        elif live != shadow:
            yield ShadowDifference(OUTCOME, live, shadow)
        elif live == RETRIED:
            yield from self._of_error()

    def _of_error(self) -> Iterator[ShadowDifference]:
        live, shadow = _error_class(self.live_error), _error_class(self.write.error)
        if live is not None and shadow is not None and live != shadow:
            yield ShadowDifference("error", shown(live), shown(shadow))

    def _judge(self, column: Column[Any]) -> bool | None:
        """Whether a column is the same in both; None if that cannot be judged."""
        assert self.row.after is not None
        before, after = self.row.before.values[column], self.row.after[column]
        if column not in self.write.values:
            return is_same(before, after)
        value = self.write.values[column]
        if is_sql(value) or not _says_enough(self.columns.leased, column):
            return None
        same = is_same(after, value)
        if same is not True:
            same = not self._is_refused(column) and is_same(after, self.kept[column])
        if same is False and column in self.write.timed and is_same(before, after) is False:
            # Both may have taken the time of a clock.
            return None
        return same

    def _is_refused(self, column: Column[Any]) -> bool:
        """Whether the database does not take the value of the shadow, so that the row would be
        retried.
        """
        return column not in self.kept

    def _why_not(self, column: Column[Any]) -> str:
        value = self.write.values.get(column)
        if is_sql(value):
            return "the shadow writes an SQL expression"
        if column in self.write.timed:
            return "the shadow writes the time of its transaction"
        if not _says_enough(self.columns.leased, column):
            return "values of its type cannot be compared"
        return "its values do not say whether they are equal"

    def _difference(self, column: Column[Any]) -> ShadowDifference:
        assert self.row.after is not None
        if column in self.columns.hidden:
            return ShadowDifference(column.name, HIDDEN, HIDDEN)
        after = self.row.after[column]
        shadow = self.write.values.get(column, self.row.before.values[column])
        wrote_both = column in self.write.values and is_same(self.row.before.values[column], after)
        are_times = isinstance(after, datetime) and isinstance(shadow, datetime)
        is_refused = column in self.write.values and self._is_refused(column)
        return ShadowDifference(
            column.name,
            written_text(after),
            written_text(shadow) + (REFUSED if is_refused else ""),
            are_times and wrote_both is False,
        )

    def _of_due_time(self) -> Iterator[ShadowDifference]:
        if self.write.due_at is None or self.write.kind != self.live:
            return
        assert self.row.after is not None
        column = self.columns.leased.column("due_at")
        after = self.row.after[column]
        is_compared = column not in {*self.columns.ignored, *self.row.changed, *self.write.values}
        if is_compared and is_same(after, self.write.due_at) is False:
            yield ShadowDifference(
                column.name, written_text(after), written_text(self.write.due_at)
            )


def _error_class(text: str | None) -> str | None:
    found = None if text is None else _CLASS.match(text)
    return None if found is None else found[1]


def changed_names(row: WatchedRow, leased: LeasedTable) -> tuple[str, ...]:
    """Return the names of the columns that changed before a live replica wrote its outcome, in
    their order; a request that makes the row due changes nothing of it.
    """
    due = {leased.column("due_at")} if leased.has_schedule else set[Column[Any]]()
    return tuple(one.name for one in columns_of(leased) if one in row.changed - due)


def stamp_of(leased: LeasedTable, values: RowValues) -> datetime:
    """Return when an outcome was written."""
    stamp = values[leased.column("last_processed_at")]
    assert isinstance(stamp, datetime)
    return stamp
