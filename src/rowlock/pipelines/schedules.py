"""Which row has which schedule: that of the pipeline, of the row itself, or of a row that the
pipeline declares.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rowlock.database.declared_rows import mark_of, marked
from rowlock.errors import ModelError, OutcomeError, SettingsError
from rowlock.leases.item import PipelineItem
from rowlock.rows.database_time import STAMP_AHEAD_MAX
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import Values, columns_written
from rowlock.schedules import Schedule

PERIODIC_MAX = 1000
"""Most rows that a pipeline declares."""


@dataclass(frozen=True, slots=True)
class Periodic:
    """A row that is there without being inserted by hand: `Pipeline.periodic`.

    Attributes:
        key: its primary key.
        schedule: when it is due; the pipeline's own `schedule` if None.
        values: the other columns that it is inserted with; with `due_at`, it is first due then.
            What is there later is left as it is.
    """

    key: Any
    schedule: Schedule | None = None
    values: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RowSchedules:
    """The schedules of one pipeline: `periodic` has the declared rows, with schedules, by key."""

    leased: LeasedTable
    of_row: Callable[[Any], Schedule | None]
    periodic: Mapping[Any, Periodic]

    def next_after(self, item: PipelineItem[Any], now: datetime) -> datetime | None:
        """Return when the row of `item` is due next, None if it has no schedule. A clock that was
        set back repeats no occurrence. Host code may raise anything.
        """
        declared = self.periodic.get(item.id)
        schedule = self.of_row(item.row) if declared is None else declared.schedule
        if schedule is None:
            return None
        if not isinstance(schedule, Schedule):
            raise SettingsError(f"schedule_of must return a schedule, not {schedule!r:.100}")
        as_read = item.value_as_read(self.leased, self.leased.column("due_at"))
        # Further ahead it is of a clock that was wrong.
        start = as_read if now < as_read <= now + STAMP_AHEAD_MAX else now
        due_at = checked_time(schedule.next_after(start))
        if due_at <= start:
            raise SettingsError(f"a schedule must look forward, and {due_at} is not after {start}")
        return due_at

    def marked(self, item: PipelineItem[Any], due_at: datetime) -> datetime:
        """Return a due time that an outcome asks for, so that it stands for a declared row."""
        declared = self.periodic.get(item.id)
        return due_at if declared is None else marked(due_at, mark_of(declared.schedule))


def checked_time(due_at: object) -> datetime:
    """Return `due_at`, an aware time; anything else that a schedule gave is a `SettingsError`."""
    if not isinstance(due_at, datetime) or due_at.utcoffset() is None:
        raise SettingsError(f"a schedule must give an aware datetime, not {due_at!r:.100}")
    return due_at


def row_schedules(
    name: str,
    leased: LeasedTable,
    *,
    schedule: object,
    of_row: Callable[[Any], Schedule | None] | None,
    periodic: object,
) -> RowSchedules | None:
    """Check what the host declared and return the schedules, None if there are none."""
    if schedule is not None:
        _check_schedule(name, schedule)
    if inspect.iscoroutinefunction(of_row):
        raise SettingsError(
            f"{name}.schedule_of must be a def: the row is there, and nothing is to be waited for",
            pipeline=name,
            settings=("schedule",),
        )
    declared = _declared(name, leased, periodic, schedule=schedule)
    if schedule is None and of_row is None and not declared:
        return None
    if not leased.has_schedule:
        raise ModelError(
            f"{name} has a schedule, which needs ScheduleColumns; {leased.name} does not have them:"
            " mix them in",
            model=leased.name,
        )
    of_all: Any = schedule
    return RowSchedules(leased, of_row or (lambda _row: of_all), declared)


def _check_schedule(name: str, schedule: object) -> None:
    if isinstance(schedule, type) or not isinstance(schedule, Schedule):
        raise SettingsError(
            f'{name}.schedule is a schedule, such as Cron("0 3 * * *", "Europe/Berlin"), not'
            f" {schedule!r:.100}",
            pipeline=name,
            settings=("schedule",),
        )


def _declared(
    name: str, leased: LeasedTable, periodic: object, *, schedule: object
) -> dict[Any, Periodic]:
    if isinstance(periodic, Periodic):
        periodic = (periodic,)
    rows = tuple(periodic) if isinstance(periodic, Iterable) else (periodic,)
    declared: dict[Any, Periodic] = {}
    for row in rows:
        if not isinstance(row, Periodic) or len(rows) > PERIODIC_MAX:
            raise _wrong(name, f"a list of at most {PERIODIC_MAX} Periodic(key, schedule)", row)
        own: Any = schedule if row.schedule is None else row.schedule
        if own is None:
            raise _wrong(name, "given a schedule each, or the pipeline has one", row.key)
        _check_schedule(f"{name}.periodic", own)
        if row.key is None or not isinstance(row.key, Hashable):
            raise _wrong(name, "declared by their keys", row.key)
        if row.key in declared:
            raise _wrong(name, "declared once each, by its key", row.key)
        _check_values(name, leased, row)
        declared[row.key] = Periodic(row.key, own, dict(row.values))
    return declared


def _wrong(name: str, what: str, given: object) -> SettingsError:
    return SettingsError(
        f"{name}.periodic: rows are {what}; not {given!r:.100}",
        pipeline=name,
        settings=("periodic",),
    )


def _check_values(name: str, leased: LeasedTable, row: Periodic) -> None:
    try:
        written = columns_written(leased, row.values)
    except OutcomeError as error:
        raise ModelError(
            f"{name}.periodic: {error.args[0]}", model=leased.name, column=error.column
        ) from None
    for column in leased.table.columns:
        has_default = column.default is not None or column.server_default is not None
        has_value = column.nullable or has_default or column.computed or column.identity
        if not has_value and column not in written and column is not leased.key:
            raise ModelError(
                f"{name}.periodic: {leased.name}.{column.name} is not nullable and has no default;"
                f" give it a value: Periodic({row.key!r}, ..., {{{column.name!r}: ...}})",
                model=leased.name,
                column=column.name,
            )
