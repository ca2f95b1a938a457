"""Attempts in threads: for a plain ``def`` handler that blocks, and lets others run meanwhile.

Each has a thread of its own, from its first step to its last. A thread cannot be cancelled: when an
attempt is, its handler is closed at its next ``yield``; until then its worker counts as busy.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, ClassVar

from rowlock.daemon_threads import ENDED, LEFT_BEHIND, DaemonThreads
from rowlock.dispatch.engines.local import LocalEngine, called
from rowlock.dispatch.task import AttemptEvent, Heartbeat, Task
from rowlock.errors import ConfigurationError

THREADS_MAX = 1_000
"""Most threads of one engine."""


_WRONG_KIND = "ThreadEngine takes a `def` handler with yield; use LoopEngine for an `async def`"


class ThreadEngine(LocalEngine):
    """Runs a ``def`` handler with ``yield`` in a thread.

    Args:
        workers: how many attempts run at once; 1,000 at most.
        backpressure: how many each of them takes; one by default. All of them together take 1,000.
    """

    kind: ClassVar[str] = "thread"
    attempts_max: ClassVar[int] = THREADS_MAX
    needs_something: ClassVar[bool] = True

    def check_handler(self, handler: Callable[..., Any]) -> None:
        """Refuse a handler that needs an event loop."""
        if inspect.isasyncgenfunction(called(handler)):
            raise ConfigurationError(_WRONG_KIND)

    async def run(self, worker: str, task: Task[Any]) -> AsyncGenerator[AttemptEvent, None]:
        """Yield a `Heartbeat` when there is a thread, then run the task's handler in it and
        yield its events.
        """
        thread = DaemonThreads(1, name="rowlock handler")
        try:
            # Starts it, or raises that there is none to be had.
            thread.submit(_nothing)
            yield Heartbeat()
            # A handler may also be a function that works first and returns an iterator.
            events = await _in(thread, task.handler, task)
            if not isinstance(events, Iterator):
                raise ConfigurationError(
                    f"{_WRONG_KIND}; this one gave {type(events).__name__}: write"
                    " `yield Completed(...)` instead of returning it"
                )
            is_left_behind = False
            try:
                while (event := await _in(thread, next, events, None)) is not None:
                    yield event
            except asyncio.CancelledError as cancellation:
                is_left_behind = cancellation.args == (LEFT_BEHIND,)
                raise
            finally:
                if is_left_behind:
                    thread.submit(_close, events)
                else:
                    await _in(thread, _close, events)
        finally:
            thread.shutdown(wait=False)


async def _in(thread: DaemonThreads, function: Any, *args: Any) -> Any:
    """Call in `thread`, and come back only when it has done, also when the attempt is closed; a
    call that still runs when its event loop ends is left behind.
    """
    call = asyncio.get_running_loop().run_in_executor(thread, function, *args)
    closed: asyncio.CancelledError | None = None
    while not call.done():
        try:
            await asyncio.wait({call})
        except asyncio.CancelledError as cancellation:
            if cancellation.args != (ENDED,):
                raise asyncio.CancelledError(LEFT_BEHIND) from None
            closed = cancellation
    if closed is not None:
        raise closed
    return call.result()


def _close(events: Any) -> None:
    if hasattr(events, "close"):
        events.close()


def _nothing() -> None:
    """For a thread that shall start."""
