"""What follows an attempt that has ended: the outcome that is written for its row, or why none is,
and what that outcome writes.

An error in an object that `process` returned is a failure of its row alone. A task group wraps
what its tasks raised, so every error is taken for a group of one or more, from which one outcome
follows.

`Planner` is the one switch over outcomes, as a pure function of the transaction's time: it turns
them into column values and knows nothing of sessions.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from operator import is_
from typing import Any, TypeAlias

from sqlalchemy import Column

from rowlock import events
from rowlock.clock import Randomness, exponential, jittered, monotonic
from rowlock.database.faults import is_refused, is_transient
from rowlock.errors import (
    ERROR_TEXT_CHARS_MAX,
    HOST_ERRORS,
    HostCodeError,
    OutcomeError,
    RelatedLockUnavailable,
    RowlockError,
    describe,
    shorten,
)
from rowlock.leases.apply import RelatedWrite, RowWrite
from rowlock.leases.claim import may_be_newer
from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import Ended, Raised, Result, Returned, rule_for
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.outcomes import (
    RAISABLE,
    SUCCESSES,
    Apply,
    Delete,
    Outcome,
    Park,
    Reset,
    Retry,
    as_outcome,
    check_outcome,
    check_related,
    copied,
    delay_of,
    error_text,
    forget_raising,
    leaves_of,
    related_items,
)
from rowlock.pipelines.settings import PipelineSettings
from rowlock.rows.assignments import ColumnValues, without_onupdate
from rowlock.rows.lease_values import (
    due_values,
    processed_values,
    reset_values,
    unless_parked,
    unlocked_values,
)
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import (
    Values,
    column_of,
    column_values,
    columns_written,
    resolve_now_placeholders,
)

logger = get_logger(__name__)

NAMES_SHOWN_MAX = 5


def check_written(leased: LeasedTable, item: PipelineItem[Any], outcome: Outcome) -> None:
    """Refuse what was changed of ``item.row`` and is not written by `outcome`; and of a success,
    what was changed of related rows or in a session of the item, and is not written either.
    """
    changed = item.changed_attributes()
    if changed and isinstance(outcome, Apply | Retry):
        written = columns_written(leased, outcome.values)
        changed = [name for name in changed if leased.columns_by_name.get(name) not in written]
    if changed:
        raise OutcomeError(
            f"process changed item.row ({_shown(changed)}), which writes nothing: return"
            f" Apply({{{changed[0]!r}: ...}})",
            column=changed[0],
        )
    if not isinstance(outcome, SUCCESSES):
        return
    if item.held is not None and (of_related := item.held.unwritten(outcome.related)):
        raise OutcomeError(
            f"process changed related rows ({_shown(of_related)}), which writes nothing: return"
            " Apply(related={row: {...}})"
        )
    if item.unwritten:
        raise OutcomeError(
            f"process left item.session() without a commit ({_shown(item.unwritten)}), which writes"
            " nothing: commit it, roll it back, or return what is to be written as an outcome"
        )


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMES_SHOWN_MAX])


def outcome_of_error(
    context: PipelineContext[Any], item: PipelineItem[Any], error: BaseException
) -> Outcome:
    """Return the outcome that follows from `error`, which left the host's code, and record what was
    not raised as an outcome.

    Of several, `Park` counts first, then a failure, then `Retry` (the one that rests longest); and
    `Reset` if there is nothing else. A failure takes the rest of a `Retry` beside it.
    """
    meant: list[Park | Retry] = []
    failed, expected = False, list[BaseException]()
    for leaf in leaves_of(error):
        match leaf:
            case Park():
                meant.append(copied(leaf))
            case Retry():
                meant.append(_with_cause(leaf))
            case Reset() | RelatedLockUnavailable():
                pass
            case _ if (rule := rule_for(context.expected_errors, leaf)) is not None:
                expected.append(leaf)
                meant.append(
                    Park(error_text(leaf) or "")
                    if rule.parks
                    else Retry(rule.delay_after(leaf), error=leaf)
                )
            case _:
                failed = True
    if failed:
        failure = record_failure(context, item, error)
        meant = [replace(one, error=error) if isinstance(one, Retry) else one for one in meant]
        return max(meant, key=_rank, default=failure)
    if expected:
        # Without a traceback: the host knows where such errors come from.
        text = describe(expected[0])
        logger.warning(
            "%(pipeline)s: processing row %(row_id)s failed with an error that is expected:"
            " %(error)s",
            context.of(item, error=text),
        )
        _emit_failed(context, item, text)
    return max(meant, key=_rank, default=Reset())


def _rank(outcome: Park | Retry) -> float:
    if isinstance(outcome, Park):
        return math.inf
    return -1.0 if outcome.after is None else delay_of(outcome.after).total_seconds()


def _with_cause(raised: Retry) -> Retry:
    retry = copied(raised)
    if retry.error is not None:
        return retry
    cause = raised.__cause__
    if cause is None and not raised.__suppress_context__:
        cause = raised.__context__
    return replace(retry, error=cause) if isinstance(cause, Exception) else retry


def raised_by_also(
    context: PipelineContext[Any], item: PipelineItem[Any], error: BaseException
) -> Outcome | None:
    """Return the outcome that `also` raised, alone or in a task group, which is no failure; None if
    it raised none. Nothing of its transaction was written.
    """
    raised = error.__cause__ if isinstance(error, HostCodeError) else None
    if raised is None or not any(isinstance(leaf, RAISABLE) for leaf in leaves_of(raised)):
        return None
    try:
        return checked(context, item, outcome_of_error(context, item, raised))
    except Exception:  # noqa: BLE001 - it cannot be written; `error` is recorded
        return None
    finally:
        forget_raising(raised)


def record_failure(
    context: PipelineContext[Any], item: PipelineItem[Any], error: BaseException
) -> Retry:
    # Alerts that count errors are about live work alone.
    log, text = logger.error, "%(pipeline)s: processing row %(row_id)s failed"
    if item.is_rehearsal:
        log, text = logger.warning, "%(pipeline)s: rehearsing row %(row_id)s failed"
    log(text, context.of(item), exc_info=error)
    _emit_failed(context, item, describe(error))
    return Retry(error=error)


def _emit_failed(context: PipelineContext[Any], item: PipelineItem[Any], text: str) -> None:
    # Nothing of a rehearsal is counted.
    if not item.is_rehearsal:
        of = (context.name, item.id, item.lock_token)
        events.emit(events.ItemFailed(*of, text, process_s=item.process_s))


Decision: TypeAlias = Outcome | Ended


def decide(context: PipelineContext[Any], item: PipelineItem[Any], result: Result) -> Decision:
    if isinstance(result, Ended) and result is not Ended.TIMED_OUT:
        return result
    try:
        if isinstance(result, Returned):
            outcome = checked(context, item, result.value, allows_none=context.allows_none)
            if context.checks_rows and not item.is_untouched:
                check_written(context.leased, item, outcome)
            return outcome
        error = result.error if isinstance(result, Raised) else TimeoutError(result.value)
        return checked(context, item, outcome_of_error(context, item, error))
    # Out of the host's own object.
    except HOST_ERRORS as raised:
        error = raised
    finally:
        if isinstance(result, Raised):
            forget_raising(result.error)
    return record_failure(context, item, error)


def checked(
    context: PipelineContext[Any],
    item: PipelineItem[Any],
    value: object,
    *,
    allows_none: bool = False,
    hook: str = "process",
) -> Outcome:
    """Return `value`, which the host's `hook` gave for `item`, as an outcome to be written."""
    outcome = as_outcome(value, hook=hook, allows_none=allows_none)
    check_outcome(context.leased, outcome)
    if isinstance(outcome, Apply | Delete) and outcome.related != {}:
        check_related(item, outcome.related)
    return outcome


def decide_unread(
    context: PipelineContext[Any], item: PipelineItem[Any], error: Exception
) -> Decision:
    """Return what is to be settled for an `item` whose row could not be read because of `error`.

    No attempt is counted. The row is released and left to other replicas, whose code may read it;
    one that comes back has been read by none of them, and is parked. A value that this code does
    not name is never a reason to park: the replica that reads it may be started later.
    """
    if is_transient(error) or is_refused(error) or isinstance(error, RowlockError):
        # An outage that lasts, a table of its kind that is not migrated yet, or `options()` of the
        # host's: no replica would read it now.
        return record_failure(context, item, error)
    context.counters.unreadable += 1
    left_out, kind, text = context.left_out, type(error).__qualname__, describe(error)
    parks = context.leased.has_schedule and not may_be_newer(error)
    if parks and item.id in left_out:
        left_out.discard(item.id)
        return Park(
            f"no replica has read it: {text}; correct it, or deploy code that reads it, then unpark"
            " the row"
        )
    if kind not in left_out.kinds:
        left_out.kinds.add(kind)
        told = (
            "%(pipeline)s: row %(row_id)s cannot be read by this replica: %(error)s; it is released"
            " without an attempt and left to other replicas"
            f"{', and parked if it comes back' if parks else ''}; this is logged once for each kind"
            " of error"
        )
        logger.error(told, context.of(item, error=text), exc_info=error)
    # A row that cannot be left out as well must not head the next claim again.
    return Ended.INTERRUPTED if left_out.add(item.id, monotonic()) else Reset()


def record_unreadable(
    context: PipelineContext[Any], item: PipelineItem[Any], column: str
) -> Park | Retry:
    """Return the outcome of a row that cannot be read: `Park`; without a schedule, `Retry`."""
    extra = context.of(item, column=column)
    if context.leased.has_schedule:
        logger.error("%(pipeline)s: row %(row_id)s is parked: its %(column)s cannot be read", extra)
        return Park(
            f"{column} cannot be read: it holds no time that Python has; correct it, then unpark"
            " the row"
        )
    logger.error(
        "%(pipeline)s: the %(column)s of row %(row_id)s cannot be read; it is set to the"
        " present time, and the row waits for its next turn",
        extra,
    )
    return Retry()


DEADLINE_PASSED = "deadline passed"
NO_NEXT_TIME = "its schedule gives no next time"


def has_no_attempt_left(item: PipelineItem[Any], settings: PipelineSettings) -> bool:
    return settings.max_attempts is not None and item.attempt >= settings.max_attempts


def reason_parked(item: PipelineItem[Any], outcome: Outcome, settings: PipelineSettings) -> str:
    """Return why `outcome` has set the row aside, as `last_error` has it."""
    if isinstance(outcome, Park):
        return outcome.reason
    if not isinstance(outcome, Retry):
        return NO_NEXT_TIME
    is_last = has_no_attempt_left(item, settings)
    reason = f"gave up after {item.attempt} attempts" if is_last else DEADLINE_PASSED
    error = error_text(outcome.error)
    return f"{reason}: {error}" if error else reason


class Planner:
    rng: Randomness = random

    def __init__(
        self,
        context: PipelineContext[Any],
        now: datetime,
        *,
        stamp: datetime | None = None,
        values_of: Callable[[LeasedTable, Values], ColumnValues] = column_values,
    ) -> None:
        """`now` is the database's time; `stamp` the time at which the row was processed; and
        `values_of` may check update maps, too.
        """
        leased, self._now, self._settings = context.leased, now, context.settings
        self._leased, self._intent, self._schedules = leased, context.intent, context.schedules
        self._values_of = values_of
        self._is_bare = not (leased.has_schedule or self._intent)
        self._processed = processed_values(leased, stamp or now)
        self._done = unlocked_values(leased) | self._processed
        self._last: tuple[Values, ColumnValues] = ({}, {})
        self._shared: tuple[ColumnValues, RowWrite] | None = None

    def plan(self, item: PipelineItem[Any], outcome: Outcome) -> RowWrite:
        match outcome:
            case Apply():
                return self._apply(item, outcome)
            case Retry():
                return self._retry(item, outcome)
            case Reset():
                return self._reset(item)
            case Park():
                return self._park(item, outcome)
            case Delete():
                return self._delete(item, outcome)

    def _apply(self, item: PipelineItem[Any], outcome: Apply) -> RowWrite:
        written, values = self._written(item, outcome.values), self._done
        if self._is_bare and not outcome.unless_changed and not outcome.related:
            # Nothing in it is of one row alone.
            if self._shared is None or self._shared[0] is not written:
                write = RowWrite(with_onupdate_if(self._leased, written, self._done))
                self._shared = (written, write)
            return self._shared[1]
        guarded, parks = self._guarded(outcome), False
        if self._leased.has_schedule:
            rest, parks = self._rest(item, outcome)
            values = values | {self._leased.column("attempts"): 0} | rest
        write = self._unless_changed(item, guarded, with_onupdate_if(self._leased, written, values))
        return self._with_related(item, outcome, replace(write, parks=True) if parks else write)

    def _delete(self, item: PipelineItem[Any], outcome: Delete) -> RowWrite:
        values = without_onupdate(self._leased, self._done)
        write = self._unless_changed(item, self._guarded(outcome), values)
        return self._with_related(item, outcome, replace(write, deletes=True))

    def _guarded(self, outcome: Apply | Delete) -> list[Column[Any]]:
        return [*self._intent, *(column_of(self._leased, key) for key in outcome.unless_changed)]

    def _with_related(
        self, item: PipelineItem[Any], outcome: Apply | Delete, write: RowWrite
    ) -> RowWrite:
        if not outcome.related:
            return write
        related = (self._related(item, *each) for each in related_items(outcome.related))
        return replace(write, related=tuple(related))

    def _retry(self, item: PipelineItem[Any], outcome: Retry) -> RowWrite:
        written, values = self._written(item, outcome.values), self._done
        reason, rests_on = self._reason_to_park(item) if self._leased.has_schedule else (None, ())
        if self._leased.has_schedule:
            error = self._fitting(error_text(outcome.error))
            values = values | {self._leased.column("attempts"): item.attempt}
            values |= unless_parked(self._leased, "last_error", error)
            if reason is not None:
                values |= self._parked(f"{reason}: {error}" if error else reason)
            else:
                values |= self._due(item, self._retry_delay(item, outcome))
        # A failure rests on nothing that was read; but it must not overwrite a request, nor set the
        # row aside with it.
        guarded = (
            [*self._intent, *rests_on]
            if reason
            else [column for column in self._intent if column in written]
        )
        write = self._unless_changed(item, guarded, with_onupdate_if(self._leased, written, values))
        return replace(write, parks=reason is not None)

    def _park(self, item: PipelineItem[Any], outcome: Park) -> RowWrite:
        values = without_onupdate(self._leased, self._done | self._parked(outcome.reason))
        return replace(self._unless_changed(item, self._intent, values), parks=True)

    def _reset(self, item: PipelineItem[Any]) -> RowWrite:
        values = reset_values(self._leased) | self._processed
        if self._leased.has_schedule:
            # It lets others go first, but comes back long before a minimum interval is over.
            delay_s = jittered(self._settings.retry_delay.total_seconds(), rng=self.rng)
            values |= self._due(item, timedelta(seconds=delay_s))
        return RowWrite(without_onupdate(self._leased, values))

    def _written(self, item: PipelineItem[Any], values: Values) -> ColumnValues:
        # Outcomes of a batch are mostly alike.
        last, written = self._last
        if not _is_alike(values, last):
            written = self._values_of(self._leased, resolve_now_placeholders(values, self._now))
            self._last = (values, written)
        if self._schedules is not None:
            column = self._leased.column("due_at")
            if isinstance(due_at := written.get(column), datetime):
                return written | {column: self._schedules.marked(item, due_at)}
        return written

    def _reason_to_park(self, item: PipelineItem[Any]) -> tuple[str | None, Sequence[Column[Any]]]:
        """With the columns on which that rests, if any."""
        # Asked first: no service can take that back.
        if has_no_attempt_left(item, self._settings):
            return f"gave up after {item.attempt} attempts", ()
        column = self._leased.column("deadline_at")
        deadline = item.value_as_read(self._leased, column) if item.has_row else None
        if deadline is not None and self._now >= deadline:
            return DEADLINE_PASSED, (column,)
        return None, ()

    def _retry_delay(self, item: PipelineItem[Any], outcome: Retry) -> timedelta:
        if outcome.after is not None:
            return delay_of(outcome.after)
        first_s = self._settings.retry_delay.total_seconds()
        most_s = self._settings.retry_delay_max.total_seconds()
        delay_s = exponential(item.attempt, first_s=first_s, most_s=most_s, rng=self.rng)
        return timedelta(seconds=delay_s)

    def _parked(self, reason: str) -> ColumnValues:
        why = unless_parked(self._leased, "last_error", self._fitting(reason))
        return unless_parked(self._leased, "parked_at", self._now) | why

    def _fitting(self, text: str | None) -> str | None:
        """Shorten `text` to what the host's column holds."""
        most = ERROR_TEXT_CHARS_MAX
        length = getattr(self._leased.column("last_error").type, "length", None) or most
        return None if text is None else shorten(text, chars_max=min(length, most))

    def _rest(self, item: PipelineItem[Any], outcome: Apply) -> tuple[ColumnValues, bool]:
        """Return when the row is due, and whether parked: also if its schedule cannot be read."""
        due_at, after = outcome.due_at, outcome.after
        if due_at is None and after is None and self._schedules is not None:
            try:
                due_at = self._schedules.next_after(item, self._now)
            # Out of the host's own schedule: it parks its own row.
            except HOST_ERRORS as error:
                return self._parked(f"{NO_NEXT_TIME}: {describe(error)}"), True
        if due_at is not None:
            return self._due_at(item, due_at, by_schedule=outcome.due_at is None), False
        rest = self._settings.min_processing_interval if after is None else delay_of(after)
        return self._due(item, rest), False

    def _due(self, item: PipelineItem[Any], after: timedelta) -> ColumnValues:
        return self._due_at(item, self._now + after)

    def _due_at(
        self, item: PipelineItem[Any], due_at: datetime, *, by_schedule: bool = False
    ) -> ColumnValues:
        column = self._leased.column("due_at")
        if self._schedules is not None and not by_schedule:
            due_at = self._schedules.marked(item, due_at)
        # An attempt that failed before the row could be read knows of no request that came since.
        if not item.has_row:
            return {column: due_at}
        return due_values(self._leased, due_at, as_read=item.value_as_read(self._leased, column))

    def _related(self, item: PipelineItem[Any], named: object, values: Values) -> RelatedWrite:
        leased, key = item.held_rows().find(named)
        written = self._values_of(leased, resolve_now_placeholders(values, self._now))
        return RelatedWrite(leased, key, with_onupdate_if(leased, written, unlocked_values(leased)))

    def _unless_changed(
        self, item: PipelineItem[Any], columns: Sequence[Column[Any]], values: ColumnValues
    ) -> RowWrite:
        if not columns or not item.has_row:
            return RowWrite(values)
        as_read = {column: item.value_as_read(self._leased, column) for column in columns}
        released = unlocked_values(self._leased)
        if self._leased.has_schedule:
            released |= {self._leased.column("due_at"): self._now}
        when_changed = without_onupdate(self._leased, released)
        return RowWrite(values, unless_changed=as_read, when_changed=when_changed)


def with_onupdate_if(
    leased: LeasedTable, written: ColumnValues, values: ColumnValues
) -> ColumnValues:
    """Move the host's ``onupdate`` and version columns only where its own columns are written."""
    if not written:
        return without_onupdate(leased, values)
    return values | leased.next_version | written


def _is_alike(one: Values, other: Values) -> bool:
    """Whether keys and values are identical: what is equal, as 1 and True, may differ."""
    if len(one) != len(other):
        return False
    return all(map(is_, one, other)) and all(map(is_, one.values(), other.values()))
