"""Digests of what a step read and of what came of it: their count, content and order.

A replay compares them, and stops where they differ: then a row was changed, or a handler depends on
something else than its arguments. Equal content gives equal digests in each process and with each
driver.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from typing import Any, cast
from uuid import UUID

DIGEST_BYTES = 16
DIGEST_CHARS = 2 * DIGEST_BYTES
"""Length of a digest: hexadecimal digits."""

_BETWEEN = "\0"
_OWN_TEXT = (
    Decimal,
    UUID,
    timedelta,
    IPv4Address,
    IPv6Address,
    IPv4Interface,
    IPv6Interface,
    IPv4Network,
    IPv6Network,
)
"""Types whose text is the same with each driver."""


class Digest:
    """A digest to which columns of values are added in order."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)

    def add(self, values: Sequence[Any]) -> None:
        """Add a column of values: texts, or what a driver returns of a row.

        Raises:
            TypeError: there is a value that has no text of its own.
        """
        kind, text = "t", _joined_text(values)
        if text is None:
            kind, text = "v", json.dumps(values, default=_plain, separators=(",", ":"))
        self._hash.update(f"{kind}{len(values)}:{len(text)}:".encode())
        self._hash.update(text.encode("utf-8", "surrogatepass"))

    def __str__(self) -> str:
        return self._hash.hexdigest()


def _joined_text(values: Sequence[Any]) -> str | None:
    """Return texts as one, if they can be told apart in it: nearly always, and much faster."""
    try:
        text = _BETWEEN.join(cast("Sequence[str]", values))
    except TypeError:
        return None
    return text if text.count(_BETWEEN) == max(len(values) - 1, 0) else None


def _plain(value: Any) -> Any:
    """Return a text of what JSON has not, with its type."""
    if isinstance(value, datetime):
        # Drivers return an aware time in one zone or another.
        return ["t", (value if value.utcoffset() is None else value.astimezone(UTC)).isoformat()]
    if isinstance(value, date | time):
        return ["d", value.isoformat()]
    if isinstance(value, bytes | bytearray | memoryview):
        return ["b", bytes(value).hex()]
    if isinstance(value, _OWN_TEXT):
        return [type(value).__name__, str(value)]
    if isinstance(value, Enum):
        return ["e", value.name]
    if isinstance(value, set | frozenset):
        return ["s", sorted(json.dumps(each, default=_plain) for each in value)]
    msg = f"a value of type {type(value).__name__} cannot be digested"
    raise TypeError(msg)


def digest_of(*columns: Sequence[Any]) -> str:
    """Return the digest of columns of values.

    Raises:
        TypeError: as `Digest.add`.
    """
    digest = Digest()
    for column in columns:
        digest.add(column)
    return str(digest)


def combined(digests: Sequence[str]) -> str:
    """Return one digest for those of all stages of a step, in their order."""
    return digests[0] if len(digests) == 1 else digest_of(digests)
