"""What an outcome writes to the row: the one switch over outcomes, as a pure function of the transaction's time.

It turns a decision into column values and knows nothing of sessions; the writer acts on what it says.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column

from rowlock.backoff import Randomness, exponential
from rowlock.errors import shorten
from rowlock.leases.apply import RowWrite
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.outcomes import Apply, Outcome, Park, Reset, Retry, delay_of, error_text
from rowlock.pipelines.settings import PipelineSettings
from rowlock.rows.assignments import ColumnValues
from rowlock.rows.lease_values import due_values, pinned, processed_values, reset_values, unlocked_values
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import column_of, column_values, resolve_now_placeholders


def plan_write(
    leased: LeasedTable[Any],
    item: PipelineItem[Any],
    outcome: Outcome,
    settings: PipelineSettings,
    now: datetime,
    *,
    rng: Randomness = random,
) -> RowWrite:
    """Return what `outcome` writes to the row at the database's time `now`."""
    match outcome:
        case Apply():
            return _plan_apply(leased, item, outcome, settings, now)
        case Retry():
            return _plan_retry(leased, item, outcome, settings, now, rng)
        case Reset():
            return RowWrite(pinned(leased, {**reset_values(leased), **processed_values(leased, now)}))
        case Park():
            return RowWrite(pinned(leased, {**_done(leased, now), **_parked(leased, outcome.reason, now)}))


def _plan_apply(
    leased: LeasedTable[Any], item: PipelineItem[Any], outcome: Apply, settings: PipelineSettings, now: datetime
) -> RowWrite:
    written = column_values(leased, resolve_now_placeholders(outcome.values, now))
    values = {**_done(leased, now), **written}
    if leased.has_schedule:
        after = settings.min_processing_interval if outcome.after is None else delay_of(outcome.after)
        values = {leased.column("attempts"): 0, **_due(leased, item, now + after), **values}
    columns = [column_of(leased, key) for key in outcome.unless_changed]
    return RowWrite(
        values if written else pinned(leased, values),
        unless_changed={column: _as_read(leased, item, column) for column in columns},
        when_changed=pinned(leased, _given_back(leased, now)) if columns else {},
    )


def _plan_retry(
    leased: LeasedTable[Any],
    item: PipelineItem[Any],
    outcome: Retry,
    settings: PipelineSettings,
    now: datetime,
    rng: Randomness,
) -> RowWrite:
    written = column_values(leased, resolve_now_placeholders(outcome.values, now))
    values = {**_done(leased, now), **written}
    if leased.has_schedule:
        error = error_text(outcome.error)
        values |= {leased.column("attempts"): item.attempt, leased.column("last_error"): error}
        if (reason := _reason_to_park(leased, item, settings, now)) is not None:
            values |= _parked(leased, f"{reason}: {error}" if error else reason, now)
        else:
            values |= _due(leased, item, now + _retry_delay(item, outcome, settings, rng))
    return RowWrite(values if written else pinned(leased, values))


def _reason_to_park(
    leased: LeasedTable[Any], item: PipelineItem[Any], settings: PipelineSettings, now: datetime
) -> str | None:
    deadline = _as_read(leased, item, leased.column("deadline_at"))
    if deadline is not None and now >= deadline:
        return "deadline passed"
    return f"gave up after {item.attempt} attempts" if item.attempt >= settings.max_attempts else None


def _retry_delay(item: PipelineItem[Any], outcome: Retry, settings: PipelineSettings, rng: Randomness) -> timedelta:
    if outcome.after is not None:
        return delay_of(outcome.after)
    first_s, most_s = settings.retry_delay.total_seconds(), settings.retry_delay_max.total_seconds()
    return timedelta(seconds=exponential(item.attempt, first_s=first_s, most_s=most_s, rng=rng))


def _done(leased: LeasedTable[Any], now: datetime) -> ColumnValues:
    return {**unlocked_values(leased), **processed_values(leased, now)}


def _given_back(leased: LeasedTable[Any], now: datetime) -> ColumnValues:
    due = {leased.column("due_at"): now} if leased.has_schedule else {}
    return {**unlocked_values(leased), **due}


def _parked(leased: LeasedTable[Any], reason: str, now: datetime) -> ColumnValues:
    return {leased.column("parked_at"): now, leased.column("last_error"): shorten(reason)}


def _due(leased: LeasedTable[Any], item: PipelineItem[Any], due_at: datetime) -> ColumnValues:
    return due_values(leased, due_at, as_read=_as_read(leased, item, leased.column("due_at")))


def _as_read(leased: LeasedTable[Any], item: PipelineItem[Any], column: Column[Any]) -> Any:  # noqa: ANN401
    return leased.value_as_read(item.row, column)
