"""Guards of snapshots that are read while shards go on, and the tests that miss them."""

from __future__ import annotations

from bug import Bug

SNAPSHOTS = "tests/streams/snapshots/test_snapshots.py"
REFUSALS = "tests/streams/snapshots/test_refusals.py"
KEEPING = "streams/queries/snapshot_keeping.py"

SNAPSHOT_BUGS = (
    Bug(
        "a snapshot is advanced while it is kept",
        "streams/cutting/cutter.py",
        "_flow_cuts",
        "snapshot_in_use=seen.snapshot.is_kept",
        "snapshot_in_use=False",
        (f"{SNAPSHOTS}::test_a_snapshot_is_not_replaced_while_it_is_read",),
    ),
    Bug(
        "a page is read of a snapshot whose time is over",
        KEEPING,
        "SnapshotKeeping.check",
        "flows.kept_until > database_instant()",
        "flows.id == self._program.id",
        (f"{SNAPSHOTS}::test_a_reader_that_is_too_slow_gets_an_error",),
    ),
    Bug(
        "a page is read of a snapshot that was replaced",
        KEEPING,
        "SnapshotKeeping.check",
        "flows.kept_snapshot == version",
        "flows.id == self._program.id",
        (f"{SNAPSHOTS}::test_a_reader_that_is_too_slow_gets_an_error",),
    ),
    Bug(
        "the end of a reader is that of another snapshot's",
        KEEPING,
        "SnapshotKeeping._release",
        "flows.c.kept_snapshot == version,",
        "",
        (f"{SNAPSHOTS}::test_a_reader_that_is_too_slow_gets_an_error",),
    ),
    Bug(
        "the first reader that ends takes the snapshot from the others",
        KEEPING,
        "SnapshotKeeping._release",
        "flows.c.kept_by <= 1",
        "flows.c.kept_by <= 9",
        (f"{SNAPSHOTS}::test_readers_that_ask_together_share_one",),
    ),
    Bug(
        "a snapshot is read before the slowest shard has written it",
        KEEPING,
        "SnapshotKeeping._wait",
        "seen.frontier >= seen.version",
        "True",
        (f"{SNAPSHOTS}::test_who_gives_up_behind_the_cut_reads_no_more",),
    ),
    Bug(
        "a snapshot that no replica can cut is said to wait for a reader",
        KEEPING,
        "SnapshotKeeping._reason",
        "any(one.is_held for one in seen.shards)",
        "seen.shards",
        (f"{SNAPSHOTS}::test_no_snapshot_while_no_replica_is_there",),
    ),
    Bug(
        "who gives up is counted on",
        KEEPING,
        "SnapshotKeeping.acquire",
        """        except BaseException:
            await self._withdraw(asked_at)
            raise""",
        """        except BaseException:
            raise""",
        (f"{SNAPSHOTS}::test_who_waits_no_longer_is_not_counted",),
    ),
    Bug(
        "expiry deletes what a snapshot has",
        "streams/coordinating/expiry.py",
        "Expiry._empty_states",
        "if before is None:",
        "if True:",
        (f"{SNAPSHOTS}::test_what_is_dropped_is_in_the_snapshot",),
    ),
    Bug(
        "steps behind a snapshot are written with it",
        "streams/shards/steering.py",
        "together",
        "or taken[-1].is_snapshot",
        "",
        (f"{SNAPSHOTS}::test_a_lagging_shard_stops_at_the_snapshot",),
    ),
    Bug(
        "a shard forgets its snapshot when it is divided",
        "streams/shards/resharding.py",
        "Resharding.split",
        '"snapshot": shard.snapshot,',
        "",
        (f"{SNAPSHOTS}::test_shards_move_and_are_divided_meanwhile",),
    ),
    Bug(
        "the empty key is in no snapshot",
        "streams/state/store.py",
        "read_snapshot",
        "if after is not None:",
        'after = after or ""\n    if True:',
        (f"{SNAPSHOTS}::test_what_is_dropped_is_in_the_snapshot",),
    ),
    Bug(
        "each page of a snapshot sorts all states",
        "streams/state/store.py",
        "read_snapshot",
        "over(order_by=own.key,",
        "over(order_by=[own.bucket, own.key],",
        ("tests/streams/snapshots/test_plan_of_a_page.py::test_a_page_is_read_from_the_index",),
    ),
    Bug(
        "states are read behind their block",
        "streams/queries/snapshot.py",
        "snapshot_of",
        "snapshot.is_closed = True",
        "pass",
        (f"{REFUSALS}::test_behind_its_block_nothing_is_read",),
    ),
    Bug(
        "the rows of a fold are read as states",
        "streams/queries/snapshot.py",
        "StateSnapshot._codec",
        'handler.kind == "fold"',
        "False",
        (f"{REFUSALS}::test_folds_are_refused",),
    ),
)
