"""The answer of `Insight.rehearse`: what would come of each row, as data that renders itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Column

from rowlock.insight.shown import iso, shown
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.outcomes import Apply, Delete, Outcome, Park, Retry, error_text, hint_targets
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import NOW_PLACEHOLDER, column_of

SCHEMA: Final = "rowlock.rehearsal/1"
HIDDEN: Final = "(hidden)"
CHANGES_MAX: Final = 100
"""Most columns, and most related rows, of which a change is told."""


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A column that the outcome sets.

    Attributes:
        column: its name.
        old: what it is.
        new: what it would be.
    """

    column: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class RowRehearsal:
    """What would come of one row.

    Attributes:
        row_id: its key, as text.
        outcome: such as ``Apply``; None if there is no such row.
        reason: of a `Retry` or a `Park`.
        changes: what it sets.
        beside: what else it would do.
        took_s: how long `process` took, in seconds.
    """

    row_id: str
    outcome: str | None
    reason: str | None = None
    changes: tuple[ColumnChange, ...] = ()
    beside: tuple[str, ...] = ()
    took_s: float = 0.0

    def lines(self, model: str) -> Iterator[str]:
        """Yield its lines of text."""
        name = f"{shown(model)} {shown(self.row_id)}"
        if self.outcome is None:
            yield f"{name}: there is no such row"
            return
        because = f": {shown(self.reason)}" if self.reason else ""
        yield f"{name}: {shown(self.outcome)}{because}, after {self.took_s:.1f} s"
        for one in self.changes:
            yield f"  {shown(one.column)}: {one.old} \N{RIGHTWARDS ARROW} {one.new}"
        for text in self.beside:
            yield f"  {text}"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What would come of some rows.

    Attributes:
        pipeline: whose `process` was run.
        model: the class of the rows.
        rows: in the order in which they were named.
    """

    pipeline: str
    model: str
    rows: tuple[RowRehearsal, ...]

    @property
    def needs_person(self) -> bool:
        """Whether one of them would fail, or be set aside."""
        return any(row.outcome in {Retry.__name__, Park.__name__} for row in self.rows)

    @property
    def is_complete(self) -> bool:
        """Whether all the rows are there."""
        return all(row.outcome is not None for row in self.rows)

    def text(self, width: int = 0) -> str:
        """Return it for a terminal, without colours."""
        title = f"{shown(self.pipeline)}, rehearsed: nothing was written"
        return "\n".join([title, *(line for row in self.rows for line in row.lines(self.model))])

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "schema": SCHEMA,
            "pipeline": self.pipeline,
            "model": self.model,
            "rows": [
                {
                    "row_id": row.row_id,
                    "outcome": row.outcome,
                    "reason": row.reason,
                    "changes": [
                        {"column": one.column, "old": one.old, "new": one.new}
                        for one in row.changes
                    ],
                    "beside": list(row.beside),
                    "took_s": row.took_s,
                }
                for row in self.rows
            ],
        }


def row_rehearsal(
    item: PipelineItem[Any],
    leased: LeasedTable,
    outcome: Outcome,
    *,
    hidden: Collection[Column[Any]],
) -> RowRehearsal:
    """Return what an outcome would do.

    Args:
        item: that was rehearsed.
        leased: the table of its row.
        outcome: what came of it.
        hidden: columns of which no value is shown.
    """
    values: Mapping[Any, Any] = outcome.values if isinstance(outcome, Apply | Retry) else {}
    return RowRehearsal(
        str(item.id),
        type(outcome).__name__,
        reason_of(outcome),
        tuple(_changes(item, leased, values, hidden=hidden)),
        tuple(_beside(outcome)),
        item.process_s or 0.0,
    )


def reason_of(outcome: Outcome) -> str | None:
    """Return why a `Retry` or a `Park` is one; None of others."""
    if isinstance(outcome, Retry):
        return error_text(outcome.error)
    return outcome.reason if isinstance(outcome, Park) else None


def _changes(
    item: PipelineItem[Any],
    leased: LeasedTable,
    values: Mapping[Any, Any],
    *,
    hidden: Collection[Column[Any]],
) -> Iterator[ColumnChange]:
    for key, value in list(values.items())[:CHANGES_MAX]:
        column = column_of(leased, key)
        if column in hidden:
            yield ColumnChange(column.name, HIDDEN, HIDDEN)
        else:
            old = item.value_as_read(leased, column)
            yield ColumnChange(column.name, written_text(old), written_text(value))


def _beside(outcome: Outcome) -> Iterator[str]:
    """Return what an outcome would do beside writing its row, a line for each."""
    if not isinstance(outcome, Apply | Delete):
        return
    if outcome.related:
        yield "related rows would be written, too"
    if outcome.also is not None:
        yield "also would be called in the same transaction; it was not"
    if targets := hint_targets(outcome.hint):
        names = (target if isinstance(target, str) else target.__name__ for target in targets)
        yield f"hints {shown(', '.join(names))}"


def written_text(value: Any) -> str:
    """Return a value of a column as one line of visible characters."""
    if value is None or value is NOW_PLACEHOLDER:
        return "null" if value is None else "now"
    if isinstance(value, datetime):
        return str(iso(value)) if value.tzinfo else shown(value)
    return shown(repr(value)) if isinstance(value, str | bytes) else shown(value)
