"""Keys: their text, hash and bucket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from enum import Enum, IntEnum, StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.streams.computing.hashing import (
    BUCKETS,
    KEY_CHARS_MAX,
    Key,
    bucket_of,
    key_text,
    key_texts,
)

if TYPE_CHECKING:
    pass

PINNED = {
    "": 58288,
    "a": 51863,
    "account-1": 2025,
    "1": 27526,
    "-1": 7085,
    "ä": 13286,
    "日本": 53034,
    "00000000-0000-0000-0000-000000000001": 31425,
    "2026-03-01": 31956,
}


class Named(StrEnum):
    A = "a"


class Mixed(str, Enum):  # noqa: UP042 - its own text is "Mixed.A"
    A = "a"


class Numbered(IntEnum):
    ONE = 1


@pytest.mark.parametrize(("text", "bucket"), PINNED.items())
def test_pinned(text: str, bucket: int) -> None:
    """A new version would look for the state of a key in another shard."""
    assert bucket_of(text) == bucket


@given(
    st.text(
        alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=255
    )
)
def test_bucket_is_the_top_of_the_hash(text: str) -> None:
    """SQL and Python would disagree about the owner of a row."""
    assert bucket_of(text) == int.from_bytes(sha256(text.encode()).digest()[:2], "big")
    assert 0 <= bucket_of(text) < BUCKETS
    assert key_text(text) == text


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (0, "0"),
        (-7, "-7"),
        (10**30, "1" + "0" * 30),
        (UUID("ABCDEF00-0000-0000-0000-000000000001"), "abcdef00-0000-0000-0000-000000000001"),
        (date(2026, 3, 1), "2026-03-01"),
        (datetime(2026, 3, 1, 10, tzinfo=UTC), "2026-03-01T10:00:00+00:00"),
        (
            datetime(2026, 3, 1, 10, 0, 0, 5, tzinfo=timezone(timedelta(hours=2))),
            "2026-03-01T08:00:00.000005+00:00",
        ),
        (Named.A, "a"),
        (Mixed.A, "a"),
        (Numbered.ONE, "1"),
        ("x" * KEY_CHARS_MAX, "x" * KEY_CHARS_MAX),
        ("日" * KEY_CHARS_MAX, "日" * KEY_CHARS_MAX),
    ],
)
def test_one_text(key: Key, text: str) -> None:
    """One key would have two states, each with a part of its events."""
    assert key_text(key) == text
    assert bucket_of(key) == bucket_of(text)


@pytest.mark.parametrize("key", [True, 1.0, None, b"a", ("a", 1), ["a"], object()])
def test_other_types(key: object) -> None:
    """Keys that are equal would have several texts, or a text with an address in it."""
    with pytest.raises(TypeError, match="key"):
        key_text(key)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "key",
    [
        "x" * (KEY_CHARS_MAX + 1),
        "日" * (KEY_CHARS_MAX + 1),
        10**KEY_CHARS_MAX,
        "a\0b",
        "ä\0",
        "a\ud800",
        datetime(2026, 3, 1, 10),  # noqa: DTZ001
    ],
)
def test_keys_that_cannot_be_stored(key: Key) -> None:
    """The transaction of a whole step would fail in the database, without a word about the key."""
    with pytest.raises(ValueError, match="key"):
        key_text(key)


@pytest.mark.parametrize(
    "odd",
    ["k" * 256, "a\0b", "\ud800", Mixed.A, True, 1.5, datetime(2026, 3, 1)],  # noqa: DTZ001
    ids=repr,
)
def test_many_keys_are_judged_as_one_is(odd: Key) -> None:
    """A key that no shard can take would come through in the company of others."""
    try:
        wanted = key_text(odd)
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error)):
            key_texts(["a", odd, "b"])
    else:
        texts = key_texts(["a", odd, "b"])
        assert list(texts) == ["a", wanted, "b"]
        assert {type(text) for text in texts} == {str}


@given(st.lists(st.text(max_size=20) | st.integers() | st.uuids() | st.dates()))
def test_texts_of_many_keys(keys: list[Key]) -> None:
    """Keys of a batch would get other texts, and so other shards, than one by one."""

    def texts(make: Callable[[], Sequence[str]]) -> Sequence[str] | type[Exception]:
        try:
            return list(make())
        except (TypeError, ValueError) as error:
            return type(error)

    assert texts(lambda: key_texts(keys)) == texts(lambda: [key_text(key) for key in keys])
