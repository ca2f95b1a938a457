"""The stamp of an outcome: what is written as a row's `last_processed_at`.

It does not go back when the database's clock did, and no two outcomes of a row have the same one:
after a COMMIT whose answer was lost it tells what was committed. Attempts that find the same stamp
ahead of the clock go beyond it by different amounts, since the first of them may not have been
committed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any

STAMP_STEP = timedelta(milliseconds=1)
"""By so much at least a stamp goes beyond one that is ahead of the database's clock: the
precision of SQLite's clock.
"""
STAMP_SPREAD = timedelta(milliseconds=100)
"""By less than so much more it does, in whole microseconds; by how much depends on the attempt."""
STAMP_AHEAD_MAX = timedelta(hours=1)
"""A stamp that is further ahead of the clock was written by no outcome, or before the clock was
set; it is written anew.
"""


def stamp_after(now: datetime, ahead: datetime | None, token: Any) -> datetime:
    """Return the stamp of an outcome that is written `now` to a row whose last stamp is `ahead` of
    that, if it is.

    It is the same for each try of one attempt, which `token` stands for.
    """
    return now if ahead is None else ahead + STAMP_STEP + _share_of(token)


def _share_of(token: object) -> timedelta:
    digest = blake2b(str(token).encode(), digest_size=8).digest()
    return timedelta(
        microseconds=int.from_bytes(digest) % (STAMP_SPREAD // timedelta(microseconds=1))
    )
