"""Waits that end with a hint: for a step that is done, or for results."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rowlock.hints.hinter import pipeline_hinter


@contextmanager
def woken_by(topic: str, woken: asyncio.Event) -> Iterator[None]:
    """Set an event of this loop with each hint for a topic, from whatever thread it comes.

    Args:
        topic: of the hints.
        woken: is set.
    """
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # a closed loop has no waiter to wake
            loop.call_soon_threadsafe(woken.set)

    pipeline_hinter.attach(topic, wake)
    try:
        yield
    finally:
        pipeline_hinter.detach(topic, wake)
