"""Guards of checkpoints that are asked for, and the tests that miss them."""

from __future__ import annotations

from bug import Bug

CHECKPOINTS = "tests/streams/walk/test_checkpoints.py"

CHECKPOINT_BUGS = (
    Bug(
        "states that are not written have no limit",
        "streams/shards/rounds.py",
        "FlowRounds._relieve",
        "dirty >= self._program.settings.dirty_keys_max",
        "False",
        (f"{CHECKPOINTS}::test_by_memory",),
    ),
    Bug(
        "a checkpoint is requested with each step",
        "streams/shards/rounds.py",
        "FlowRounds._relieve",
        "dirty >= self._program.settings.dirty_keys_max",
        "True",
        (f"{CHECKPOINTS}::test_by_command",),
    ),
    Bug(
        "a request for a checkpoint is not in the plan",
        "streams/cutting/cutter.py",
        "_flow_cuts",
        "checkpoint_requested=facts.checkpoint_requested",
        "checkpoint_requested=False",
        (f"{CHECKPOINTS}::test_by_memory",),
    ),
)
