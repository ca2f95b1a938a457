"""What comes of an attempt that has ended: the outcome that is written for its row, or why none is.

The one idea: what `process` returned is the host's object, of which every property, method and ``__iter__`` may raise anything,
``SystemExit`` included. Whatever it raises is a failure of that row and of nothing else.

Not here: what is done about a decision (``pipelines/settler.py``).
"""

from __future__ import annotations

from typing import Any, TypeAlias

from rowlock.errors import RelatedLockUnavailable
from rowlock.leases.item import PipelineItem
from rowlock.pipelines.attempt import Ended, Raised, Result, Returned
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.failures import record_failure
from rowlock.pipelines.outcomes import Apply, Outcome, Reset, as_outcome, check_outcome
from rowlock.pipelines.related_values import check_related

Decision: TypeAlias = Outcome | Ended


def decide(context: PipelineContext[Any], item: PipelineItem[Any], result: Result) -> Decision:
    """Return what is to be settled for `item` after its attempt came to `result`."""
    if isinstance(result, Ended) and result is not Ended.TIMED_OUT:
        return result
    try:
        if isinstance(result, Returned):
            return _checked(context, item, result.value)
        error = result.error if isinstance(result, Raised) else TimeoutError(result.value)
        if _is_unavailable(error):
            return Reset()
    except BaseException as raised:  # noqa: BLE001 - out of the host's own object: never the end of this task, or of the loop
        error = raised
    return record_failure(context, item, error)


def _checked(context: PipelineContext[Any], item: PipelineItem[Any], value: object) -> Outcome:
    outcome = as_outcome(value)
    check_outcome(context.leased, outcome)
    if isinstance(outcome, Apply) and outcome.related != {}:
        check_related(item, outcome.related)
    return outcome


def _is_unavailable(error: BaseException) -> bool:
    """Whether nothing but related locks were not to be had, also where a task group wrapped what its tasks raised."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(RelatedLockUnavailable)[1] is None
    return isinstance(error, RelatedLockUnavailable)
