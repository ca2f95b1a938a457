"""Keys: their text, their hash, and the bucket in which each one falls.

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
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import TypeAlias, cast
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

    That is a text as it is, a whole number in decimals, a UUID in lower case with hyphens, a date
    as ``2026-03-01``, and an aware time in UTC as ``2026-03-01T10:00:00+00:00``, with
    microseconds where there are some. A member of an enumeration of texts or numbers is its value.

    Raises:
        TypeError: it is of another type. A bool is none of them, nor is a float: equal ones have
            several texts.
        ValueError: its text is longer than `KEY_CHARS_MAX`, or no database can store it; or a time
            is naive.
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
    """Return the texts of many keys, as `key_text` does of one; itself, if they are all texts.

    Raises:
        TypeError: as `key_text`.
        ValueError: as `key_text`.
    """
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
            return _time_text(key)
        case date():
            return key.isoformat()
        case _:
            msg = f"a key is a str, int, UUID, date or aware datetime, not {type(key).__name__}"
            raise TypeError(msg)


def _time_text(key: datetime) -> str:
    if key.utcoffset() is None:
        msg = f"the key {key.isoformat()} must be an aware datetime"
        raise ValueError(msg)
    return key.astimezone(UTC).isoformat()


def is_storable(text: str) -> bool:
    """Return whether every database takes `text`: it has no NUL and no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def bucket_of(key: Key) -> int:
    """Return the bucket of `key`, from 0 to one below `BUCKETS`: the top 16 bits of its hash.

    Raises:
        TypeError: as `key_text`.
        ValueError: as `key_text`.
    """
    first = sha256(key_text(key).encode()).digest()
    return first[0] << 8 | first[1]
