"""Rows as columns, their division among shards, batches, and digests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.streams.computing.hashing import (
    BUCKETS,
    DIGEST_CHARS,
    BucketRange,
    bucket_of,
    combined,
    digest_of,
)
from rowlock.streams.computing.rows import (
    EventBatch,
    SourceRows,
    divide,
    grouped,
    grouped_by,
    input_digest,
)

from .stages import ALL, batch_of, rows_of

HALVES = ALL.halves


@dataclass
class Trip:
    zone: str
    hour: int


class Colour(Enum):
    RED = "red"


@given(
    st.lists(st.tuples(st.text("abcd", min_size=1), st.integers(), st.booleans())),
    st.integers(0, 4),
)
def test_rows_are_divided(rows: list[tuple[str, int, bool]], power: int) -> None:
    """A row without a bucket would be processed by no shard, or by each of them."""
    ranges = [
        BucketRange(lo, lo + (BUCKETS >> power)) for lo in range(0, BUCKETS, BUCKETS >> power)
    ]
    whole = rows_of("s", int, *((key, number) for key, number, _ in rows))
    pairs = zip(whole.buckets, rows, strict=True)
    buckets = [None if is_bare else bucket for bucket, (_, _, is_bare) in pairs]
    parts = divide(replace(whole, buckets=buckets), ranges)
    assert sum(map(len, parts)) == len(rows)
    for part, own in zip(parts, ranges, strict=True):
        assert list(part.positions) == sorted(part.positions)
        assert all(bucket_of(key) in own for key in part.keys)
        for position, key, raw in zip(part.positions, part.keys, part.raw, strict=True):
            assert (key, raw) == (whole.keys[position - 1], whole.raw[position - 1])


def test_rows_of_other_replicas_are_left_out() -> None:
    """A replica would process rows of shards that it does not hold."""
    rows = rows_of("s", int, *((f"k{number}", number) for number in range(50)))
    assert divide(rows, []) == []
    (part,) = divide(rows, [HALVES[1]])
    assert 0 < len(part) < 50
    assert {bucket >= BUCKETS // 2 for bucket in part.buckets if bucket is not None} == {True}
    assert divide(rows, [ALL]) == [rows]


def test_batch_has_columns_lists_and_groups() -> None:
    """A batch handler would get events of one key under another."""
    first = rows_of("a", Trip, ("x", Trip("x", 1)), ("y", Trip("y", 2)))
    second = rows_of("b", Trip, ("y", Trip("y", 3)), ("x", Trip("x", 4)))
    batch: EventBatch[Trip] = EventBatch([first, rows_of("c", Trip), second], ["z"])
    assert len(batch) == 4
    assert batch.keys == ["x", "y", "y", "x"]
    assert [row.hour for row in batch.rows] == batch.column("hour") == [1, 2, 3, 4]
    assert {key: [one.hour for one in of_key] for key, of_key in batch.groups().items()} == {
        "x": [1, 4],
        "y": [2, 3],
    }
    assert batch.counts() == {"x": 2, "y": 2}
    assert batch.timers == ["z"]
    assert list(batch.groups()) == ["x", "y"]
    with pytest.raises(ValueError, match="no field gone"):
        batch.column("gone")


def test_timers_do_not_read_the_rows_again() -> None:
    """Each event would be made twice in a step with timers."""
    batch = batch_of(Trip, ("x", Trip("x", 1)))
    assert batch.with_timers([]) is batch
    rows = batch.rows
    after = batch.with_timers(["z"])
    assert (after.rows is rows, after.timers, after.keys) == (True, ["z"], ["x"])


def test_rows_that_cannot_be_read_break_their_keys_alone() -> None:
    """One payload that was written by hand would set aside the events of all keys."""
    rows = rows_of("s", int, ("a", 1), ("b", 2), ("a", 3), ("c", 4))
    broken = replace(rows, raw=["1", "2", "{", "4"])
    groups = grouped(EventBatch([broken]))
    assert groups.events == {"b": [2], "c": [4]}
    assert set(groups.broken) == {"a"}
    assert isinstance(groups.broken["a"], ValueError)


def test_groups_of_a_fold() -> None:
    """A row per zone and hour would be found under another key than it was written."""
    batch = batch_of(Trip, ("x", Trip("x", 1)), ("x", Trip("x", 2)), ("x", Trip("x", 1)))
    groups = grouped_by(batch, lambda trip: (trip.zone, trip.hour))
    assert groups.values == {'["x", "1"]': ("x", 1), '["x", "2"]': ("x", 2)}
    assert [len(events) for events in groups.events.values()] == [2, 1]
    assert grouped_by(batch, lambda trip: trip.zone).values == {"x": "x"}
    assert groups.broken == {}


@pytest.mark.parametrize("by", [("hour",), ("hour", "zone"), (), None])
def test_groups_begin_with_the_key(by: tuple[str, ...] | None) -> None:
    """Two shards would write one row of the host's table."""

    def group(trip: Trip) -> Any:
        return None if by is None else tuple(getattr(trip, name) for name in by)

    groups = grouped_by(batch_of(Trip, ("x", Trip("x", 1)), ("y", Trip("y", 1))), group)
    assert groups.events == {}
    assert set(groups.broken) == {"x", "y"}


def digest(**changes: Any) -> str:
    rows = rows_of("s", str, ("a", "x"), ("b", "y"))
    return input_digest([replace(rows, **changes)])


def test_digest_is_pinned() -> None:
    """After an upgrade each replay would seem to differ."""
    assert digest() == "b2e4969ddb2e0bc704b378ab333f2386"
    assert len(digest()) == DIGEST_CHARS


@pytest.mark.parametrize(
    "changes",
    [
        {"raw": ['"x"', '"z"']},
        {"raw": ['"y"', '"x"']},
        {"raw": ['"x"', None]},
        {"raw": ['"x"\0"y"', ""]},
        {"keys": ["a", "c"]},
        {"keys": ["b", "a"]},
        {"keys": ["a"], "raw": ['"x"']},
        {"source": "t"},
    ],
)
def test_digest_is_of_count_content_and_order(changes: dict[str, Any]) -> None:
    """A replay would take changed rows for those that it had read."""
    assert digest(**changes) != digest()


def test_digests_do_not_depend_on_how_rows_are_read() -> None:
    """A replay by another driver, or with other positions after a restore, would differ."""
    assert digest(positions=[5, 9]) == digest(buckets=[None, None]) == digest()
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    there = noon.astimezone(timezone(timedelta(hours=2)))
    assert digest_of([(1, noon)]) == digest_of([(1, there)]) == digest_of([[1, noon]])


def test_values_that_look_alike_have_other_digests() -> None:
    """A column that has become a text would pass for the number that it was."""
    values: list[Any] = [
        *(1, "1", 1.5, Decimal("1.5"), None, "", True, "true", b"1", (1,), ("1",)),
        *(date(2026, 3, 1), "2026-03-01", datetime(2026, 3, 1, tzinfo=UTC), UUID(int=1)),
        *(timedelta(1), Colour.RED, "red", {1}, {"a": 1}),
        *(ip_address("10.0.0.1"), ip_interface("10.0.0.1/8"), ip_network("10.0.0.0/8"), "10.0.0.1"),
    ]
    assert len({digest_of([value]) for value in values}) == len(values)
    assert digest_of(["a", "b"]) != digest_of(["a"], ["b"]) != digest_of(["ab"])
    assert digest_of(["a\0b"]) != digest_of(["a", "b"])
    assert digest_of(["a\0b", "c"]) != digest_of(["a", "b\0c"])
    assert digest_of([]) != digest_of([""]) != digest_of()


def test_value_that_cannot_be_digested() -> None:
    """A digest would have an address of the memory in it."""
    with pytest.raises(TypeError, match="cannot be digested"):
        digest_of([object()])


def test_digests_of_stages() -> None:
    """A step of two stages would be compared by the first alone."""
    assert combined(["a"]) == "a"
    assert len({combined(["a", "b"]), combined(["b", "a"]), combined(["a", "b", "b"])}) == 3


def test_empty_rows() -> None:
    """A step without rows would have no digest."""
    empty = SourceRows("s", [], [], [], [], rows_of("s", int).decoder)
    assert EventBatch([empty]).parts == ()
    assert EventBatch().keys == EventBatch().rows == []
