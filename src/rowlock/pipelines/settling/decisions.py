"""What comes of an attempt that has ended: the outcome that is written for its row, or why none is.

The one idea: what `process` returned is the host's object, of which every property, method and
``__iter__`` may raise anything, ``SystemExit`` included. Whatever it raises is a failure of that
row and of nothing else.

Not here: what is done about a decision (``pipelines/settling/settler.py``).
"""

from __future__ import annotations

from typing import Any, TypeAlias

from rowlock.clock import monotonic
from rowlock.database.faults import is_refused, is_transient
from rowlock.errors import RowlockError, describe
from rowlock.leases.item import PipelineItem
from rowlock.leases.load import NOT_DAMAGED
from rowlock.logs import get_logger
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.host_code.call import Ended, Raised, Result, Returned
from rowlock.pipelines.outcomes import (
    Apply,
    Delete,
    Outcome,
    Park,
    Reset,
    Retry,
    as_outcome,
    check_outcome,
    check_related,
    forget_raising,
)
from rowlock.pipelines.settling.raised import outcome_of_error, record_failure
from rowlock.pipelines.settling.returned import check_returned, check_written

logger = get_logger(__name__)

Decision: TypeAlias = Outcome | Ended


def decide(context: PipelineContext[Any], item: PipelineItem[Any], result: Result) -> Decision:
    """Return what is to be settled for `item` after its attempt came to `result`."""
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
    # Out of the host's own object: never the end of this task, or of the loop.
    except BaseException as raised:  # noqa: BLE001
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
    """Return `value`, which the host's `hook` gave for `item`, as an outcome that can be written.

    Raises:
        BaseException: it is none, or names what cannot be written; or whatever the host's own
            objects raise.
    """
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
    parks = context.leased.has_schedule and not isinstance(error, NOT_DAMAGED)
    if parks and item.id in left_out:
        left_out.discard(item.id)
        return Park(
            f"no replica has read it: {text}; correct it, or deploy code that reads it, then unpark"
            " the row"
        )
    if kind not in left_out.kinds:
        left_out.kinds.add(kind)
        logger.error(
            "%s: row %s cannot be read by this replica: %s; it is released without an attempt and"
            " left to other replicas%s; this is logged once for each kind of error",
            context.name,
            item.id,
            text,
            ", and parked if it comes back" if parks else "",
            extra={"pipeline": context.name, "row_id": item.id, "error": text},
            exc_info=error,
        )
    # A row that cannot be left out as well must not head the next claim again.
    return Ended.INTERRUPTED if left_out.add(item.id, monotonic()) else Reset()


def record_unreadable(
    context: PipelineContext[Any], item: PipelineItem[Any], column: str
) -> Park | Retry:
    """Tell of a row that cannot be read and return the outcome for it: it is parked; without a
    schedule, its stamp is mended.
    """
    extra = {"pipeline": context.name, "row_id": item.id, "column": column}
    if context.leased.has_schedule:
        logger.error(
            "%s: row %s is parked: its %s cannot be read",
            context.name,
            item.id,
            column,
            extra=extra,
        )
        return Park(
            f"{column} cannot be read: it holds no time that Python has; correct it, then unpark"
            " the row"
        )
    text = (
        "%s: the %s of row %s cannot be read; it is set to the present time, and the row waits for"
        " its next turn"
    )
    logger.error(text, context.name, column, item.id, extra=extra)
    return Retry()
