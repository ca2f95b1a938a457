"""Rules about what comes too late or too early: related rows that outlive an outcome, leases that
nobody looks after, early claims.

The one idea: a lease tells when it ends and a row when it is due, so whoever reads the history can
tell how long it had to wait.

Not here: the other rules, and who asks for these (``checker.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta

from rowlock.rows.eligibility import OWNER_SEPARATOR

from .history import Change
from .state import FREE, HistoryState, Place, place_of


def released_late(change: Change, history_state: HistoryState) -> Iterator[str]:
    """Find a related row that was not freed in the transaction that wrote its main row's
    outcome.
    """
    before, after = change.before, change.after
    token = None if before is None else before.lock_token
    if token is None or after is None or after.lock_token == token:
        return
    history = history_state.tokens.get(token)
    if history is None or history.processed is None or history.home in (None, place_of(change)):
        return
    outcome = history.processed.transaction
    if outcome is not None:
        # While the outcome is not committed, a related lease may end and its row be taken.
        is_later = change.transaction != outcome and change.was_noted_after(outcome)
    else:
        # Nobody knows SQLite's transactions, but it has one writer at a time.
        is_later = after.lock_token is not None or history_state.claimed > history.processed.number
    if is_later:
        yield (
            "was still locked after the outcome of its main row, which is change"
            f" {history.processed.number}"
        )


def too_long(
    change: Change, _: HistoryState, *, lock_timeouts: Mapping[str, timedelta]
) -> Iterator[str]:
    """Find a lease that ends later than its pipeline's `lock_timeout` allows."""
    after = change.after
    if (
        after is None
        or after.lock_token is None
        or after.lock_owner is None
        or after.lock_expires_at is None
    ):
        return
    if change.before is not None and change.before.lock_expires_at == after.lock_expires_at:
        return
    longest = lock_timeouts.get(after.lock_owner.partition(OWNER_SEPARATOR)[0])
    lasts = after.lock_expires_at - change.at
    if longest is not None and lasts > longest:
        yield (
            f"leased for {lasts.total_seconds():.3f} s, and {after.lock_owner} may for"
            f" {longest.total_seconds():.3f} s"
        )


def claimed_early(change: Change, history_state: HistoryState) -> Iterator[str]:
    """Find a row that a pipeline took though it was set aside, or before it was due."""
    before = change.before
    if before is None or not history_state.is_claim(change):
        return
    if before.parked_at is not None:
        yield f"taken though it was parked at {before.parked_at}"
    if before.due_at is not None and before.due_at > change.at:
        yield f"taken {(before.due_at - change.at).total_seconds():.3f} s before it was due"


def claimed_late(change: Change, _: HistoryState, *, taken_within: timedelta) -> Iterator[str]:
    """Find a lease that had ended long before somebody looked after its row."""
    before = change.before or FREE
    if before.lock_token is None or before.lock_expires_at is None:
        return
    has_changed = change.after is None or change.after.lock_token != before.lock_token
    late = change.at - before.lock_expires_at
    if has_changed and late > taken_within:
        yield (
            f"the lease of {before.lock_owner} had ended {late.total_seconds():.3f} s before"
            " anybody looked after the row"
        )


def ended_unseen(
    history_state: HistoryState, now: datetime, *, taken_within: timedelta
) -> Iterator[tuple[Place, str]]:
    """Find leases that have ended and that nobody had looked after when the history ended."""
    for place, state in history_state.rows.items():
        if state.lock_token is not None and state.lock_expires_at is not None:
            late = now - state.lock_expires_at
            if late > taken_within:
                yield (
                    place,
                    (
                        f"the lease of {state.lock_owner} has ended {late.total_seconds():.3f} s"
                        " ago, and nobody looked after it"
                    ),
                )
