"""Keys: their text, their hash, the bucket in which each one falls, and ranges of buckets; and
digests of what a step read and wrote.

A key is known by its text: rows and states are grouped, hashed and stored by it, and the number 1
and the text ``"1"`` are the same key. The hash is the first 8 bytes of the SHA-256 of the text in
UTF-8, as an unsigned number, so it is the same in each process, version and layout; Python's own
``hash()`` is another one in each process. The bucket is its top 16 bits, that is, the first two
bytes of the SHA-256.

In SQL of PostgreSQL, the bucket of a text column ``key``:

    get_byte(sha256(convert_to(key, 'UTF8')), 0) * 256
    + get_byte(sha256(convert_to(key, 'UTF8')), 1)

A column of whole numbers, UUIDs or dates is cast to text first; ``::text`` gives the text of here.
SQLite has no SHA-256: a row without a bucket gets it where it is read.

Every range is a half, a half of a half, and so on, of all buckets. So a range has one sibling, and
a split and a later join lead back to where they began.

A digest is of count, content and order, equal in each process and with each driver. A replay
compares them, and stops where they differ: then a row was changed, or a handler depends on
something else than its arguments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from hashlib import blake2b, sha256
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any, Final, TypeAlias, cast
from uuid import UUID

BUCKETS: int = 1 << 16
"""How many buckets there are; ranges of them are divided among shards."""
KEY_CHARS_MAX = 255
"""Longest text of a key, in characters."""

Key: TypeAlias = str | int | UUID | date
"""What may be a key. Times count among dates; they must be aware."""

_SHOWN_CHARS_MAX = 40


def key_text(key: Key) -> str:
    """Return the one text of `key`.

    That is a text as it is, a whole number in decimals, a UUID in lower case with hyphens, a
    date as ``2026-03-01``, and an aware time in UTC as ``2026-03-01T10:00:00+00:00``, with
    microseconds where there are some. A member of an enumeration of texts or numbers is its
    value.

    Raises:
        TypeError: it is of another type. A bool is none of them, nor is a float: equal ones
            have several texts.
        ValueError: it is longer than `KEY_CHARS_MAX`, cannot be stored, or is a naive time.
    """
    # By far the most keys are plain texts that are short and of ASCII.
    if type(key) is str and len(key) <= KEY_CHARS_MAX and key.isascii() and "\0" not in key:
        return key
    text = _text_of(key)
    if len(text) > KEY_CHARS_MAX:
        shown = text[:_SHOWN_CHARS_MAX]
        msg = f"the key {shown!r}... has {len(text)} characters; {KEY_CHARS_MAX} is the maximum"
        raise ValueError(msg)
    if not is_storable(text):
        msg = f"the key {text[:_SHOWN_CHARS_MAX]!r} has a character that no database can store"
        raise ValueError(msg)
    return text


def key_texts(keys: Sequence[Key]) -> Sequence[str]:
    """Return the texts of many keys, as `key_text` does of one; itself, if they are all texts."""
    if not keys or set(map(type, keys)) != {str}:
        return list(map(key_text, keys))
    # Together, since nearly all are short and of ASCII: a call for each takes ten times as long.
    texts = cast("Sequence[str]", keys)
    joined = "".join(texts)
    if joined.isascii() and "\0" not in joined and max(map(len, texts)) <= KEY_CHARS_MAX:
        return texts
    return list(map(key_text, keys))


def _text_of(key: object) -> str:
    # The methods of the plain types, since an enumeration has texts of its own.
    match key:
        case str():
            return str.__str__(key)
        case bool():
            raise TypeError("a bool cannot be a key: make it a text")
        case int():
            return int.__repr__(key)
        case UUID():
            return str(key)
        case datetime():
            if key.utcoffset() is None:
                msg = f"the key {key.isoformat()} must be an aware datetime"
                raise ValueError(msg)
            return key.astimezone(UTC).isoformat()
        case date():
            return key.isoformat()
        case _:
            msg = f"a key is a str, int, UUID, date or aware datetime, not {type(key).__name__}"
            raise TypeError(msg)


def is_storable(text: str) -> bool:
    """Return whether every database takes `text`: it has no NUL and no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def bucket_of(key: Key) -> int:
    """Return the bucket of `key`, from 0 to one below `BUCKETS`: the top 16 bits of its hash."""
    first = sha256(key_text(key).encode()).digest()
    return first[0] << 8 | first[1]


TABLES_KEPT: Final = 8
"""How many tables of owners are kept: one for each division of the shards of late."""
NOT_HERE = -1
"""In the table of owners: a bucket that is in none of the ranges."""


def is_part(lo: int, hi: int) -> bool:
    """Return whether buckets from `lo` to one below `hi` are what repeated halving leads to."""
    width = hi - lo
    return 0 <= lo < hi <= BUCKETS and not width & (width - 1) and not lo % width


@dataclass(frozen=True, slots=True, order=True)
class BucketRange:
    """Buckets from `lo` to one below `hi`: a part of all buckets that repeated halving leads to."""

    lo: int
    hi: int

    def __post_init__(self) -> None:
        if not is_part(self.lo, self.hi):
            msg = f"buckets {self.lo} to {self.hi} are no part that repeated halving leads to"
            raise ValueError(msg)

    def __contains__(self, bucket: int) -> bool:
        return self.lo <= bucket < self.hi

    def __str__(self) -> str:
        return f"{self.lo}..{self.hi}"

    @property
    def width(self) -> int:
        return self.hi - self.lo

    @property
    def sibling(self) -> BucketRange:
        """The other half of the range of which this is one; ValueError if it has all buckets."""
        lo = self.lo ^ self.width
        return BucketRange(lo, lo + self.width)

    @property
    def halves(self) -> tuple[BucketRange, BucketRange]:
        middle = self.lo + self.width // 2
        return BucketRange(self.lo, middle), BucketRange(middle, self.hi)


@lru_cache(maxsize=TABLES_KEPT)
def owner_table(ranges: tuple[BucketRange, ...]) -> Sequence[int]:
    """Return for each bucket the index of the range that has it; `NOT_HERE` where none has."""
    table = [NOT_HERE] * BUCKETS
    for index, each in enumerate(ranges):
        table[each.lo : each.hi] = [index] * each.width
    return table


def merged(ranges: Iterable[BucketRange]) -> list[tuple[int, int]]:
    """Return the buckets of `ranges` as the fewest pairs (first, behind the last), ascending."""
    pairs: list[tuple[int, int]] = []
    for each in sorted(ranges):
        if pairs and pairs[-1][1] == each.lo:
            pairs[-1] = (pairs[-1][0], each.hi)
        else:
            pairs.append((each.lo, each.hi))
    return pairs


# ---------------------------------------------------------------- digests


DIGEST_BYTES = 16
DIGEST_CHARS = 2 * DIGEST_BYTES
"""Length of a digest: hexadecimal digits."""

_BETWEEN = "\0"
_OWN_TEXT = (Decimal, UUID, timedelta, IPv4Address, IPv6Address, IPv4Network, IPv6Network)
"""Types whose text is the same with each driver."""


class Digest:
    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=DIGEST_BYTES)

    def add(self, values: Sequence[Any]) -> None:
        """Add a column of values: texts, or what a driver returns of a row."""
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
    digest = Digest()
    for column in columns:
        digest.add(column)
    return str(digest)


def combined(digests: Sequence[str]) -> str:
    """Return one digest for those of all stages of a step, in their order."""
    return digests[0] if len(digests) == 1 else digest_of(digests)
