"""The host's redaction of errors, contained: what it makes of one costs no answer. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Redact = Callable[[str], str]
NOT_REDACTED: Final = "(an error that redact= has failed for)"
"""In place of an error's text, which is not shown as it is."""


def contained_redaction(redact: Redact | None) -> Redact | None:
    """Return `redact` with `NOT_REDACTED` where it raises, or returns no text."""
    if redact is None:
        return None

    def redacted(text: str) -> str:
        try:
            found: object = redact(text)
        # A host's code may raise anything.
        except (Exception, SystemExit):  # noqa: BLE001
            return NOT_REDACTED
        return found if isinstance(found, str) else NOT_REDACTED

    return redacted
