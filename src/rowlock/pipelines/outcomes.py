"""What `process` may return: pure data, checked before any transaction is opened.

Not here: what each outcome writes (``pipelines/plan.py``) and who writes it (``pipelines/writer.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.errors import OutcomeError, describe, shorten
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import Values, column_of, column_values

Also: TypeAlias = Callable[[AsyncSession, datetime], Awaitable[None]]
HintTarget: TypeAlias = str | type
"""A model, or its class name."""


@dataclass(frozen=True, slots=True)
class Apply:
    """The attempt succeeded: write `values` and unlock the row.

    Attributes:
        values: update map of the row; `NOW_PLACEHOLDER` stands for the transaction's time.
        related: update maps of related rows that this item has locked.
        also: runs in the same transaction after the guard matched, as ``await also(session, now)``; it must not commit.
        after: when the row is due again, from now; default `min_processing_interval`. Needs `ScheduleColumns`.
        unless_changed: columns that must still be as they were in ``item.row``, or nothing is written.
        hint: models to hint after the commit.
    """

    values: Values = field(default_factory=dict)
    related: Mapping[Any, Values] = field(default_factory=dict, kw_only=True)
    also: Also | None = field(default=None, kw_only=True)
    after: timedelta | float | None = field(default=None, kw_only=True)
    unless_changed: Sequence[Any] = field(default=(), kw_only=True)
    hint: Sequence[HintTarget] | HintTarget = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class Retry:
    """The attempt failed: unlock the row and try again later.

    Attributes:
        after: rest until then; default capped exponential backoff. Needs `ScheduleColumns`.
        error: what went wrong; an exception or a text, stored shortened in `last_error`.
        values: update map of the row, written all the same.
    """

    after: timedelta | float | None = None
    error: BaseException | str | None = field(default=None, kw_only=True)
    values: Values = field(default_factory=dict, kw_only=True)


@dataclass(frozen=True, slots=True)
class Reset:
    """A related lock was not to be had: unlock the row but keep its owner, so that this pipeline comes back for it first."""


@dataclass(frozen=True, slots=True)
class Park:
    """Set the row aside until somebody releases it. Needs `ScheduleColumns`."""

    reason: str


Outcome: TypeAlias = Apply | Retry | Reset | Park


def as_outcome(returned: object) -> Outcome:
    """Return what `process` returned as an outcome; None is ``Apply()``.

    Raises:
        OutcomeError: it is something else.
    """
    match returned:
        case None:
            return Apply()
        case Apply() | Retry() | Reset() | Park():
            return returned
        case _:
            raise OutcomeError(f"process must return Apply, Retry, Reset, Park or None, not {returned!r:.200}")


def check_outcome(leased: LeasedTable[Any], outcome: Outcome) -> None:
    """Refuse an outcome that cannot be written to this model, before any transaction is opened.

    Raises:
        OutcomeError: says which part, and what to change.
    """
    match outcome:
        case Apply():
            column_values(leased, outcome.values)
            for key in outcome.unless_changed:
                column_of(leased, key)
            _need_schedule(leased, "Apply(after=...)", needed=outcome.after is not None)
            _check_delay(outcome.after)
            if outcome.related:
                raise OutcomeError("Apply(related=...): this item has locked no related rows")
        case Retry():
            column_values(leased, outcome.values)
            _need_schedule(leased, "Retry(after=...)", needed=outcome.after is not None)
            _check_delay(outcome.after)
        case Park():
            _need_schedule(leased, "Park", needed=True)
        case Reset():
            pass


def delay_of(after: timedelta | float) -> timedelta:
    """Return a duration as a timedelta; a plain number is seconds."""
    return after if isinstance(after, timedelta) else timedelta(seconds=after)


def _check_delay(after: timedelta | float | None) -> None:
    if after is not None and delay_of(after) < timedelta(0):
        raise OutcomeError(f"after={after!r} lies in the past; pass zero or more")


def _need_schedule(leased: LeasedTable[Any], what: str, *, needed: bool) -> None:
    if needed and not leased.has_schedule:
        raise OutcomeError(f"{what} needs ScheduleColumns, which {leased.name} does not have; mix them in")


def error_text(error: BaseException | str | None) -> str | None:
    """Return what is stored of an error: shortened, None if there is none."""
    if error is None:
        return None
    return shorten(error) if isinstance(error, str) else describe(error)


def hint_targets(hint: Sequence[HintTarget] | HintTarget) -> Sequence[HintTarget]:
    """Return the models to hint; one alone may be given without a list."""
    return (hint,) if isinstance(hint, str | type) else tuple(hint)
