"""Where a page of rows ended, as text that fits into an address.

The one idea: a page is found by the last row of the one before, so it costs the same wherever it
is, and a row that does not move is on one page only while others come and go.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Self

from rowlock.errors import AppError
from rowlock.insight.naming import read_key
from rowlock.insight.shown import shown
from rowlock.rows.leased_table import LeasedTable

CURSOR_CHARS_MAX: Final = 4_000
"""Longest text of a cursor."""


@dataclass(frozen=True, slots=True)
class RowCursor:
    """The last row of a page.

    Attributes:
        place: the time by which rows are ordered, as the driver gives it, which may be text; None
            where they are ordered by their keys alone, or if the row was never processed.
        key: tells rows of one place apart.
    """

    place: datetime | str | None
    key: Any

    def text(self) -> str:
        """Return it for an address."""
        is_time = isinstance(self.place, datetime)
        place = self.place.isoformat() if isinstance(self.place, datetime) else self.place
        document = json.dumps([is_time, place, _key_text(self.key)], separators=(",", ":"))
        return base64.urlsafe_b64encode(document.encode()).decode().rstrip("=")

    @classmethod
    def of(cls, text: str, leased: LeasedTable) -> Self:
        """Return what `text` had been made of.

        Raises:
            AppError: it is none of `text()`.
        """
        try:
            place, key = _read(text[: CURSOR_CHARS_MAX + 1])
            return cls(place, read_key(leased, key))
        except (ValueError, TypeError, RecursionError, binascii.Error) as error:
            raise AppError(f"no page of rows begins behind {shown(text, 40)}") from error


def _key_text(key: Any) -> Any:
    return str(key) if isinstance(key, uuid.UUID) or not isinstance(key, int | str) else key


def _read(text: str) -> tuple[datetime | str | None, Any]:
    padded = text + "=" * (-len(text) % 4)
    is_time, place, key = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    if not isinstance(key, int | str) or not isinstance(place, str | None):
        raise ValueError(text)
    return datetime.fromisoformat(place) if is_time and place else place, key
