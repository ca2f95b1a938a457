"""The one way in which rowlock logs: contained, with its fields under one prefix.

The one idea: a log call runs code of the host (its record factory, filters, handlers and formatters, the ``__str__`` of a row's
id), and stands where rowlock holds a lease. Whatever that code raises stays in here; an actor never learns of it.

Not here: what is logged, and at which level. That is the business of whoever calls.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Mapping

from rowlock.redaction import without_values

FIELD_PREFIX = "rowlock_"
"""In front of each field of a record: logging refuses a record whose field the host's own record factory has set already."""

_FRAMES_OF_OURS = 3
"""From logging to the caller: the method that was called, and `_log`."""


class ContainedLogger:
    """Logs like a ``logging.Logger``, and never raises."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(
        self, text: str, *args: object, extra: Mapping[str, object] | None = None, exc_info: object = None
    ) -> None:
        """Log what helps to find a fault in rowlock."""
        self._log(logging.DEBUG, text, args, extra, exc_info)

    def info(
        self, text: str, *args: object, extra: Mapping[str, object] | None = None, exc_info: object = None
    ) -> None:
        """Log what is expected."""
        self._log(logging.INFO, text, args, extra, exc_info)

    def warning(
        self, text: str, *args: object, extra: Mapping[str, object] | None = None, exc_info: object = None
    ) -> None:
        """Log what mends itself, and should be looked at if it goes on."""
        self._log(logging.WARNING, text, args, extra, exc_info)

    def error(
        self, text: str, *args: object, extra: Mapping[str, object] | None = None, exc_info: object = None
    ) -> None:
        """Log what somebody should look at."""
        self._log(logging.ERROR, text, args, extra, exc_info)

    def exception(
        self, text: str, *args: object, extra: Mapping[str, object] | None = None, exc_info: object = True
    ) -> None:
        """Log an error with the exception that is being handled."""
        self._log(logging.ERROR, text, args, extra, exc_info)

    def _log(
        self, level: int, text: str, args: tuple[object, ...], extra: Mapping[str, object] | None, exc_info: object
    ) -> None:
        try:
            if self._logger.isEnabledFor(level):
                fields = {FIELD_PREFIX + name: value for name, value in (extra or {}).items()}
                error = _error_of(exc_info)
                shown = None if error is None else without_values(error)
                self._logger.log(level, text, *args, exc_info=shown, extra=fields, stacklevel=_FRAMES_OF_OURS)
        except BaseException:  # noqa: BLE001 - a SystemExit out of a handler must not end the event loop
            _broken.tell()


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
            sys.stderr.write("--- rowlock: logging is broken, and what it should have told is lost (said once) ---\n")
            traceback.print_exc(file=sys.stderr)
        except BaseException:  # noqa: BLE001, S110 - stderr may be closed, or None; and there is no other place to say so
            pass


_broken = _Broken()


def get_logger(name: str) -> ContainedLogger:
    """Return the logger of a module of rowlock, to be called with the module's ``__name__``."""
    return ContainedLogger(name)


def is_broken() -> bool:
    """Whether a log call has failed in this process, and stderr was told."""
    return _broken.is_told


def forget() -> None:
    """Begin anew, as a new process would; for tests."""
    _broken.is_told = False
