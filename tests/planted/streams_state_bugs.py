"""Guards of states in the database and in memory, and the tests that miss them."""

from __future__ import annotations

from bug import Bug

CACHE = "tests/streams/state/test_cache.py"
STORE = "tests/streams/state/test_store.py"

STATE_BUGS = (
    Bug(
        "the value of a snapshot is overwritten",
        "streams/state/store.py",
        "_moved_aside",
        "own.version <= new.snapshot_version,",
        "",
        (f"{STORE}::test_both_versions_are_as_they_were_written",),
    ),
    Bug(
        "what a snapshot has of a key goes with the key",
        "streams/state/store.py",
        "write_states",
        "one.state != NO_STATE or one.snapshot is not None",
        "one.state != NO_STATE",
        (f"{STORE}::test_both_versions_are_as_they_were_written",),
    ),
    Bug(
        "empty rows are deleted that a snapshot needs",
        "streams/state/store.py",
        "drop_empty",
        "own.version <= before,",
        "",
        (f"{STORE}::test_both_versions_are_as_they_were_written",),
    ),
    Bug(
        "timers of one time are read in part",
        "streams/state/store.py",
        "read_timers",
        "+ equal",
        "",
        (f"{STORE}::test_timers_are_read_by_shard_and_time",),
    ),
    Bug(
        "what the database has is read over what is newer",
        "streams/state/cache.py",
        "StageCache.read",
        "self._states.setdefault(key, states.get(key, NO_STATE))",
        "self._states[key] = states.get(key, NO_STATE)",
        (f"{CACHE}::test_what_is_newer_than_the_database_is_not_read_over",),
    ),
    Bug(
        "states are forgotten that are not written",
        "streams/state/cache.py",
        "StageCache.shrink",
        "if key not in dirty",
        "if True",
        (f"{CACHE}::test_what_is_not_written_is_not_forgotten",),
    ),
    Bug(
        "each stage of a shard keeps as many states as all may",
        "streams/state/cache.py",
        "ShardCache.shrink",
        "left // count",
        "keys_max",
        (f"{CACHE}::test_all_stages_of_a_shard_share_its_memory",),
    ),
    Bug(
        "what a stage needs less of is kept for it",
        "streams/state/cache.py",
        "ShardCache.shrink",
        "left -= len(stage)",
        "left -= left // count",
        (f"{CACHE}::test_all_stages_of_a_shard_share_its_memory",),
    ),
    Bug(
        "a timer that was called off is due",
        "streams/state/cache.py",
        "TimerHeap.earliest",
        "heap and self.known.get(heap[0][1]) != heap[0][0]",
        "False",
        (f"{CACHE}::test_timers_are_due_in_the_order_of_their_times",),
    ),
)
