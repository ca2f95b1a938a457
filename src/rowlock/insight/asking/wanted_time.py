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
_IS_HALVED: Final[ContextVar[bool]] = ContextVar("rowlock_beside_other_questions", default=False)


@contextmanager
def wanted_within(seconds: float) -> Iterator[None]:
    """Have all that is asked in the block, and in tasks that begin there, end after `seconds`."""
    token = _ENDS.set(monotonic() + seconds)
    try:
        yield
    finally:
        _ENDS.reset(token)


@contextmanager
def half_of_the_time() -> Iterator[None]:
    """Have each question that is asked in the block, and in tasks that begin there, take at most
    half of the time that it would have: one that hangs leaves its caller time for the others.
    """
    token = _IS_HALVED.set(True)
    try:
        yield
    finally:
        _IS_HALVED.reset(token)


def question_time(most: timedelta) -> timedelta:
    """Return how long the whole of a question that begins now may take."""
    left = time_left(most)
    return left / 2 if _IS_HALVED.get() else left


def time_left(most: timedelta) -> timedelta:
    """Return how long a question that begins now may take: `most`, or until its answer is not
    wanted any more.
    """
    ends = _ENDS.get()
    if ends is None:
        return most
    return min(most, timedelta(seconds=max(0.0, ends - monotonic())))
