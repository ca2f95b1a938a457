"""Calls in child processes: pure-Python computation, and code that leaks or crashes.

A coroutine waits for the child, so that such a call is one of the event loop; cancelling it kills
the child at once, or waits until the child has begun: anyio forgets one that is cancelled before
that, and it lives on. Children are kept for further calls, and end with the event loop. On a loop
whose time is moved by a test, the function is called in the loop.

The only file of the wing that imports anyio, whose `to_process` does the work.
"""

from __future__ import annotations

import asyncio
import multiprocessing  # noqa: F401 - gives the main module the name that children know it by
import pickle
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, Final, TypeVar, cast

from anyio import BrokenWorkerProcess, CapacityLimiter, to_process

from rowlock.clock import is_real
from rowlock.errors import GraphError, HostCodeError, describe

ADVICE: Final = (
    "a child process imports the main module of the program: what that starts belongs below"
    ' `if __name__ == "__main__":`, and it must not need the arguments of the command line'
)
NOT_FOUND: Final = (
    "on='process' needs a function that a child process can import by its name: one of a module,"
    " no lambda, and no function within another"
)
T = TypeVar("T")
V = TypeVar("V")


class ProcessLane:
    """One lane's calls in child processes, one at a time, in the event loop of the first call."""

    def __init__(self) -> None:
        self._limiter: CapacityLimiter | None = None

    async def call(self, function: Callable[[V], T], value: V) -> T:
        """Call `function` with `value` in a child process; all travels by pickle."""
        if not is_real():
            return function(value)
        if self._limiter is None:
            # Anyio would bound the children by the number of processors; here lanes do.
            self._limiter = CapacityLimiter(1)
        try:
            return await self._call(function, value)
        except BrokenWorkerProcess as error:
            # Anyio gives it a text only where the child did not begin: one that died has none.
            if error.args:
                error.add_note(ADVICE)
            raise
        except (pickle.PickleError, AttributeError, TypeError) as error:
            note = _note_of(error, function, value)
            if note:
                error.add_note(note)
            raise

    async def _call(self, function: Callable[[V], T], value: V) -> T:
        assert self._limiter is not None
        start = _Start(self._limiter)
        work = to_process.run_sync(
            _called, function, value, cancellable=True, limiter=cast("CapacityLimiter", start)
        )
        task = asyncio.create_task(work, name="rowlock: call in a child process")
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as error:
                cancelled, start.is_unwanted = error, True
                if start.is_done:
                    task.cancel()
        try:
            if cancelled is None:
                return task.result()
            if not task.cancelled():
                task.exception()  # asyncio would log that it was never retrieved
            raise cancelled
        finally:
            del cancelled  # its traceback would refer to itself


class _Start:
    """Stands in the place of anyio's limiter, which is entered right before a child is taken: it
    calls nothing in a child first, so that one that has begun waits for the call.
    """

    def __init__(self, limiter: CapacityLimiter) -> None:
        self.is_done = self.is_unwanted = False
        self._limiter = limiter

    async def __aenter__(self) -> None:
        await to_process.run_sync(bool, limiter=self._limiter)
        if self.is_unwanted:
            raise asyncio.CancelledError
        self.is_done = True

    async def __aexit__(self, *_error: object) -> None:
        return


def _called(function: Callable[[V], T], value: V) -> T:
    """Call `function` in the child."""
    # What it raises has to travel, and be made again by its class: one whose ``__init__`` takes
    # something else than its ``args`` would end as a ``TypeError``.
    try:
        return function(value)
    except Exception as error:
        if not _is_made_again(error):
            text = f"a function in a child process raised {describe(error)}"
            raise HostCodeError(text) from None
        raise


def _is_made_again(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made here, a moment ago
    except Exception:  # noqa: BLE001 - by whatever the host's class does
        return False
    return True


def check_travels(function: Callable[..., Any], *, operator: str) -> None:
    """Check that a child process can find `function`, as far as that is known without a call."""
    while isinstance(function, partial):
        function = function.func
    if isinstance(function, FunctionType) and not _travels(function):
        msg = f"{operator} of {function.__module__}: {NOT_FOUND}"
        raise GraphError(msg)


def _travels(one: object) -> bool:
    try:
        pickle.dumps(one)
    except Exception:  # noqa: BLE001  # how a value is pickled is code of the host
        return False
    return True


def _note_of(error: Exception, function: object, value: object) -> str:
    """Return what to change if a call failed since something cannot be pickled; else nothing."""
    # The types of such errors differ by version and by what is pickled, and a function may raise
    # the same: so it is tried again.
    if not _travels(function):
        return (
            f"the function cannot be pickled: {NOT_FOUND}, whose arguments can be pickled as well"
        )
    if not _travels(value):
        return "the value cannot be pickled: hand on plain data to on='process', such as a path"
    if isinstance(error, pickle.PickleError) or str(error).lower().startswith(
        ("cannot pickle", "can't pickle", "can't get local")
    ):
        return "the result cannot be pickled: return plain data from on='process'"
    return ""
