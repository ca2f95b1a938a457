"""The host's event loop, seen from another thread: whether it turns, where it stands, and how to
have something done on it.

The one idea: a question that the loop must answer itself. As long as it has not, it has not turned
since the question was put, and whoever put it knows for how long and, from the stack of the loop's
thread, in which line of whose code.

Source: the slow callbacks that asyncio reports in debug mode, though it does so only when they have
ended.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from rowlock.clock import monotonic, sleep
from rowlock.logs import get_logger
from rowlock.shielding import log_in_thread

logger = get_logger(__name__)

ASK_EVERY_S = 0.5
"""How often the loop is asked, in seconds."""
TOLD_AFTER_S = 5.0
"""A loop that stands still for so long is told of in the log, once, in seconds."""
FRAMES_MAX = 6
"""Most lines of the stack that are told: the innermost ones."""


class LoopMonitor:
    """Made on the host's loop, used by both sides.

    Attributes:
        thread: in which it turns.
        longest_stall_s: for how long the loop stood still at most, in seconds, to half a second.
    """

    def __init__(self) -> None:
        self.longest_stall_s = 0.0
        self._loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self._asked_at: float | None = None
        self._is_told = False

    @property
    def stalled_s(self) -> float:
        """For how long the loop has not turned, in seconds; asked from another thread."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else monotonic() - asked_at

    def do(self, act: Callable[[], None]) -> None:
        """Call `act` on the loop: now if this is the loop, else as soon as it turns. A loop that
        has ended does nothing more.
        """
        if threading.get_ident() == self.thread:
            act()
            return
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act)

    async def ask(self) -> None:
        """Ask again and again, until the loop has ended; runs on another loop."""
        while not self._loop.is_closed():
            stalled_s = self.stalled_s
            self.longest_stall_s = max(self.longest_stall_s, stalled_s)
            if self._asked_at is None:
                self._asked_at = monotonic()
                self.do(self._answer)
            elif stalled_s >= TOLD_AFTER_S and not self._is_told:
                self._is_told = True
                self._tell(stalled_s)
            await sleep(ASK_EVERY_S)

    def where(self) -> str:
        """Return the innermost lines that the loop's thread is at, outermost first."""
        frame = sys._current_frames().get(self.thread)
        if frame is None:
            return "its thread has ended"
        lines = traceback.extract_stack(frame)[-FRAMES_MAX:]
        return " > ".join(f"{Path(line.filename).name}:{line.lineno} {line.name}" for line in lines)

    def _answer(self) -> None:
        self._asked_at, self._is_told = None, False

    def _tell(self, stalled_s: float) -> None:
        where = self.where()
        text = "The event loop has stood still for %.0f s, at %s; leases are renewed meanwhile"
        log_in_thread(
            partial(
                logger.warning,
                text,
                stalled_s,
                where,
                extra={"stalled_s": stalled_s, "where": where},
            )
        )
