"""Async work done at once, wherever the caller is: in a thread and a loop of its own.

What is opened in here must be closed in here, or, if it is kept from one test to the next, in the
same `LoopInThread`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any, Self, TypeVar

R = TypeVar("R")


def run_in_thread(async_function: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run an async function to its end in a new loop; the calling thread waits."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="rowlock-test") as thread:
        return thread.submit(lambda: asyncio.run(async_function())).result()


class LoopInThread:
    """A loop in a thread of its own, for what outlives a test; a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: unless closed, it would keep the process from ending.
        self._thread = Thread(target=self._loop.run_forever, name="rowlock-test", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, async_function: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run an async function to its end and return its result; the calling thread waits."""
        return asyncio.run_coroutine_threadsafe(async_function(), self._loop).result()
