"""Which lines of the log are shown, and which are only counted, when many say the same.

The one idea: a fault of the database befalls a thousand rows at once, and each of them again at
every retry. Lines of one kind share a window of time: the first ones are shown, the others are
counted, and the count is told as one line when the window ends. Nothing is dropped without being
counted.

Not here: writing them, and asking for the time (`logs`).
"""

from __future__ import annotations

import threading
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

WINDOW_S = 60.0
"""How long lines of one kind are counted after the first of them, in seconds."""
TRACEBACKS_MAX = 1
"""Lines with a traceback that are shown of one kind in one window."""
LINES_MAX = 30
"""Lines without one that are shown of one kind in one window."""
KINDS_MAX = 1_000
"""Kinds that are told apart at the same time; more than these share one kind for each level."""


class LogLine(NamedTuple):
    """What is logged, without its traceback.

    Attributes:
        logger: the name of its logger.
        level: of logging.
        text: the template of its message, and `args` are what is filled in.
        fields: `extra`.
        error_type: of the error whose traceback it shows; empty if there is none.
        place: where that error was raised.
    """

    logger: str
    level: int
    text: str
    args: tuple[object, ...]
    fields: Mapping[str, object]
    error_type: str = ""
    place: tuple[str, int] = ("", 0)

    @property
    def shown_max(self) -> int:
        """How many of its kind are shown in one window."""
        return TRACEBACKS_MAX if self.error_type or "\n" in self.text else LINES_MAX


class Counted(NamedTuple):
    """Lines that were not shown: the last one, and how many with it."""

    line: LogLine
    lines: int


@dataclass(eq=False)
class Window:
    """Lines of one kind since `began`, on the clock of `loop`, or of the process if that is
    None.
    """

    began: float
    loop: weakref.ref[AbstractEventLoop] | None
    shown: int = 0
    count: int = 0
    last: LogLine | None = None

    def is_over(self, now: float, loop: AbstractEventLoop | None) -> bool:
        """Whether its time has passed, as far as who runs on `loop` can tell: each loop has a
        clock of its own.
        """
        mine = None if self.loop is None else self.loop()
        if self.loop is not None and (mine is None or mine.is_closed()):
            return True
        return mine is loop and not 0 <= now - self.began < WINDOW_S

    def ends_in(self, now: float) -> float:
        """Return how many seconds are left of it."""
        return max(self.began + WINDOW_S - now, 0.0)

    def taken(self) -> list[Counted]:
        """Return what was counted, which is not told again."""
        counted = [Counted(self.last, self.count)] if self.last is not None else []
        self.count, self.last = 0, None
        return counted


class LogAdmission(NamedTuple):
    """What becomes of a line.

    Attributes:
        is_shown: or it is counted.
        counted: what is told before it.
        begun: the window in which it is the first one that is counted, and whose end should be
            waited for.
    """

    is_shown: bool
    counted: list[Counted]
    begun: Window | None


@dataclass
class Repeats:
    """The windows of a process. Any thread may use it; none waits for another's log."""

    _windows: dict[tuple[object, ...], Window] = field(default_factory=dict)
    # One that can be entered again: a garbage collection in here may run code that logs.
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def admit(self, line: LogLine, now: float, loop: AbstractEventLoop | None) -> LogAdmission:
        """Decide about `line`, and count it unless it is shown."""
        with self._lock:
            kind, counted = self._kind_of(line, now, loop)
            window = self._windows.get(kind)
            if window is None or window.is_over(now, loop):
                counted += window.taken() if window else []
                window = self._windows[kind] = Window(
                    now, None if loop is None else weakref.ref(loop)
                )
            if window.shown < line.shown_max:
                window.shown += 1
                return LogAdmission(True, counted, None)
            window.count, window.last = window.count + 1, line
            return LogAdmission(False, counted, window if window.count == 1 else None)

    def end(self, window: Window) -> list[Counted]:
        """Return what was counted in `window`."""
        with self._lock:
            return window.taken()

    def end_all(self) -> list[Counted]:
        """Return what was counted in all windows, which go on."""
        with self._lock:
            return [counted for window in self._windows.values() for counted in window.taken()]

    def forget(self) -> None:
        """Begin anew. A child that was forked does: the counts are its parent's to tell, and the
        lock may be held there.
        """
        self._windows, self._lock = {}, threading.RLock()

    def _kind_of(
        self, line: LogLine, now: float, loop: AbstractEventLoop | None
    ) -> tuple[tuple[object, ...], list[Counted]]:
        """Return what `line` is counted under, and what was counted in windows that had to go to
        make room.
        """
        pipeline, error_type = (
            str(line.fields.get("pipeline", "")),
            line.error_type or line.fields.get("error_type"),
        )
        kind = (id(loop), line.logger, line.level, line.text, pipeline, error_type, line.place)
        if kind in self._windows or len(self._windows) < KINDS_MAX:
            return kind, []
        shared = self._windows.get((id(loop), line.level))
        if shared is not None and not shared.is_over(now, loop):
            return (id(loop), line.level), []
        over = [kind for kind, window in self._windows.items() if window.is_over(now, loop)]
        counted = [counted for old in over for counted in self._windows.pop(old).taken()]
        return (kind if over else (id(loop), line.level)), counted
