"""Rules about how attempts are counted (B4): one by one, by attempts alone, and no further than
their limit.

The one idea: an attempt is counted with its outcome, or by whoever takes over from a holder that
died; nothing else moves the count. A service may set it to 0: then the row starts afresh.

Not here: the other rules, and who asks for these (``checker.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rowlock.rows.lock_tokens import deaths_of

from .history import Change
from .state import FREE, HistoryState, is_outcome, is_stamped_ahead, is_uncounted

UNCOUNTED_AGAIN = "claimed, and for the second time in a row a death was not counted"
"""Broken unless the first of the two claims came to nothing, which no lock column tells."""


def attempts(change: Change, history_state: HistoryState) -> Iterator[str]:
    """Find a count that moved without an attempt, or by more than one."""
    before, after = change.before, change.after
    if before is None or after is None or before.attempts is None or after.attempts is None:
        return
    if history_state.is_claim(change):
        dead = before.lock_token is not None and before.lock_owner == after.lock_owner
        deaths = deaths_of(after.lock_token)
        if is_uncounted(change):
            if history_state.is_uncounted(before.lock_token):
                yield UNCOUNTED_AGAIN
            return
        # A death in a crowd is no attempt of the row.
        is_attempt = dead and deaths.in_crowds <= deaths_of(before.lock_token).in_crowds
        if after.attempts != before.attempts + is_attempt:
            died = "whose holder had died" if dead else "that nobody had died on"
            yield f"claimed, {died}, and attempts went from {before.attempts} to {after.attempts}"
    elif is_outcome(change) and history_state.is_uncounted(before.lock_token):
        yield "worked on by a holder that had not counted the death before it"
    elif after.attempts not in (before.attempts, 0):
        history = None if before.lock_token is None else history_state.tokens.get(before.lock_token)
        if after.lock_token is not None or history is None:
            yield f"attempts went from {before.attempts} to {after.attempts} without an attempt"
        elif history.attempts is not None and after.attempts != history.attempts + 1:
            yield f"one attempt, claimed at {history.attempts}, was counted to {after.attempts}"


def kept_attempts(change: Change, history_state: HistoryState) -> Iterator[str]:
    """Find a count that was lost when its row was released, or that stood still though an
    attempt had failed.
    """
    before, after = change.before, change.after
    if before is None or after is None or before.lock_token is None or after.lock_token is not None:
        return
    if not before.attempts or after.attempts is None:
        return
    if not is_outcome(change) and not is_stamped_ahead(change):
        if after.attempts != before.attempts:
            yield (
                f"freed without an outcome, and attempts went from {before.attempts} to"
                f" {after.attempts}"
            )
    elif (
        is_outcome(change)
        and after.attempts == before.attempts
        and after.lock_owner is None
        and after.parked_at is None
    ):
        yield f"an outcome that was neither reset nor parked left attempts at {after.attempts}"


def endless(
    change: Change, _: HistoryState, *, attempts_max: int | Mapping[str, int | None]
) -> Iterator[str]:
    """Find a row that failed as often as it may and was not parked; the limit is one for all, or
    that of each owner by name.
    """
    before, after = change.before or FREE, change.after
    # Also where the clock stood still, and the stamp with it.
    is_freed = before.lock_token is not None and after is not None and after.lock_token is None
    if after is None or not is_freed or before.attempts is None or after.attempts is None:
        return
    limit = (
        attempts_max if isinstance(attempts_max, int) else attempts_max.get(before.lock_owner or "")
    )
    if (
        limit is not None
        and after.attempts > before.attempts
        and after.attempts >= limit
        and after.parked_at is None
    ):
        yield f"failed {after.attempts} times, and was not parked at {limit}"
