"""Rules about the name in `lock_owner`: who may put it there, and who may take it away (A9).

The one idea: a name on a row keeps everybody else away from it, so it comes and goes with a lease, and stays only where an outcome
says that its pipeline comes back.

Not here: whether a row that was reset may be taken by a sibling, which depends on what the sibling wants and no lock column tells.
"""

from __future__ import annotations

from collections.abc import Iterator

from rowlock.rows.eligibility import OWNER_SEPARATOR
from rowlock.testing.history import Change
from rowlock.testing.ledger import FREE, Ledger, is_composed, is_outcome, is_stamped_ahead, place_of

__all__ = ["names"]


def names(change: Change, ledger: Ledger) -> Iterator[str]:
    """Find a name that somebody put on a row, left there, or wrote over, who may not."""
    before, after = change.before, change.after
    if before is None or after is None:
        return
    if after.lock_token is None:
        if after.lock_owner is not None:
            yield from _names_left(change, ledger, left=after.lock_owner)
    elif after.lock_owner is None:
        yield "locked by nobody: a token without an owner"
    elif after.lock_token == before.lock_token:
        # An item may lock a row for itself alone that it had locked as a shared one, and the reverse.
        if _stem(before.lock_owner) != _stem(after.lock_owner):
            yield f"the name of {before.lock_owner} was overwritten by {after.lock_owner}"
    elif ledger.is_claim(change) and before.lock_token is not None:
        last = ledger.tokens.get(before.lock_token)
        is_pipelines = last is not None and last.home == place_of(change)
        if is_pipelines and before.lock_owner != after.lock_owner:
            yield f"{after.lock_owner} claimed what only {before.lock_owner} may recover"


def _names_left(change: Change, ledger: Ledger, *, left: str) -> Iterator[str]:
    before = change.before or FREE
    if before.lock_token is None:
        if left != before.lock_owner:
            yield f"the name {left} was put on a row that nobody holds"
        return
    life = ledger.tokens.get(before.lock_token)
    is_main = life is not None and life.home == place_of(change)
    if not is_main and left == ledger.returning.get(place_of(change)):
        return
    if left != before.lock_owner:
        yield f"freed with the name of {left}, who had not reset it"
    elif life is not None and life.home is not None and not is_main:
        yield f"a related row was freed, and the name of {left} left in it"
    elif life is not None and life.home is None and is_composed(left):
        yield f"freed, and the name of {left} left in it"
    elif not is_outcome(change) and not is_stamped_ahead(change):
        yield f"freed without an outcome, and the name of {left} left in it"


def _stem(owner: str | None) -> str | None:
    return None if owner is None else owner.partition(OWNER_SEPARATOR)[0]
