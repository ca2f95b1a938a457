"""Ranges of buckets, their division among replicas, and how both change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.stream_errors import ShardsMissingError
from rowlock.streams.computing.hashing import BUCKETS, NOT_HERE, BucketRange, owner_table
from rowlock.streams.shards.layout import (
    SHARDS_MAX,
    DynamicShards,
    WantedShards,
    assigned,
    check_layout,
    even_layout,
    fair_shares,
    siblings,
)

NUMBERS = [1 << power for power in range(11)]


@pytest.mark.parametrize("shards", NUMBERS)
def test_even_layout_has_each_bucket_once(shards: int) -> None:
    """Rows of a bucket would be processed by no shard, or by two."""
    ranges = even_layout(shards)
    check_layout("f", ranges)
    assert len(ranges) == shards
    assert {each.width for each in ranges} == {BUCKETS // shards}
    assert (ranges[0].lo, ranges[-1].hi) == (0, BUCKETS)


@pytest.mark.parametrize("shards", [0, -1, 3, 10, 1000, 2048])
def test_number_of_shards_is_a_power_of_two(shards: int) -> None:
    """A shard could not be joined with the sibling that it was split from."""
    with pytest.raises(ValueError, match="power of two"):
        even_layout(shards)


@pytest.mark.parametrize(("lo", "hi"), [(0, 3), (2, 6), (-2, 0), (4, 4), (8, 4), (0, BUCKETS * 2)])
def test_range_is_a_part_by_halving(lo: int, hi: int) -> None:
    """Two shards would each be the sibling of a third."""
    with pytest.raises(ValueError, match="halving"):
        BucketRange(lo, hi)


@given(st.integers(1, 15), st.integers(0, BUCKETS - 1))
def test_halves_and_siblings(power: int, bucket: int) -> None:
    """A split and a join would not lead back to the same shard."""
    width = BUCKETS >> power
    whole = BucketRange(bucket - bucket % width, bucket - bucket % width + width)
    lower, upper = whole.halves
    assert (lower.lo, lower.hi, upper.hi) == (whole.lo, upper.lo, whole.hi)
    assert (lower.sibling, upper.sibling) == (upper, lower)
    assert (bucket in lower) != (bucket in upper)
    assert bucket in whole
    assert len(str(whole).split("..")) == 2


@given(st.lists(st.integers(0, 7), min_size=1, unique=True))
def test_owner_table(indices: list[int]) -> None:
    """A replica would hand rows to the wrong one of its shards."""
    ranges = tuple(even_layout(8)[index] for index in indices)
    table = owner_table(ranges)
    for bucket in range(0, BUCKETS, 97):
        expected = next((i for i, each in enumerate(ranges) if bucket in each), NOT_HERE)
        assert table[bucket] == expected


@pytest.mark.parametrize(
    ("ranges", "missing", "twice"),
    [
        ([], ((0, BUCKETS),), ()),
        (even_layout(4)[1:], ((0, BUCKETS // 4),), ()),
        (even_layout(4)[:-1], ((3 * BUCKETS // 4, BUCKETS),), ()),
        ([*even_layout(2)[:1], *even_layout(4)[3:]], ((BUCKETS // 2, 3 * BUCKETS // 4),), ()),
        ([*even_layout(2), even_layout(4)[0]], (), ((0, BUCKETS // 4),)),
        ([*even_layout(2), even_layout(2)[1]], (), ((BUCKETS // 2, BUCKETS),)),
        ([*even_layout(1), *even_layout(4)[1:2]], (), ((BUCKETS // 4, BUCKETS // 2),)),
    ],
)
def test_incomplete_layout(
    ranges: list[BucketRange],
    missing: tuple[tuple[int, int], ...],
    twice: tuple[tuple[int, int], ...],
) -> None:
    """After a partial restore a flow would begin again with what is there, and lose results."""
    with pytest.raises(ShardsMissingError) as caught:
        check_layout("f", ranges)
    assert (caught.value.missing, caught.value.twice) == (missing, twice)


@pytest.mark.parametrize("k", [0.1, 0.25, 0.5, 0.9])
def test_dynamic_shards(k: float) -> None:
    """A replica would have far more to do than the others, or there would be many more shards than
    that needs.
    """
    for replicas in range(1, 103):
        shards = DynamicShards(k).shards_for(replicas)
        assert shards in NUMBERS
        assert shards >= replicas / k
        assert shards == 1 or shards / 2 < replicas / k
        shares = fair_shares({str(number): 0 for number in range(replicas)}, shards)
        average = shards / replicas
        assert all(abs(share - average) <= k * average for share in shares.values())


def test_dynamic_shards_have_bounds() -> None:
    """A thousand replicas would make a million shards."""
    assert DynamicShards(0.01).shards_for(1000) == SHARDS_MAX
    for k in (0.0, -1.0, 1.0, 1e-9, float("nan")):
        with pytest.raises(ValueError, match="k is"):
            DynamicShards(k)


@given(
    st.dictionaries(st.text("abc", max_size=3), st.integers(0, 20), min_size=1), st.integers(0, 99)
)
def test_shares_are_fair(numbers: dict[str, int], more: int) -> None:
    """A replica would hold two shards more than another, or as many would move as need not."""
    total = sum(numbers.values()) + more
    shares = fair_shares(numbers, total)
    assert sum(shares.values()) == total
    assert max(shares.values()) - min(shares.values()) <= 1
    # No other fair division keeps more where it is.
    low, extra = divmod(total, len(numbers))
    gains = sorted((min(n, low + 1) - min(n, low) for n in numbers.values()), reverse=True)
    best = sum(min(n, low) for n in numbers.values()) + sum(gains[:extra])
    assert sum(min(n, shares[replica]) for replica, n in numbers.items()) == best


@given(st.permutations(["a", "b", "c", "d", "e"]))
def test_shares_do_not_depend_on_the_order(replicas: list[str]) -> None:
    """Two replicas that read the same rows in another order would each wait for the other."""
    numbers = {"a": 3, "b": 3, "c": 3, "d": 0, "e": 3}
    shares = fair_shares({replica: numbers[replica] for replica in replicas}, 16)
    assert shares == {"a": 4, "b": 3, "c": 3, "d": 3, "e": 3}
    layout = even_layout(16)
    holders = {each: "abce"[number % 4] for number, each in enumerate(layout)}
    assert assigned(holders, replicas, wanted=16) == assigned(holders, sorted(replicas), wanted=16)


def test_no_replica() -> None:
    """A flow that no replica runs would be a division by zero in the coordinator."""
    assert fair_shares({}, 16) == {}
    assert assigned(dict.fromkeys(even_layout(4)), [], wanted=4) == {}


Walk = list[tuple[str, int]]
walks = st.lists(st.tuples(st.sampled_from(["join", "leave"]), st.integers(0, 99)), max_size=25)


@given(walks, st.sampled_from([16, 64]))
def test_least_movement(walk: Walk, shards: int) -> None:
    """A replica that comes or goes would stop shards that stay where they are."""
    layout = even_layout(shards)
    holders: dict[BucketRange, str | None] = dict.fromkeys(layout)
    replicas: list[str] = []
    for number, (act, which) in enumerate([("join", 0), *walk]):
        gone = None
        if act == "join" or len(replicas) == 1:
            replicas.insert(which % (len(replicas) + 1), f"{which}-{number}")
        else:
            gone = replicas.pop(which % len(replicas))
        after = assigned(holders, replicas, wanted=shards)
        counts = counts_of(after, replicas)
        assert max(counts.values()) - min(counts.values()) <= 1
        moved = [each for each in layout if after[each] != holders[each]]
        if gone is not None:
            assert [each for each in layout if holders[each] == gone] == moved
        elif number:
            assert len({after[each] for each in moved}) <= 1, "nothing moves between old ones"
            assert len(moved) == shards // len(replicas)
        holders = dict(after)


def counts_of(holders: dict[BucketRange, str], replicas: Iterable[str]) -> Counter[str]:
    counts = Counter(dict.fromkeys(replicas, 0))
    counts.update(holders.values())
    return counts


@given(walks)
def test_dynamic_layouts(walk: Walk) -> None:
    """With the number of replicas, shards would be split and joined in a way that stops more of
    them than it must, or would never come to the wanted number.
    """
    dynamic, replicas = DynamicShards(0.25), ["first"]
    holders: dict[BucketRange, str] = dict.fromkeys(even_layout(dynamic.shards_for(1)), "first")
    for number, (act, which) in enumerate(walk):
        if act == "join" and len(replicas) < 20:
            replicas.append(f"{which}-{number}")
        elif len(replicas) > 1:
            replicas.pop(which % len(replicas))
        wanted = dynamic.shards_for(len(replicas))
        holders = changed(holders, replicas, wanted)
        check_layout("f", holders)
        assert len(holders) == wanted
        counts = counts_of(holders, replicas)
        assert max(counts.values()) - min(counts.values()) <= 1


def changed(
    holders: dict[BucketRange, str], replicas: list[str], wanted: int
) -> dict[BucketRange, str]:
    """Change a layout as replicas do: release and claim, split, join, until nothing is left."""
    for _ in range(30):
        before = dict(holders)
        present = {each: one if one in replicas else None for each, one in holders.items()}
        holders = assigned(present, replicas, wanted=wanted)
        splits = [each for each in holders if each.width > BUCKETS // wanted]
        if splits:
            moved = [each for each in holders if present[each] not in {None, holders[each]}]
            assert moved == [], "doubling moves nothing"
        for each in splits:
            holders |= dict.fromkeys(each.halves, holders.pop(each))
        for replica in replicas:
            own = [each for each, holder in holders.items() if holder == replica]
            for lower, upper in siblings(dict.fromkeys(own, 7), wanted):
                del holders[lower], holders[upper]
                holders[BucketRange(lower.lo, upper.hi)] = replica
        if holders == before:
            return holders
    raise AssertionError("the layout does not come to rest")


@given(
    st.lists(st.text("abc", max_size=4), min_size=2, max_size=14, unique=True),
    st.sampled_from([8, 16, 64]),
)
def test_an_upgrade_replica_by_replica_moves_each_shard_once(
    replicas: list[str], shards: int
) -> None:
    """States would be read and handed over again and again while new code is rolled out."""
    count = len(replicas) // 2
    old, later = replicas[:count], replicas[count : 2 * count]
    new: list[str] = []
    holders = assigned(dict.fromkeys(even_layout(shards)), old, wanted=shards)
    for _ in range(count):
        new.append(later.pop())
        beside = assigned(holders, [*old, *new], wanted=shards, newest=new)
        assert beside == holders, "nothing moves while the old replica is there"
        gone = old.pop()
        present = {each: None if one == gone else one for each, one in holders.items()}
        after = assigned(present, [*old, *new], wanted=shards, newest=new if old else ())
        moved = [each for each in holders if after[each] != holders[each]]
        assert {holders[each] for each in moved} <= {gone}
        assert {after[each] for each in moved} <= set(new)
        holders = after
    counts = counts_of(holders, new)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_halving_moves_one_of_each_pair_that_is_apart() -> None:
    """Siblings would both move, or would never come together."""
    layout = even_layout(8)
    holders = dict(zip(layout, "aabbabab", strict=True))
    after = assigned(holders, ["a", "b"], wanted=4)
    assert [after[each] for each in layout[:4]] == list("aabb")
    assert all(after[each] == after[each.sibling] for each in layout)
    assert sum(after[each] != holders[each] for each in layout) == 2
    assert counts_of(after, "ab") == {"a": 4, "b": 4}


def test_no_join() -> None:
    """Two halves of a state would be joined as of different steps."""
    lower, upper = BucketRange(0, 4096), BucketRange(4096, 8192)
    assert siblings({lower: 5, upper: 6}, 8) == []
    assert siblings({lower: 5, BucketRange(8192, 12288): 5}, 8) == []


def test_joins() -> None:
    """The number of shards would never go down."""
    lower, upper, other = BucketRange(0, 4096), BucketRange(4096, 8192), BucketRange(8192, 16384)
    assert siblings({other: 5, upper: 5, lower: 5}, 8) == [(lower, upper)]
    assert siblings({other: 5, upper: 5, lower: 5}, 16) == []


TENTH = DynamicShards(0.1)


def test_more_shards_at_once_and_fewer_later() -> None:
    """A replica that is started anew would have all shards joined and split again."""
    wanted = WantedShards(TENTH, shrinks_after_s=30)
    assert wanted.after(None, replicas=1, now=0) == 16
    assert wanted.after(16, replicas=2, now=1) == 32
    assert wanted.after(32, replicas=4, now=2) == 64
    assert wanted.after(64, replicas=4, now=3) == 64
    assert not wanted.is_waiting
    assert wanted.after(64, replicas=2, now=10) == 64
    assert wanted.is_waiting
    assert wanted.after(64, replicas=4, now=20) == 64
    # It had come back, so the time begins anew.
    assert wanted.after(64, replicas=2, now=30) == 64
    assert wanted.after(64, replicas=1, now=59) == 64
    assert wanted.after(64, replicas=2, now=60) == 32
    assert not wanted.is_waiting


def test_nothing_is_found_of_a_flow_that_says_its_number() -> None:
    """What a host has asked for by `reshard` would be written over."""
    assert WantedShards(16, shrinks_after_s=0).after(4, replicas=8, now=0) is None


def test_nothing_is_found_of_a_flow_that_nobody_works_on() -> None:
    """A flow would have its shards joined while all replicas are away for a moment."""
    wanted = WantedShards(TENTH, shrinks_after_s=0)
    assert wanted.after(64, replicas=0, now=0) is None
    assert wanted.after(None, replicas=0, now=100) is None
