"""`check_interrupt`: how a call that cannot be cancelled ends early.

A coroutine is cancelled and a child process is killed, but no thread can be. So a long call asks,
wherever it likes, whether its result is still wanted. What answers is a context variable of the
call; calls of a graph within a call of another graph ask both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import TypeAlias

from rowlock.graph.unawaited import not_awaited

KeepGoing: TypeAlias = Callable[[], bool]
IsObsolete: TypeAlias = Callable[[], bool]

_asked: ContextVar[tuple[IsObsolete, ...]] = ContextVar("rowlock.graph.asked", default=())


def check_interrupt() -> None:
    """Raise if the call of a graph that runs here is obsolete: its run has ended, or its value is
    not wanted any more. Outside of a graph nothing happens.

    Raises:
        CancelledError: the result of the call will be thrown away. Let it through.
    """
    for is_obsolete in _asked.get():
        if is_obsolete():
            msg = "the call is obsolete"
            raise asyncio.CancelledError(msg)


def add_check(context: Context, is_obsolete: IsObsolete) -> None:
    """Have `check_interrupt` raise in `context` and its copies once `is_obsolete` returns True."""
    context.run(lambda: _asked.set((*_asked.get(), is_obsolete)))


def goes_on(keep_going: KeepGoing | None) -> bool:
    """Return what a caller's `keep_going` says; True without one.

    Raises:
        TypeError: it returned a coroutine.
        BaseException: whatever it raised.
    """
    return keep_going is None or bool(not_awaited(keep_going()))
