"""A host process whose wall clock jumps all the time, else as ``walks/replica.py``:
``skewed_replica.py SKEW_S URL MODE COUNT``.

Everything in Python that tells the time of day is an hour off, and off to the other side every
twentieth of a second. The clocks of the database and of the event loop are left alone, as setting a
host's clock does.
"""

from __future__ import annotations

import runpy
import sys
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

from rowlock import clock

JUMPS_EVERY_S = 0.05
WALL = time.time

skew_s = float(sys.argv.pop(1))


def skewed() -> float:
    side = 1 if int(time.monotonic() / JUMPS_EVERY_S) % 2 else -1
    return WALL() + side * skew_s


class SkewedDatetime(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + timedelta(seconds=skewed() - WALL())


time.time = skewed
time.time_ns = lambda: int(skewed() * 1e9)
clock.datetime = SkewedDatetime  # type: ignore[attr-defined,misc]

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).parents[1] / "walks" / "replica.py"), run_name="__main__")
