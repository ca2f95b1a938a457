"""Guards of questions about flows, of the events of flows and of their commands. And the tests that
miss them.
"""

from __future__ import annotations

from bug import Bug

EVENTS = "tests/streams/queries/test_events.py"

QUERY_BUGS = (
    Bug(
        "events of steps are built for nobody",
        "streams/shards/telling.py",
        "Telling.written",
        "if not has_listeners():",
        "if False:",
        (f"{EVENTS}::test_nothing_is_built_for_nobody",),
    ),
    Bug(
        "a step that was rolled back is told as done",
        "streams/shards/writing.py",
        "StepWriter._commit",
        "        try:\n            tokens = await",
        "        for shard, write in writes.items():\n"
        "            self._telling.written(shard, write)\n"
        "        try:\n            tokens = await",
        (f"{EVENTS}::test_what_is_rolled_back_is_not_told",),
    ),
    Bug(
        "a checkpoint is told with every step",
        "streams/shards/telling.py",
        "Telling.written",
        "if write.is_version:",
        "if True:",
        (f"{EVENTS}::test_each_fact_is_told_once",),
    ),
    Bug(
        "hints of other replicas reach managers only",
        "hints/notifier.py",
        "Notifier._wake_here",
        "(TOPIC_MARK in model_name and pipeline_hinter.wake(model_name)) or is_heard",
        "is_heard",
        ("tests/streams/queries/test_hints.py::test_whoever_waits_for_a_topic_needs_no_manager",),
    ),
)
