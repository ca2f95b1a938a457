"""The states and timers of a shard in memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

from rowlock.streams.computing.compute import NO_STATE, KeyState
from rowlock.streams.key_states import STALE_MAX, ShardCache, StageCache, TimerHeap

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_timers_are_due_in_the_order_of_their_times() -> None:
    """A window would close late, twice, or at a time that was called off."""
    random, heap = Random(1), TimerHeap()
    known: dict[str, int] = {}
    for now in range(500):
        for _ in range(random.randrange(4)):
            key = f"k{random.randrange(20)}"
            due = None if random.random() < 0.2 else now + random.randrange(1, 30)
            heap.set(key, None if due is None else at(due))
            known.pop(key, None)
            if due is not None:
                known[key] = due
        assert heap.earliest == (at(min(known.values())) if known else None)
        expected = sorted((due, key) for key, due in known.items() if due <= now)
        assert heap.due(at(now)) == [key for _, key in expected]
        known = {key: due for key, due in known.items() if due > now}
        assert len(heap._heap) <= 2 * len(heap.known) + STALE_MAX + 1


def test_what_is_newer_than_the_database_is_not_read_over() -> None:
    """A state that a step has just made would be lost to the one before it."""
    cache = StageCache()
    cache.change({"a": KeyState("2")})
    cache.read(["a", "b"], {"a": KeyState("1")})
    assert cache.states(["a", "b"]) == {"a": KeyState("2"), "b": NO_STATE}
    assert cache.missing(["a", "b", "c"]) == ["c"]


def test_what_is_not_written_is_not_forgotten() -> None:
    """States of steps without a checkpoint would be lost where keys are many."""
    cache = StageCache()
    cache.read([f"clean {n}" for n in range(10)], {})
    cache.change({f"dirty {n}": KeyState(str(n)) for n in range(10)})
    cache.shrink(5)
    assert len(cache) == 10
    assert cache.missing(f"dirty {n}" for n in range(10)) == []
    cache.dirty -= {f"dirty {n}" for n in range(3)}
    cache.shrink(5)
    assert len(cache) == 7
    cache.dirty.clear()
    cache.shrink(5)
    # Those first that were written longest ago.
    assert cache.missing(f"dirty {n}" for n in range(10)) == [f"dirty {n}" for n in range(5)]


def test_all_stages_of_a_shard_share_its_memory() -> None:
    """A flow of eight stages would take eight times the memory that it was given; or a stage with
    few keys keep what another one needs.
    """
    cache = ShardCache(["few", "many", "more"])
    for name, count in (("few", 10), ("many", 100), ("more", 200)):
        cache[name].read([f"{name} {n}" for n in range(count)], {})
    cache.shrink(90)
    assert [len(stage) for _, stage in cache] == [10, 40, 40]
    cache["few"].change({f"few {n}": KeyState("1") for n in range(10)})
    cache.shrink(5)
    assert [len(stage) for _, stage in cache] == [10, 0, 0]


def test_timers_that_are_not_read_count_as_due() -> None:
    """A timer would be missed that no page has reached yet."""
    cache = ShardCache(["one", "two"])
    assert cache.earliest_timer is None
    cache.timers_read_until = at(5)
    assert cache.earliest_timer == at(5)
    cache["two"].change({"a": KeyState("1", at(3))})
    assert (cache.earliest_timer, cache.dirty) == (at(3), 1)
