"""Fields of the attempt on the host's own log lines, and a limit for lines that repeat.

Not here: how rowlock itself logs (``rowlock.logs``).
"""

from __future__ import annotations

import copy
import logging
import sys
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from rowlock import PipelineItem
from rowlock.clock import monotonic
from rowlock.spi import replica_mark

FIELDS = (
    "rowlock_pipeline",
    "rowlock_row_id",
    "rowlock_attempt",
    "rowlock_replica",
    "rowlock_trace_id",
)
"""What `AttemptFields` sets on each record."""
KINDS_MAX = 1000
"""Most kinds of lines that a `RepeatLimit` remembers; the one that it has let through first is
forgotten.
"""
REPEAT_AFTER_S = 30.0  # one line of a kind passes a `RepeatLimit` in this time, in seconds

_attempt: ContextVar[PipelineItem[Any] | None] = ContextVar("rowlock_attempt", default=None)


@contextmanager
def surround_logs(item: PipelineItem[Any]) -> Iterator[None]:
    """Have log lines of an attempt carry its fields: ``PipelineManager(..., surround=[
    surround_logs])``.
    """
    token = _attempt.set(item)
    try:
        yield
    finally:
        _attempt.reset(token)


def attempt_fields() -> dict[str, object]:
    """Return the fields of the attempt in which this is called, for loggers that are not those of
    the standard library; empty outside of one.
    """
    item = _attempt.get()
    if item is None:
        return {}
    values = (item.lock_owner, item.id, item.attempt, replica_mark(), _trace_id())
    return dict(zip(FIELDS, values, strict=True))


class AttemptFields(logging.Filter):
    """Sets `FIELDS` on every record; None outside of an attempt. Belongs on a handler: a filter of
    a logger does not see the lines of the loggers below it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Set what is not set; lets every record through."""
        fields = attempt_fields()
        for name in FIELDS:
            if not hasattr(record, name):
                setattr(record, name, fields.get(name))
        return True


def _trace_id() -> str | None:
    # A host that does not trace has not imported it, and need not have it.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    return format(context.trace_id, "032x") if context.is_valid else None


@dataclass(slots=True)
class _Kind:
    passes_at: float
    held_back: int = 0


class RepeatLimit(logging.Filter):
    """On a handler, lets one line of a kind through in `every_s` seconds. The next one that passes
    says how many were held back, in its text and as the field ``rowlock_held_back``.

    A kind is a logger, a level, a message before its arguments are filled in, and the type of the
    error.
    """

    def __init__(self, every_s: float = REPEAT_AFTER_S) -> None:
        super().__init__()
        self._every_s = every_s
        self._kinds: OrderedDict[tuple[object, ...], _Kind] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> Any:
        """Return False for a record that is held back, else what is shown: the record, or one that
        says how many were.
        """
        error = record.exc_info[0] if record.exc_info else None
        key = (record.name, record.levelno, _text_of(record.msg), error)
        now, kind = monotonic(), self._kinds.get(key)
        if kind is not None and now < kind.passes_at:
            kind.held_back += 1
            return False
        self._kinds[key] = _Kind(now + self._every_s)
        self._kinds.move_to_end(key)
        if len(self._kinds) > KINDS_MAX:
            self._kinds.popitem(last=False)
        return record if kind is None or not kind.held_back else _told(record, kind.held_back)


def _told(record: logging.LogRecord, held_back: int) -> logging.LogRecord:
    # A copy: other handlers get the same record, and have held nothing back.
    told = copy.copy(record)
    told.__dict__["rowlock_held_back"] = held_back
    # Arguments that do not fit are the handler's to report, as without this filter: what a filter
    # raises comes out of the line of the host's code that logs.
    with suppress(Exception):
        told.msg, told.args = f"{record.getMessage()} ({held_back} more were held back)", None
    return told


def _text_of(message: object) -> str:
    try:
        return str(message)
    except Exception:  # noqa: BLE001 - of the host's object, and told by the handler
        return type(message).__qualname__
