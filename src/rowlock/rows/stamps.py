"""The stamp of an outcome: what is written as a row's `last_processed_at`.

It does not go back when the database's clock did, and no two outcomes of a row have the same one: after a COMMIT whose answer was
lost it tells what was committed.
"""

from __future__ import annotations

from datetime import datetime, timedelta

STAMP_STEP = timedelta(milliseconds=1)
"""By so much a stamp goes beyond one that is ahead of the database's clock: the precision of SQLite's clock."""
STAMP_AHEAD_MAX = timedelta(hours=1)
"""A stamp that is further ahead of the clock was written by no outcome, or before the clock was set; it is written anew."""


def stamp_after(now: datetime, ahead: datetime | None) -> datetime:
    """Return the stamp of an outcome that is written `now` to a row whose last stamp is `ahead` of that, if it is."""
    return now if ahead is None else ahead + STAMP_STEP
