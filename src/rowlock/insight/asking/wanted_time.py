"""Until when an answer is wanted, so that all questions which it is made of end by then.

The one idea: each question has a limit of its own, and a cancelled caller waits until its
transaction has ended. So several questions in a row, or one that begins late, would outlast whoever
asks; the time that is left goes with the call instead, down to each transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Final

from rowlock.clock import monotonic

_ENDS: Final[ContextVar[float | None]] = ContextVar("rowlock_answer_wanted_until", default=None)


@contextmanager
def wanted_within(seconds: float) -> Iterator[None]:
    """Have all that is asked in the block, and in tasks that begin there, end after `seconds`."""
    token = _ENDS.set(monotonic() + seconds)
    try:
        yield
    finally:
        _ENDS.reset(token)


def time_left(most: timedelta) -> timedelta:
    """Return how long a question that begins now may take: `most`, or until its answer is not
    wanted any more.
    """
    ends = _ENDS.get()
    if ends is None:
        return most
    return min(most, timedelta(seconds=max(0.0, ends - monotonic())))
