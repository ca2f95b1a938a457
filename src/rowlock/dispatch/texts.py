"""Texts that clients see: without paths of the machine where something went wrong, and not too long."""

from __future__ import annotations

import re

from rowlock.dispatch.columns import PROGRESS_CHARS_MAX
from rowlock.errors import ERROR_TEXT_CHARS_MAX, shorten

_PATH = re.compile(r"(?<![\w/.:])(?:[A-Za-z]:)?(?:[\\/]{1,2}[^\\/\s'\":,;()<>|]+){2,}")
_KIND = re.compile(r"[a-z][a-z0-9 _-]{0,31}")


def error_of(kind: str, text: str) -> str:
    """Return ``kind: text`` with paths stripped, in at most `ERROR_TEXT_CHARS_MAX` characters."""
    kind = kind if isinstance(kind, str) and _KIND.fullmatch(kind) else "internal"
    return shorten(f"{kind}: {without_paths(str(text))}", chars_max=ERROR_TEXT_CHARS_MAX)


def progress_of(text: object) -> str:
    """Return a progress as it is stored: at most `PROGRESS_CHARS_MAX` characters."""
    return shorten(without_paths(str(text)), chars_max=PROGRESS_CHARS_MAX)


def without_paths(text: str) -> str:
    """Replace each path of two parts or more by its last part: folders tell of the machine, names of files of the work."""
    return _PATH.sub(lambda found: re.split(r"[\\/]", found[0])[-1], text)
