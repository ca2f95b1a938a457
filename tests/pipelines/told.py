"""What the log says: the lines of the library with their data, so that a test can compare them
whole.

Hosts filter by the data and read the text; the traceback alone says what went wrong underneath.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, NamedTuple

import pytest

from rowlock.logs import FIELD_PREFIX, NOT_SHOWN, tell_counts

_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class Line(NamedTuple):
    """One line: its text, its ``extra`` without the prefix, and the error whose traceback it
    shows.
    """

    text: str
    extra: dict[str, Any]
    error: str | None


def told(caplog: pytest.LogCaptureFixture, words: str) -> list[Line]:
    """Return the lines of the library that contain `words`, in order, also those that tell how
    many were not shown.
    """
    tell_counts()
    records = [record for record in caplog.records if record.name.startswith("rowlock.")]
    return [_channel(record) for record in records if words in record.getMessage()]


def repeated(line: Line, more: int, **fields: Any) -> list[Line]:
    """Return what is told if `line` is followed by `more` of its kind, the last of them with
    `fields`.
    """
    if not more:
        return [line]
    error_type = {"error_type": line.error.partition("(")[0]} if line.error else {}
    extra = {**line.extra, **fields, "count": more, **error_type}
    return [line, Line(NOT_SHOWN % {"count": more} + line.text, extra, None)]


def end_of_logging() -> None:
    for thread in threading.enumerate():
        if thread.name == "rowlock log":
            thread.join()


def _channel(record: logging.LogRecord) -> Line:
    fields = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
    assert all(name.startswith(FIELD_PREFIX) for name in fields), (
        f"a host may have such fields of its own: {fields}"
    )
    extra = {name.removeprefix(FIELD_PREFIX): value for name, value in fields.items()}
    error = record.exc_info[1] if record.exc_info else None
    return Line(record.getMessage(), extra, None if error is None else repr(error))
