"""Texts that clients see: without paths of the machine where something went wrong, and not too
long.
"""

from __future__ import annotations

import re
import traceback

from rowlock.dispatch.columns import PROGRESS_CHARS_MAX
from rowlock.dispatch.states import CANCELLED, CAPACITY, HEARTBEAT_LOST, INTERNAL, STALE
from rowlock.errors import ERROR_TEXT_CHARS_MAX, shorten
from rowlock.redaction import without_values

DETAIL_CHARS_MAX = 8_192
"""Longest traceback that travels to the log, in characters."""

READ_CHARS_MAX = 16 * ERROR_TEXT_CHARS_MAX
"""Of a longer text no more is looked at: to look for paths in ten million characters keeps the
event loop for a second.
"""

_PATH = re.compile(r"(?<![\w/.:])(?:[A-Za-z]:)?(?:[\\/]{1,2}[^\\/\s'\":,;()<>|]+){2,}")
_KIND = re.compile(r"[a-z][a-z0-9 _-]{0,31}")


RESERVED = (CANCELLED, CAPACITY, HEARTBEAT_LOST, STALE)
"""Kinds that only the pipeline gives: clients rely on what they mean."""


def error_of(kind: str, text: str) -> str:
    """Return ``kind: text`` without paths, in at most `ERROR_TEXT_CHARS_MAX` characters; what is
    no kind is ``internal:``.
    """
    told = f"{kind}: {without_paths(str(text)[:READ_CHARS_MAX])}"
    is_kind = isinstance(kind, str) and _KIND.fullmatch(kind)
    return shorten(told if is_kind else f"{INTERNAL}: {told}", chars_max=ERROR_TEXT_CHARS_MAX)


def failure_of(kind: str, text: str) -> str:
    """Return the error of a handler that failed: of its own kind, or ``internal: kind: text`` if
    that is not for handlers.
    """
    return error_of(INTERNAL, f"{kind}: {text}") if kind in RESERVED else error_of(kind, text)


def detail_of(error: BaseException) -> str:
    """Return where `error` comes from, for the log: its traceback, of which the end is kept."""
    told = "".join(traceback.format_exception(without_values(error)))
    return told if len(told) <= DETAIL_CHARS_MAX else f"…{told[1 - DETAIL_CHARS_MAX :]}"


def is_storable(text: str) -> bool:
    """Whether every database takes `text`: it has no NUL and no lone surrogate, either of which
    ends a transaction.
    """
    return shorten(text, chars_max=len(text)) == text


def progress_of(text: object) -> str:
    """Return a progress as it is stored: at most `PROGRESS_CHARS_MAX` characters."""
    return shorten(without_paths(str(text)[:READ_CHARS_MAX]), chars_max=PROGRESS_CHARS_MAX)


def without_paths(text: str) -> str:
    """Replace each path of two parts or more by its last part: folders tell of the machine,
    names of files of the work.
    """
    return _PATH.sub(lambda found: re.split(r"[\\/]", found[0])[-1], text)
