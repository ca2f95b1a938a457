"""Progress: the latest is shown, and it is not written for every word."""

from __future__ import annotations

from rowlock.clock import monotonic

PROGRESS_EVERY_S = 1.0
"""A progress is written at most so often, in seconds; the last one is kept."""


class LastProgress:
    """The last progress, and when it may be written.

    Attributes:
        last: what the handler said last.
    """

    def __init__(self) -> None:
        self.last: str | None = None
        self._text: str | None = None
        self._next_at = float("-inf")

    def set(self, text: str) -> None:
        """Note what the handler says now."""
        self.last = self._text = text

    def due(self) -> str | None:
        """Return what is to be written now, if anything is."""
        if self._text is None or monotonic() < self._next_at:
            return None
        text, self._text = self._text, None
        self._next_at = monotonic() + PROGRESS_EVERY_S
        return text
