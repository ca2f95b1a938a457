"""A host, or the command line, on a machine whose wall clock is off: ``skewed.py SECONDS host.py
ARGUMENT...``, or ``skewed.py SECONDS rowlock COMMAND ... , COMMAND ...``.

Everything in Python that tells the time of day is off; the clocks of the database and of the event
loop are left alone, as setting a machine's clock does.
"""

from __future__ import annotations

import runpy
import sys
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

from rowlock import clock
from rowlock.__main__ import main

skew_s, program = float(sys.argv[1]), sys.argv[2]
del sys.argv[1]
WALL = time.time


class SkewedDatetime(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + timedelta(seconds=skew_s)


time.time = lambda: WALL() + skew_s
clock.datetime = SkewedDatetime  # type: ignore[misc]
if program == "rowlock":
    words: list[str] = []
    for word in (*sys.argv[2:], ","):
        if word == ",":
            main([*words, "--app", "host:manager"])
            words = []
        else:
            words.append(word)
else:
    sys.argv = sys.argv[1:]
    runpy.run_path(str(Path(__file__).with_name(program)), run_name="__main__")
