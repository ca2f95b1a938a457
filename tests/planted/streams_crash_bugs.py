"""Transactions of streams that are torn in two, and the stories of the crash matrix that tell: a
replica that dies between the halves leaves the first one.
"""

from __future__ import annotations

from bug import Bug

TORN = 'await connection.exec_driver_sql("COMMIT"); await connection.exec_driver_sql("BEGIN"); '


def story(name: str) -> str:
    """Return the name of the test of a story, in the form that is always run."""
    return f"tests/streams/crashes/test_matrix.py::test_each_event_counts_once[sqlite-die-{name}]"


TORN_BUGS = (
    Bug(
        "a shard has done a step before its results are written",
        "streams/committing/committer.py",
        "Committer._write",
        "held = [",
        f"{TORN}held = [",
        (story("step-1"), story("memory-1"), story("outbox"), story("fold")),
    ),
    Bug(
        "states are written behind the commit of their results",
        "streams/committing/committer.py",
        "Committer._write",
        "states = [",
        f"{TORN}states = [",
        (story("step-1"), story("memory-1")),
    ),
    Bug(
        "a cursor is moved in a transaction of its own",
        "streams/outputs/cursors.py",
        "move_cursor",
        "if cast(",
        f"{TORN}\n    if cast(",
        (story("ack"),),
    ),
    Bug(
        "the number of a batch is noted before its events are there",
        "streams/inputs/event_log.py",
        "EventLog._known",
        "if done.rowcount:",
        f"{TORN}\n        if done.rowcount:",
        (story("append"),),
    ),
    Bug(
        "a flow is there before its shards are",
        "streams/creation.py",
        "_create",
        "shards = [",
        f"{TORN}shards = [",
        (story("creation"),),
    ),
    Bug(
        "a step is counted before it is recorded",
        "streams/cutting/cutter.py",
        "Cutter._record",
        "if moved.rowcount == 0:",
        f"{TORN}\n        if moved.rowcount == 0:",
        (story("cut"),),
    ),
    Bug(
        "a shard is halved before its other half is there",
        "streams/shards/resharding.py",
        "Resharding.split",
        "half = {",
        f"{TORN}half = {{",
        (story("split"),),
    ),
    Bug(
        "a shard has the buckets of its sibling before that is gone",
        "streams/shards/resharding.py",
        "Resharding.join",
        "shards = self._program.tables.shards",
        f"{TORN}shards = self._program.tables.shards",
        (story("join"),),
    ),
)
