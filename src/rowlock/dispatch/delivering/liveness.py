"""Hears the next event of an attempt, or its silence.

The one idea: silence counts only while somebody listens. An event loop that the host has blocked
hears nobody, and finds that its time is over in the very moment in which it could listen again; so
it is given a moment to do so.
"""

from __future__ import annotations

import asyncio
from functools import partial

from rowlock.clock import monotonic
from rowlock.containment import as_host_code, contained_task
from rowlock.dispatch.engine import Events
from rowlock.dispatch.task import AttemptEvent
from rowlock.shielding import finish

CATCH_UP_S = 1.0
"""How long an event loop listens once more when the time is over, in seconds."""


async def next_event(events: Events, *, within_s: float) -> AttemptEvent:
    """Return the next event.

    Raises:
        StopAsyncIteration: there is none.
        HostCodeError: the engine raised what would end the event loop, or let a cancellation
            escape.
        TimeoutError: none came `within_s`, nor in the `CATCH_UP_S` after it.
    """
    coming: asyncio.Task[AttemptEvent] = contained_task(
        as_host_code(partial(anext, events)), name="rowlock: hear an attempt"
    )
    try:
        await asyncio.wait({coming}, timeout=within_s)
        while not coming.done():
            began_at = monotonic()
            await asyncio.wait({coming}, timeout=CATCH_UP_S)
            if not coming.done() and monotonic() - began_at < 2 * CATCH_UP_S:
                raise TimeoutError
    finally:
        if not coming.done():
            coming.cancel()
            # However often it is cancelled: an iterator that is being read cannot be closed.
            await finish(_wait(coming), purpose="hear no more of an attempt")
    return coming.result()


async def _wait(task: asyncio.Task[AttemptEvent]) -> None:
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # nobody asked any more


PROGRESS_EVERY_S = 1.0
"""A progress is written at most so often, in seconds; the last one is kept."""


class LastProgress:
    """The last progress, and when it may be written.

    Attributes:
        last: what the handler said last.
    """

    def __init__(self) -> None:
        self.last: str | None = None
        self._text: str | None = None
        self._next_at = float("-inf")

    def set(self, text: str) -> None:
        """Note what the handler says now."""
        self.last = self._text = text

    def due(self) -> str | None:
        """Return what is to be written now, if anything is."""
        if self._text is None or monotonic() < self._next_at:
            return None
        text, self._text = self._text, None
        self._next_at = monotonic() + PROGRESS_EVERY_S
        return text
