"""What follows an attempt that has ended: the outcome that is written for its row, or why none is.

The one idea: what `process` returned is the host's object. Whatever goes wrong with it is a failure
of that row and of nothing else.

A task group wraps what its tasks raised, so every error is looked at as a group of one or more, and
one outcome follows from all of them together: one that was raised, what the host's rules make of
it, or a failure. And what was returned may be no outcome by mistake: a forgotten return, await or
pair of brackets, or changes of rows that nothing writes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from rowlock import events
from rowlock.clock import monotonic
from rowlock.database.faults import is_refused, is_transient
from rowlock.errors import (
    HOST_ERRORS,
    HostCodeError,
    OutcomeError,
    RelatedLockUnavailable,
    RowlockError,
    describe,
)
from rowlock.leases.claim import may_be_newer
from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.attempt import Ended, Raised, Result, Returned
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
)
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import columns_written

logger = get_logger(__name__)

NAMES_SHOWN_MAX = 5


def check_returned(value: object, *, hook: str, allows_none: bool) -> None:
    """Refuse a forgotten return, await or pair of brackets."""
    if value is None:
        if not allows_none:
            raise OutcomeError(
                f"{hook} returned None: return Apply(...), or annotate it with -> None (or with"
                " -> Outcome | None) if that means Apply()"
            )
    elif inspect.iscoroutine(value):
        value.close()
        raise OutcomeError(
            f"{hook} returned the coroutine {value.__qualname__}, which was not awaited: write"
            " `return await ...`"
        )
    elif isinstance(value, type):
        raise OutcomeError(f"{hook} returned the class {value.__name__}: write {value.__name__}()")


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
            case _ if (rule := context.expected_errors.rule_for(leaf)) is not None:
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
    if type(value) is Apply:
        outcome: Outcome = value
    else:
        check_returned(value, hook=hook, allows_none=allows_none)
        outcome = as_outcome(value)
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
