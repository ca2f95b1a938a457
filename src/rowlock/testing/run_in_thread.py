"""Async work done at once, from wherever the caller is: in a thread of its own, with a loop of its
own.

Not here: a loop on which time is moved (`virtual_time`). What is opened in here must be closed in
here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["run_in_thread"]

R = TypeVar("R")


def run_in_thread(async_function: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """Run an async function without parameters to its end and return its result; the calling
    thread waits.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="rowlock-test") as thread:
        return thread.submit(lambda: asyncio.run(async_function())).result()
