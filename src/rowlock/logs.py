"""The one way in which rowlock logs: contained, with its fields under one prefix.

The one idea: a log call runs code of the host (its record factory, filters, handlers and
formatters, the ``__str__`` of a row's id), and stands where rowlock holds a lease. Whatever that
code raises stays in here; an actor never learns of it.

Lines that repeat are counted instead of shown (`repeats`), and values of rows are cut out of
tracebacks (`redaction`).

Not here: what is logged, and at which level. That is the business of whoever calls.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import sys
import traceback
from asyncio import AbstractEventLoop
from collections.abc import Mapping
from contextvars import Context
from types import TracebackType

from rowlock.clock import monotonic
from rowlock.redaction import without_values
from rowlock.repeats import Counted, LogLine, Repeats, Window

FIELD_PREFIX = "rowlock_"
"""In front of each field of a record: logging refuses a record whose field the host's own record
factory has set already.
"""

NOT_SHOWN = "%d more were counted and not shown; the last one: "
"""In front of a message that tells of all of its kind that were counted."""

_FRAMES_OF_OURS = 3
"""From logging to the caller: the method that was called, and `_log`."""


class ContainedLogger:
    """Logs like a ``logging.Logger``, and never raises.

    Args:
        name: of the logger.
        counts_repeats: whether lines that repeat are counted instead of shown.
    """

    def __init__(self, name: str, *, counts_repeats: bool = True) -> None:
        self._logger = logging.getLogger(name)
        self._counts_repeats = counts_repeats

    def debug(
        self,
        text: str,
        *args: object,
        extra: Mapping[str, object] | None = None,
        exc_info: object = None,
    ) -> None:
        """Log what helps to find a fault in rowlock."""
        self._log(logging.DEBUG, text, args, extra=extra, exc_info=exc_info)

    def info(
        self,
        text: str,
        *args: object,
        extra: Mapping[str, object] | None = None,
        exc_info: object = None,
    ) -> None:
        """Log what is expected."""
        self._log(logging.INFO, text, args, extra=extra, exc_info=exc_info)

    def warning(
        self,
        text: str,
        *args: object,
        extra: Mapping[str, object] | None = None,
        exc_info: object = None,
    ) -> None:
        """Log what mends itself, and should be looked at if it goes on."""
        self._log(logging.WARNING, text, args, extra=extra, exc_info=exc_info)

    def error(
        self,
        text: str,
        *args: object,
        extra: Mapping[str, object] | None = None,
        exc_info: object = None,
    ) -> None:
        """Log what somebody should look at."""
        self._log(logging.ERROR, text, args, extra=extra, exc_info=exc_info)

    def exception(
        self,
        text: str,
        *args: object,
        extra: Mapping[str, object] | None = None,
        exc_info: object = True,
    ) -> None:
        """Log an error with the exception that is being handled."""
        self._log(logging.ERROR, text, args, extra=extra, exc_info=exc_info)

    def _log(
        self,
        level: int,
        text: str,
        args: tuple[object, ...],
        *,
        extra: Mapping[str, object] | None,
        exc_info: object,
    ) -> None:
        try:
            if not self._logger.isEnabledFor(level):
                return
            error = _error_of(exc_info)
            line = LogLine(self._logger.name, level, text, args, extra or {})
            told = line if error is None else _of_error(line, error)
            if self._counts_repeats and not _is_shown(told):
                return
            shown = None if error is None else without_values(error)
            self._logger.log(
                level,
                text,
                *args,
                exc_info=shown,
                extra=_prefixed(line.fields),
                stacklevel=_FRAMES_OF_OURS,
            )
        # A SystemExit out of a handler must not end the event loop.
        except BaseException:  # noqa: BLE001
            _broken.tell()


def tell_counts() -> None:
    """Log how many lines were counted and not shown; at the end of a drain, and of the process."""
    _tell(_repeats.end_all())


def _of_error(line: LogLine, error: BaseException) -> LogLine:
    return line._replace(error_type=type(error).__qualname__, place=_place_of(error.__traceback__))


def _place_of(frame: TracebackType | None) -> tuple[str, int]:
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return ("", 0) if frame is None else (frame.tb_frame.f_code.co_filename, frame.tb_lineno)


def _is_shown(line: LogLine) -> bool:
    now, loop = monotonic(), _running_loop()
    admission = _repeats.admit(line, now, loop)
    _tell(admission.counted)
    if admission.begun is not None and loop is not None:
        # In a context of its own: the count is not of the row, or the request, in whose context the
        # first one was counted.
        loop.call_later(admission.begun.ends_in(now), _tell_of, admission.begun, context=Context())
    return admission.is_shown


def _tell_of(window: Window) -> None:
    _tell(_repeats.end(window))


def _tell(counted: list[Counted]) -> None:
    for line, count in counted:
        try:
            # A message without arguments is not a template.
            text = NOT_SHOWN + (line.text if line.args else line.text.replace("%", "%%"))
            more = (
                {"count": count, "error_type": line.error_type}
                if line.error_type
                else {"count": count}
            )
            logger = logging.getLogger(line.logger)
            logger.log(
                line.level, text, count, *line.args, extra=_prefixed({**line.fields, **more})
            )
        except BaseException:  # noqa: BLE001 - as in `_log`
            _broken.tell()


def _running_loop() -> AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _prefixed(fields: Mapping[str, object]) -> dict[str, object]:
    return {FIELD_PREFIX + name: value for name, value in fields.items()}


def _error_of(exc_info: object) -> BaseException | None:
    """Return the error that is meant, of all the forms that logging takes."""
    if isinstance(exc_info, tuple):
        exc_info = exc_info[1]
    elif exc_info and not isinstance(exc_info, BaseException):
        exc_info = sys.exc_info()[1]
    return exc_info if isinstance(exc_info, BaseException) else None


class _Broken:
    """Says once that logging is broken, where logging says such things itself."""

    def __init__(self) -> None:
        self.is_told = False

    def tell(self) -> None:
        """Print the exception that is being handled to stderr, unless one was printed already."""
        if self.is_told or not logging.raiseExceptions:
            return
        self.is_told = True
        try:
            sys.stderr.write(
                "--- rowlock: logging is broken, and what it should have told is lost (said once)"
                " ---\n"
            )
            traceback.print_exc(file=sys.stderr)
        # `stderr` may be closed, or None; and there is no other place to say so.
        except BaseException:  # noqa: BLE001, S110
            pass


_broken = _Broken()
_repeats = Repeats()
atexit.register(tell_counts)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_repeats.forget)


def get_logger(name: str) -> ContainedLogger:
    """Return the logger of a module of rowlock, to be called with the module's ``__name__``."""
    return ContainedLogger(name)


def get_audit_logger() -> ContainedLogger:
    """Return the logger of what people do, ``rowlock.audit``: each of its lines is shown."""
    return ContainedLogger("rowlock.audit", counts_repeats=False)


def forget() -> None:
    """Begin anew, as a new process would; for tests."""
    _broken.is_told = False
    _repeats.forget()
