"""The one way in which rowlock logs: contained, counted, with its fields under one prefix.

A log call runs code of the host (its record factory, filters, handlers and formatters), and stands
where rowlock holds a lease. Whatever that code raises stays in here; an actor never learns of it.

A fault of the database befalls a thousand rows at once, and each of them again at every retry. So
lines of one kind share a window of time: the first ones are shown, the others are counted, and the
count is logged as one line when the window ends. Nothing is dropped without being counted. Values
of rows are cut out of tracebacks (`redaction`).
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import threading
import traceback
from asyncio import AbstractEventLoop
from collections.abc import Mapping
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import NamedTuple, TypeAlias
from weakref import ref

from rowlock.clock import monotonic
from rowlock.redaction import without_values

WINDOW_S = 60.0
"""How long lines of one kind are counted after the first of them, in seconds."""
TRACEBACKS_MAX = 1
"""Lines with a traceback that are shown of one kind in one window."""
LINES_MAX = 30
"""Lines without one that are shown of one kind in one window."""
KINDS_MAX = 1_000
"""Kinds that are told apart at the same time; more than these share one kind for each level."""


Fields = Mapping[str, object]
_RAISED = (Exception, asyncio.CancelledError)


class LogLine(NamedTuple):
    """What is logged: `text` is a template of `fields`, `place` is where the error was raised."""

    logger: str
    level: int
    text: str
    fields: Fields
    error_type: str = ""
    place: tuple[str, int] = ("", 0)

    @property
    def shown_max(self) -> int:
        return TRACEBACKS_MAX if self.error_type or "\n" in self.text else LINES_MAX


Counted: TypeAlias = tuple[LogLine, int]
"""The last line that was not shown, and how many with it."""


@dataclass(eq=False)
class Window:
    """Lines of one kind since `began`; `last` is that of the `count` that were not shown."""

    began: float
    shown: int = 0
    count: int = 0
    last: LogLine | None = None

    def taken(self) -> list[Counted]:
        counted = [(self.last, self.count)] if self.last is not None else []
        self.count, self.last = 0, None
        return counted


class Repeats:
    """The windows of a process. Any thread may use it; none waits for another's log."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, as in a forked child: its parent logs the counts, and may hold the lock."""
        # Each loop has a clock of its own, and so has what runs in none.
        self._windows: dict[tuple[ref[AbstractEventLoop] | None, object], Window] = {}
        # One that can be entered again: a garbage collection in here may run code that logs.
        self._lock = threading.RLock()

    def admit(
        self, line: LogLine, now: float, loop: AbstractEventLoop | None
    ) -> tuple[list[Counted], Window | None]:
        """Decide about `line`: return what is logged before it, and the window that has counted it;
        None if it is shown.
        """
        clock = None if loop is None else ref(loop)
        error_type = line.error_type or line.fields.get("error_type")
        pipeline = str(line.fields.get("pipeline", ""))
        kind: object = (line.logger, line.level, line.text, pipeline, error_type, line.place)
        with self._lock:
            counted: list[Counted] = []
            if (clock, kind) not in self._windows and len(self._windows) >= KINDS_MAX:
                counted += self._make_room(now, clock)
                kind = kind if len(self._windows) < KINDS_MAX else line.level
            window = self._windows.get((clock, kind))
            if window is None or now - window.began >= WINDOW_S:
                counted += window.taken() if window else []
                window = self._windows[clock, kind] = Window(now)
            if window.shown < line.shown_max:
                window.shown += 1
                return counted, None
            window.count, window.last = window.count + 1, line
            return counted, window

    def _make_room(self, now: float, clock: ref[AbstractEventLoop] | None) -> list[Counted]:
        over = [
            (other, kind)
            for (other, kind), window in self._windows.items()
            if (other is not None and other() is None)
            or (other == clock and now - window.began >= WINDOW_S)
        ]
        return [counted for key in over for counted in self._windows.pop(key).taken()]

    def end(self, window: Window) -> list[Counted]:
        with self._lock:
            return window.taken()

    def end_all(self) -> list[Counted]:
        with self._lock:
            return [counted for window in self._windows.values() for counted in window.taken()]


FIELD_PREFIX = "rowlock_"
"""In front of each field: logging refuses one that the host's record factory has set."""

NOT_SHOWN = "%(count)d more were counted and not shown; the last one: "
"""In front of a message that stands for all of its kind that were counted."""


class ContainedLogger:
    """Logs like a ``logging.Logger``, and never raises.

    Its calls take the fields of a line as one mapping, of which the text may name some:
    ``logger.warning("row %(row_id)s is parked", {"row_id": item.id, "reason": reason})``.
    """

    def __init__(self, name: str, *, counts_repeats: bool = True) -> None:
        self._logger = logging.getLogger(name)
        self._counts_repeats = counts_repeats
        self.debug = partial(self._log, logging.DEBUG)
        self.info = partial(self._log, logging.INFO)
        self.warning = partial(self._log, logging.WARNING)
        self.error = partial(self._log, logging.ERROR)

    def exception(self, text: str, fields: Fields | None = None) -> None:
        """Log the exception that is being handled."""
        self._log(logging.ERROR, text, fields, exc_info=sys.exc_info()[1], stacklevel=3)

    def _log(
        self,
        level: int,
        text: str,
        fields: Fields | None = None,
        *,
        exc_info: BaseException | None = None,
        stacklevel: int = 2,
    ) -> None:
        try:
            if not self._logger.isEnabledFor(level):
                return
            line = LogLine(self._logger.name, level, text, fields or {})
            if exc_info is not None:
                place = _place_of(exc_info.__traceback__)
                line = line._replace(error_type=type(exc_info).__qualname__, place=place)
            if self._counts_repeats and not _is_shown(line):
                return
            self._logger.log(
                level,
                text,
                *filter(None, [fields]),  # a message without any is no template
                exc_info=None if exc_info is None else without_values(exc_info),
                extra=_prefixed(line.fields),
                stacklevel=stacklevel,
            )
        except _RAISED:
            _broken.tell()


def tell_counts() -> None:
    """Log how many lines were counted and not shown; at the end of a drain, and of the process."""
    _tell(_repeats.end_all())


def _place_of(frame: TracebackType | None) -> tuple[str, int]:
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return ("", 0) if frame is None else (frame.tb_frame.f_code.co_filename, frame.tb_lineno)


def _is_shown(line: LogLine) -> bool:
    now, loop = monotonic(), asyncio._get_running_loop()
    counted, window = _repeats.admit(line, now, loop)
    _tell(counted)
    if window is not None and window.count == 1 and loop is not None:
        # In a context of its own: the count is not of the row, or the request, in whose context the
        # first one was counted.
        rest_s = max(window.began + WINDOW_S - now, 0.0)
        loop.call_later(rest_s, lambda: _tell(_repeats.end(window)), context=Context())
    return window is None


def _tell(counted: list[Counted]) -> None:
    for line, count in counted:
        try:
            # A message without fields is not a template.
            text = NOT_SHOWN + (line.text if line.fields else line.text.replace("%", "%%"))
            fields = {**line.fields, "count": count}
            if line.error_type:
                fields["error_type"] = line.error_type
            logger = logging.getLogger(line.logger)
            logger.log(line.level, text, fields, extra=_prefixed(fields))
        except _RAISED:
            _broken.tell()


def _prefixed(fields: Fields) -> dict[str, object]:
    return {FIELD_PREFIX + name: value for name, value in fields.items()}


class _Broken:
    is_told = False

    def tell(self) -> None:
        """Print the exception that is being handled to stderr, where logging reports such things
        itself, unless one was printed already.
        """
        if self.is_told or not logging.raiseExceptions:
            return
        self.is_told = True
        # `stderr` may be closed, or None; and there is no other place to say so.
        with suppress(Exception):
            sys.stderr.write(
                "--- rowlock: logging is broken, and a log line was lost (reported once) ---\n"
            )
            traceback.print_exc(file=sys.stderr)


_broken = _Broken()
_repeats = Repeats()
atexit.register(tell_counts)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_repeats.forget)


def get_logger(name: str) -> ContainedLogger:
    return ContainedLogger(name)


def get_audit_logger() -> ContainedLogger:
    """Return the logger of what people do: each of its lines is shown."""
    return ContainedLogger("rowlock.audit", counts_repeats=False)


def forget() -> None:
    """Begin anew, as a new process would."""
    _broken.is_told = False
    _repeats.forget()
