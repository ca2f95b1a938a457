"""Threads in which a plain function of the host answers.

The one idea: nothing can end a function that hangs in a thread, so a call that nobody waits for any
more keeps its place until it returns. Else each request would leave a thread behind, and whoever
asks needs no right to.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, Final

from rowlock.daemon_threads import DaemonThreads

THREADS_MAX: Final = 16
"""Most threads in which plain functions of the host answer."""


class AuthorizeThreads:
    """Calls plain functions, `THREADS_MAX` at once, also if they never return."""

    def __init__(self) -> None:
        self._pool: DaemonThreads | None = None
        self._process = os.getpid()
        self._hanging: list[Future[Any]] = []

    async def call(self, function: Callable[..., object], *args: object) -> object:
        """Return what `function` does.

        Raises:
            TimeoutError: earlier calls hang in all threads.
            BaseException: whatever `function` raised.
        """
        pool = self._threads()
        self._hanging = [one for one in self._hanging if not one.done()]
        if len(self._hanging) >= THREADS_MAX:
            raise TimeoutError(f"{THREADS_MAX} calls hang, one in each thread")
        called = pool.submit(copy_context().run, _outcome, function, args)
        try:
            answer, error = await asyncio.wrap_future(called)
        except asyncio.CancelledError:
            if not called.cancel():
                self._hanging.append(called)
            raise
        if error is not None:
            raise error
        return answer

    def _threads(self) -> DaemonThreads:
        if self._pool is None or self._process != os.getpid():
            # A child that was forked has none of its parent's threads.
            self._pool = DaemonThreads(THREADS_MAX, name="rowlock authorize")
            self._process, self._hanging = os.getpid(), []
        return self._pool


def _outcome(
    function: Callable[..., object], args: tuple[object, ...]
) -> tuple[object, BaseException | None]:
    # As a value: no future takes a StopIteration, and an exit would end the loop.
    try:
        return function(*args), None
    except BaseException as error:  # noqa: BLE001 - of the host
        return None, error
