"""`TraceColumn`: the row carries the span that has written it, so that any replica that works on
it names that span exactly.

The one idea: the column is as W3C spells a ``traceparent``. So it needs no package here, and a
process that does not trace writes nothing.

Source: W3C, "Trace Context" (level 2).
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from rowlock.spi import for_type_checkers

TRACEPARENT_CHARS: Final = 55  # length of a `traceparent`, in characters
_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)


def current_traceparent() -> str | None:
    """Return the current span as W3C spells it; None if there is none. For a service that changes a
    row again: ``volume.traceparent = current_traceparent()``.
    """
    # A host that does not trace has not imported it, and need not have it.
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 0xFF:02x}"


def read_traceparent(text: object) -> tuple[int, int, int] | None:
    """Return trace, span and flags of a ``traceparent``; None if the text is none."""
    found = _TRACEPARENT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    return (trace_id, span_id, flags) if trace_id and span_id else None


@for_type_checkers
class TraceColumn:
    """The span in which a row was written; mixed into a model beside `LockColumns`.

    Attributes:
        traceparent: of the span that was current when the row was inserted, as W3C spells it; null
            = there was none.
    """

    traceparent: Mapped[str | None] = mapped_column(
        String(TRACEPARENT_CHARS), default=current_traceparent
    )
