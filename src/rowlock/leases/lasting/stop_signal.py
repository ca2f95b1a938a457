"""The wish that work ends soon, seen by all items of one pipeline.

A shutdown wishes it before its grace begins, so that work without an end of its own can come to
one: it is not cancelled until the grace is over.
"""

from __future__ import annotations

import asyncio


class StopSignal:
    """Given once, and never taken back.

    Attributes:
        is_given: whether work is to end; may be read in any thread.
    """

    __slots__ = ("_event", "is_given")

    def __init__(self) -> None:
        """Not given yet."""
        self.is_given = False
        self._event = asyncio.Event()

    def give(self) -> None:
        """Have work end soon; called in the loop in which it waits."""
        self.is_given = True
        self._event.set()

    async def wait(self) -> None:
        """Return once it is given."""
        await self._event.wait()
