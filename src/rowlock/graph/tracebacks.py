"""Tracebacks of errors of the host, whatever its classes make of attributes.

An error may refuse to have its traceback read or set, as frozen data classes do. That would end the
thread that enters what a call raised, and the call never be over.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final

_TRACEBACK: Final = vars(BaseException)["__traceback__"]


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error."""
    found: TracebackType | None = _TRACEBACK.__get__(error)
    return found


def set_traceback(error: BaseException, traceback: TracebackType | None) -> None:
    """Have an error begin with that traceback."""
    _TRACEBACK.__set__(error, traceback)
