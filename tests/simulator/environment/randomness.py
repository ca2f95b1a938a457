"""All chance from one number, and the host's clock from the simulation: for the time of one run.

The one idea: what the library and the host draw (tokens, jitter, keys) comes from ``os.urandom``
and from the module `random`. Both are replaced here, so that the same number gives the same
history, byte for byte, in any process.

Not here: what hosts draw in the database, and threads: the simulation has none.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, tzinfo
from random import Random
from unittest import mock

from rowlock import clock
from rowlock.rows.lock_tokens import MARK_BYTES, OWN_MARK


@contextmanager
def all_randomness_from(seed: int | str, *, wall_time: Callable[[], datetime]) -> Iterator[None]:
    """Draw everything from `seed`, and read the host's clock from `wall_time`."""
    urandom, state, collects = _urandom(seed), random.getstate(), gc.isenabled()
    # What lies about unreachable must not end at a moment that nobody has drawn.
    gc.disable()
    random.seed(f"{seed} jitter")
    try:
        with (
            mock.patch.object(os, "urandom", urandom),
            mock.patch.object(random, "_urandom", urandom),
            mock.patch.object(clock, "datetime", _wall_clock(wall_time)),
            mock.patch.object(OWN_MARK, "octets", urandom(MARK_BYTES)),
        ):
            yield
    finally:
        random.setstate(state)
        if collects:
            gc.enable()


def _urandom(seed: int | str) -> Callable[[int], bytes]:
    source, names = Random(f"{seed} tokens"), Random(f"{seed} names")

    def urandom(count: int) -> bytes:
        # SQLAlchemy draws names of subqueries, and fewer of them once a statement was compiled.
        caller = sys._getframe(1).f_globals.get("__name__", "")
        return (names if caller.startswith("sqlalchemy") else source).randbytes(count)

    return urandom


def _wall_clock(wall_time: Callable[[], datetime]) -> type[datetime]:
    class WallClock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return wall_time().astimezone(tz)

    return WallClock
