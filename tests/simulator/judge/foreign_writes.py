"""What one process did to a lease of another: a simulation knows who committed each change, which
no column tells.

The one idea: a token is its holder's. Another process may clear or replace it once its lease has
ended, and may delete the row; it may not end it before, renew it, or write an outcome under it.

Not here: what two attempts in one process do to each other, and what the columns tell anyway
(``checker.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from .history import Change
from .state import is_outcome


def by_another(change: Change, *, holder: str | None, who: str) -> Iterator[str]:
    """Find what `who` may not do to a lease that `holder` took.

    Args:
        change: what `who` committed.
        holder: the process that took the lease which the row carried before; None if nobody knows.
        who: a process.
    """
    before, after = change.before, change.after
    if before is None or after is None or before.lock_token is None or holder in (None, who):
        return
    ends = before.lock_expires_at
    if is_outcome(change):
        yield f"A1: {who} wrote an outcome under the lease of {holder}"
    elif after.lock_token == before.lock_token:
        if after.lock_expires_at != ends:
            yield f"A3: {who} changed the end of the lease of {holder}"
    elif ends is not None and ends > change.at:
        left_s = (ends - change.at).total_seconds()
        yield f"A2: {who} ended the lease of {holder}, {left_s:.3f} s before its end"
