"""Calls in child processes: pure-Python computation, and code that leaks or crashes.

A coroutine waits for the child, so that such a call is one of the event loop; cancelling it kills
the child at once. Children are kept for further calls, and end with the event loop. On a loop whose
time is moved by a test, the function is called in the loop.

The only file of the wing that imports anyio, whose `to_process` does the work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from anyio import BrokenWorkerProcess, CapacityLimiter, to_process

from rowlock.clock import is_real

ADVICE: Final = (
    "a child process imports the main module of the program: what that starts belongs below"
    ' `if __name__ == "__main__":`, and it must not need the arguments of the command line'
)
T = TypeVar("T")
V = TypeVar("V")


class ProcessLane:
    """One lane's calls in child processes: one at a time, as a lane makes them."""

    def __init__(self) -> None:
        """Belong to the event loop in which the first call is made."""
        self._limiter: CapacityLimiter | None = None

    async def call(self, function: Callable[[V], T], value: V) -> T:
        """Call `function` with `value` in a child process, and return its result.

        All three travel by pickle, so a function is one of a module.

        Raises:
            BrokenWorkerProcess: the child died; the next call gets a fresh one.
            Exception: whatever the function raised, or pickle.
        """
        if not is_real():
            return function(value)
        if self._limiter is None:
            # Anyio would bound the children by the number of processors; here lanes do.
            self._limiter = CapacityLimiter(1)
        try:
            return await to_process.run_sync(
                function, value, cancellable=True, limiter=self._limiter
            )
        except BrokenWorkerProcess as error:
            # Anyio gives it a text only where the child did not begin: one that died has none.
            if error.args:
                error.add_note(ADVICE)
            raise
