"""Ends attempts that take longer than they may: one timer for all of them.

The one idea: all calls of one pipeline may take equally long, so the one that began first is the
first whose time is up. A timer for each would cost more than most of what is done here for a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Deadlines:
    """Calls what is to be called once `timeout_s` has passed since it was added, unless it was
    removed before; never, if that is None.
    """

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._waiting: dict[object, tuple[float, Callable[[], None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, owner: object, act: Callable[[], None]) -> None:
        """Call `act` after the timeout; one for each `owner`."""
        if self._timeout_s is None:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + self._timeout_s
        self._waiting[owner] = (at, act)
        if self._timer is None:
            self._timer = loop.call_at(at, self._look)

    def remove(self, owner: object) -> None:
        """Do not call."""
        self._waiting.pop(owner, None)

    def _look(self) -> None:
        # The timer may be that of one that was removed since; it goes off all the same, and looks
        # who is next.
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._waiting:
            owner, (at, act) = next(iter(self._waiting.items()))
            if at > now:
                self._timer = loop.call_at(at, self._look)
                return
            del self._waiting[owner]
            act()
