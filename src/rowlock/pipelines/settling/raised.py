"""What comes of an error that left `process`: an outcome that was raised, what the host's rules
make of it, or a failure.

The one idea: a task group wraps what its tasks raised, so every error is looked at as a group of
one or more, and one outcome comes of all of them together.

Not here: the rules (``pipelines/host_code/expected_errors.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from rowlock import events
from rowlock.errors import HostCodeError, RelatedLockUnavailable, describe
from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.copies import copied
from rowlock.pipelines.host_code.expected_errors import ErrorRule
from rowlock.pipelines.outcomes import (
    RAISABLE,
    Outcome,
    Park,
    Reset,
    Retry,
    delay_of,
    error_text,
    forget_raising,
    leaves_of,
)

logger = get_logger(__name__)


@dataclass(slots=True)
class _Meanings:
    """What the errors of one attempt mean."""

    parks: list[Park] = field(default_factory=list)
    retries: list[Retry] = field(default_factory=list)
    resets: int = 0
    failures: list[BaseException] = field(default_factory=list)
    expected: list[BaseException] = field(default_factory=list)


def outcome_of_error(
    context: PipelineContext[Any], item: PipelineItem[Any], error: BaseException
) -> Outcome:
    """Return the outcome that comes of `error`, which left the host's code, and record what was
    not raised as an outcome.

    Of several, `Park` counts first, then a failure, then `Retry` (the one that rests longest); and
    `Reset` if there is nothing else. A failure takes the rest of a `Retry` beside it.

    Raises:
        BaseException: whatever the host's own objects raise.
    """
    meanings = _Meanings()
    for leaf in leaves_of(error):
        _collect(context, leaf, meanings)
    outcome = _together(meanings, error)
    if meanings.failures:
        failure = record_failure(context, item, error)
        return failure if outcome is None else outcome
    if meanings.expected:
        _record_expected(context, item, meanings.expected[0])
    return Reset() if outcome is None else outcome


def raised_by_also(
    context: PipelineContext[Any], item: PipelineItem[Any], error: BaseException
) -> Outcome | None:
    """Return the outcome that `also` raised, alone or in a task group; None if it raised none.
    Nothing of its transaction was written.

    Raises:
        BaseException: whatever the host's own objects raise.
    """
    raised = error.__cause__ if isinstance(error, HostCodeError) else None
    if raised is None or not any(isinstance(leaf, RAISABLE) for leaf in leaves_of(raised)):
        return None
    try:
        return outcome_of_error(context, item, raised)
    finally:
        forget_raising(raised)


def record_failure(
    context: PipelineContext[Any], item: PipelineItem[Any], error: BaseException
) -> Retry:
    """Record `error` and return the outcome for it."""
    # Whoever alerts by errors is to hear of live work alone.
    log, text = (
        (logger.warning, "%s: rehearsing row %s failed")
        if item.is_rehearsal
        else (logger.error, "%s: processing row %s failed")
    )
    log(
        text,
        context.name,
        item.id,
        extra={"pipeline": context.name, "row_id": item.id},
        exc_info=error,
    )
    _tell_failed(context, item, describe(error))
    return Retry(error=error)


def _tell_failed(context: PipelineContext[Any], item: PipelineItem[Any], text: str) -> None:
    if item.is_rehearsal:
        # Nothing of it is counted.
        return
    events.emit(
        events.ItemFailed(context.name, item.id, item.lock_token, text, process_s=item.process_s)
    )


def _collect(context: PipelineContext[Any], error: BaseException, meanings: _Meanings) -> None:
    match error:
        case Park():
            meanings.parks.append(copied(error))
        case Retry():
            meanings.retries.append(_with_cause(error))
        case Reset() | RelatedLockUnavailable():
            meanings.resets += 1
        case _:
            rule = context.expected_errors.rule_for(error)
            if rule is None:
                meanings.failures.append(error)
            else:
                meanings.expected.append(error)
                _follow(rule, error, meanings)


def _follow(rule: ErrorRule, error: BaseException, meanings: _Meanings) -> None:
    if rule.parks:
        meanings.parks.append(Park(error_text(error) or ""))
    else:
        meanings.retries.append(Retry(rule.delay_after(error), error=error))


def _together(meanings: _Meanings, error: BaseException) -> Outcome | None:
    if meanings.parks:
        return meanings.parks[0]
    if not meanings.retries:
        return None
    longest = max(meanings.retries, key=_rest_s)
    return replace(longest, error=error) if meanings.failures else longest


def _rest_s(retry: Retry) -> float:
    return -1.0 if retry.after is None else delay_of(retry.after).total_seconds()


def _with_cause(raised: Retry) -> Retry:
    retry = copied(raised)
    if retry.error is not None:
        return retry
    cause = raised.__cause__
    if cause is None and not raised.__suppress_context__:
        cause = raised.__context__
    return replace(retry, error=cause) if isinstance(cause, Exception) else retry


def _record_expected(
    context: PipelineContext[Any], item: PipelineItem[Any], error: BaseException
) -> None:
    # Without a traceback: the host knows where such errors come from.
    text = describe(error)
    logger.warning(
        "%s: processing row %s failed with an error that is expected: %s",
        context.name,
        item.id,
        text,
        extra={"pipeline": context.name, "row_id": item.id, "error": text},
    )
    _tell_failed(context, item, text)
