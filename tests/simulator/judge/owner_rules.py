"""Rules about the name in `lock_owner`: who may put it there, and who may take it away (A9).

The one idea: a name comes and goes with a lease, and stays only where an outcome says that its
pipeline comes back. Then it reserves the row for a few seconds. The name on a lease that has ended
keeps nobody away.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from rowlock.rows.eligibility import OWNER_SEPARATOR, RESERVED_BEYOND

from .history import Change
from .state import FREE, HistoryState, is_composed, is_outcome, is_stamped_ahead, place_of


def names(change: Change, history_state: HistoryState) -> Iterator[str]:
    """Find a name that somebody put on a row, left there, or wrote over, who may not."""
    before, after = change.before, change.after
    if before is None or after is None:
        return
    if after.lock_token is None:
        if after.lock_owner is not None:
            yield from _names_left(change, history_state, left=after.lock_owner)
    elif after.lock_owner is None:
        yield "locked by nobody: a token without an owner"
    elif after.lock_token == before.lock_token:
        # An item may lock a row for itself alone that it had locked as a shared one, and the
        # reverse.
        if _stem(before.lock_owner) != _stem(after.lock_owner):
            yield f"the name of {before.lock_owner} was overwritten by {after.lock_owner}"
    elif (
        history_state.is_claim(change)
        and before.lock_token is None
        and before.lock_owner not in (None, after.lock_owner)
    ):
        last = before.last_processed_at
        # By the start of the transaction, by which the claim has judged.
        kept_for = None if last is None else (change.transaction_at or change.at) - last
        if kept_for is not None and timedelta(0) <= kept_for < RESERVED_BEYOND:
            yield (
                f"{after.lock_owner} claimed what was reserved for {before.lock_owner}"
                f" {kept_for.total_seconds():.3f} s before"
            )


def _names_left(change: Change, history_state: HistoryState, *, left: str) -> Iterator[str]:
    before = change.before or FREE
    if before.lock_token is None:
        if left != before.lock_owner:
            yield f"the name {left} was put on a row that nobody holds"
        return
    history = history_state.tokens.get(before.lock_token)
    is_main = history is not None and history.home == place_of(change)
    if not is_main and left == history_state.returning.get(place_of(change)):
        return
    if left != before.lock_owner:
        yield f"freed with the name of {left}, who had not reset it"
    elif history is not None and history.home is not None and not is_main:
        yield f"a related row was freed, and the name of {left} left in it"
    elif history is not None and history.home is None and is_composed(left):
        yield f"freed, and the name of {left} left in it"
    elif not is_outcome(change) and not is_stamped_ahead(change):
        yield f"freed without an outcome, and the name of {left} left in it"


def _stem(owner: str | None) -> str | None:
    return None if owner is None else owner.partition(OWNER_SEPARATOR)[0]
