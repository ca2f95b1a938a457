"""What an outcome writes to the row: the one switch over outcomes, as a pure function of the transaction's time.

It turns a decision into column values and knows nothing of sessions; the writer acts on what it says.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column

from rowlock.backoff import Randomness, exponential, jittered
from rowlock.errors import ERROR_TEXT_CHARS_MAX, shorten
from rowlock.leases.apply import RelatedWrite, RowWrite
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.outcomes import Apply, Outcome, Park, Reset, Retry, delay_of, error_text
from rowlock.pipelines.related_values import related_items
from rowlock.pipelines.settings import PipelineSettings
from rowlock.rows.assignments import ColumnValues
from rowlock.rows.lease_values import due_values, pinned, processed_values, reset_values, unlocked_values
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import Values, column_of, column_values, resolve_now_placeholders


def plan_write(
    item: PipelineItem[Any],
    outcome: Outcome,
    now: datetime,
    *,
    leased: LeasedTable[Any],
    settings: PipelineSettings,
    intent: Sequence[Column[Any]] = (),
    rng: Randomness = random,
) -> RowWrite:
    """Return what `outcome` writes to the row of `item` at the database's time `now`; `intent`: columns that services own."""
    plan = _Plan(item, now, leased, settings, tuple(intent), rng)
    match outcome:
        case Apply():
            return plan.apply(outcome)
        case Retry():
            return plan.retry(outcome)
        case Reset():
            return plan.reset()
        case Park():
            return plan.park(outcome)


@dataclass(frozen=True, slots=True)
class _Plan:
    item: PipelineItem[Any]
    now: datetime
    leased: LeasedTable[Any]
    settings: PipelineSettings
    intent: tuple[Column[Any], ...]
    rng: Randomness

    def apply(self, outcome: Apply) -> RowWrite:
        written = column_values(self.leased, resolve_now_placeholders(outcome.values, self.now))
        values = self.done()
        if self.leased.has_schedule:
            after = self.settings.min_processing_interval if outcome.after is None else delay_of(outcome.after)
            values |= {self.leased.column("attempts"): 0} | self.due(after)
        guarded = [*self.intent, *(column_of(self.leased, key) for key in outcome.unless_changed)]
        write = self.unless_changed(guarded, loudly_if(self.leased, written, values))
        if not outcome.related:
            return write
        return replace(write, related=tuple(self.related(*each) for each in related_items(outcome.related)))

    def retry(self, outcome: Retry) -> RowWrite:
        written = column_values(self.leased, resolve_now_placeholders(outcome.values, self.now))
        values, reason = self.done(), None
        if self.leased.has_schedule:
            reason = self.reason_to_park()
            error = self.fitting(error_text(outcome.error))
            values |= {self.leased.column("attempts"): self.item.attempt, self.leased.column("last_error"): error}
            if reason is not None:
                values |= self.parked(f"{reason}: {error}" if error else reason)
            else:
                values |= self.due(self.retry_delay(outcome))
        # A failure rests on nothing that was read; but it must not overwrite a request, nor set the row aside with it.
        guarded = self.intent if reason else [column for column in self.intent if column in written]
        return replace(self.unless_changed(guarded, loudly_if(self.leased, written, values)), parks=reason is not None)

    def park(self, outcome: Park) -> RowWrite:
        values = pinned(self.leased, self.done() | self.parked(outcome.reason))
        return replace(self.unless_changed(self.intent, values), parks=True)

    def reset(self) -> RowWrite:
        values = reset_values(self.leased) | processed_values(self.leased, self.now)
        if self.leased.has_schedule:
            # It lets others go first, but comes back long before a minimum interval is over.
            values |= self.due(timedelta(seconds=jittered(self.settings.retry_delay.total_seconds(), rng=self.rng)))
        return RowWrite(pinned(self.leased, values))

    def reason_to_park(self) -> str | None:
        deadline = self.as_read(self.leased.column("deadline_at")) if self.item.has_row else None
        if deadline is not None and self.now >= deadline:
            return "deadline passed"
        if self.item.attempt >= self.settings.max_attempts:
            return f"gave up after {self.item.attempt} attempts"
        return None

    def retry_delay(self, outcome: Retry) -> timedelta:
        if outcome.after is not None:
            return delay_of(outcome.after)
        first_s, most_s = self.settings.retry_delay.total_seconds(), self.settings.retry_delay_max.total_seconds()
        return timedelta(seconds=exponential(self.item.attempt, first_s=first_s, most_s=most_s, rng=self.rng))

    def done(self) -> ColumnValues:
        return unlocked_values(self.leased) | processed_values(self.leased, self.now)

    def given_back(self) -> ColumnValues:
        due = {self.leased.column("due_at"): self.now} if self.leased.has_schedule else {}
        return unlocked_values(self.leased) | due

    def parked(self, reason: str) -> ColumnValues:
        return {self.leased.column("parked_at"): self.now, self.leased.column("last_error"): self.fitting(reason)}

    def fitting(self, text: str | None) -> str | None:
        """Shorten `text` to what the host's column holds."""
        length = getattr(self.leased.column("last_error").type, "length", None) or ERROR_TEXT_CHARS_MAX
        return None if text is None else shorten(text, chars_max=min(length, ERROR_TEXT_CHARS_MAX))

    def due(self, after: timedelta) -> ColumnValues:
        column, due_at = self.leased.column("due_at"), self.now + after
        # An attempt that failed before the row could be read knows of no request that came since.
        return due_values(self.leased, due_at, as_read=self.as_read(column)) if self.item.has_row else {column: due_at}

    def related(self, named: object, values: Values) -> RelatedWrite:
        leased, key = self.item.held_rows().find(named)
        written = column_values(leased, resolve_now_placeholders(values, self.now))
        return RelatedWrite(leased, key, loudly_if(leased, written, unlocked_values(leased)))

    def unless_changed(self, columns: Sequence[Column[Any]], values: ColumnValues) -> RowWrite:
        if not columns or not self.item.has_row:
            return RowWrite(values)
        as_read = {column: self.as_read(column) for column in columns}
        return RowWrite(values, unless_changed=as_read, when_changed=pinned(self.leased, self.given_back()))

    def as_read(self, column: Column[Any]) -> Any:  # noqa: ANN401 - whatever the column holds
        return self.leased.value_as_read(self.item.row, column)


def loudly_if(leased: LeasedTable[Any], written: ColumnValues, values: ColumnValues) -> ColumnValues:
    """Let the host's ``onupdate`` and version columns move only where the host's own columns do."""
    if not written:
        return pinned(leased, values)
    version = leased.version_column
    return values | ({} if version is None else {version: version + 1}) | written
