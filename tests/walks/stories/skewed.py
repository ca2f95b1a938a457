"""A host, or the command line, on a machine whose wall clock is off: ``skewed.py SECONDS host.py
ARGUMENT...``, or ``skewed.py SECONDS,SECONDS... rowlock COMMAND ... , COMMAND ...``, which runs the
commands once with each of the clocks.

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

skews_s, program = [float(one) for one in sys.argv[1].split(",")], sys.argv[2]
skew_s = skews_s[0]
del sys.argv[1]
WALL = time.time
BETWEEN = "-" * 20


class SkewedDatetime(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + timedelta(seconds=skew_s)


time.time = lambda: WALL() + skew_s
clock.datetime = SkewedDatetime  # type: ignore[misc]
if program == "rowlock":
    for now_s in skews_s:
        skew_s = now_s
        words: list[str] = []
        for word in (*sys.argv[2:], ","):
            if word == ",":
                main([*words, "--app", "host:manager"])
                words = []
            else:
                words.append(word)
        print(BETWEEN, flush=True)
else:
    sys.argv = sys.argv[1:]
    runpy.run_path(str(Path(__file__).with_name(program)), run_name="__main__")
