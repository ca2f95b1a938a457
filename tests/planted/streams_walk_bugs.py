"""Guards of the steps of shards as they run: leases, replays, timers, commands. And the tests that
miss them.
"""

from __future__ import annotations

from bug import Bug

CREATION = "tests/streams/walk/test_creation.py"
STEPS = "tests/streams/walk/test_steps.py"

WALK_BUGS = (
    Bug(
        "a step is written for shards that are held no longer",
        "streams/committing/committer.py",
        "Committer._write",
        "[one for one in writes if one.item.lock_token in tokens]",
        "list(writes)",
        (f"{STEPS}::test_nothing_is_written_without_the_lease",),
    ),
    Bug(
        "the step of a shard's row is not compared",
        "streams/committing/committer.py",
        "Committer._fenced",
        "unless_changed={self._step: write.before}",
        "unless_changed={}",
        (f"{STEPS}::test_nothing_is_written_twice",),
    ),
    Bug(
        "a cut is recorded whatever its number",
        "streams/cutting/cutter.py",
        "Cutter._record",
        "flows.c.next_step == first.step,",
        "",
        (f"{STEPS}::test_of_two_cuts_one_counts",),
    ),
    Bug(
        "a paused flow is cut by those who have not heard",
        "streams/cutting/cutter.py",
        "Cutter._record",
        'flows.c.state == "running",',
        "",
        (f"{STEPS}::test_a_cut_after_a_pause_is_none",),
    ),
    Bug(
        "a flow that was changed goes on with the states of another",
        "streams/creation.py",
        "_is_there",
        "row.fingerprint != program.fingerprint",
        "False",
        (f"{CREATION}::test_a_changed_flow_is_refused",),
    ),
    Bug(
        "a flow is another one in each process",
        "streams/program.py",
        "FlowProgram.description",
        "stage.codec.name",
        "str(stage.codec)",
        (f"{CREATION}::test_the_same_flow_is_the_same_in_each_process",),
    ),
    Bug(
        "a misspelt `poison` parks",
        "streams/stage.py",
        "StreamStage._registers",
        "poison not in get_args(Poison)",
        "False",
        (f"{CREATION}::test_what_has_another_form_is_told_at_once",),
    ),
    Bug(
        "a handler is decorated without brackets",
        "streams/stage.py",
        "StreamStage._registers",
        "if bare:",
        "if False:",
        (f"{CREATION}::test_what_has_another_form_is_told_at_once",),
    ),
    Bug(
        "a changed flow does not say what is stored",
        "streams/creation.py",
        "_is_there",
        "stored=row.declaration",
        "stored=None",
        (f"{CREATION}::test_a_changed_flow_is_refused",),
    ),
    Bug(
        "a fold is decorated without brackets",
        "streams/stage.py",
        "StreamStage.fold",
        "isroutine(model)",
        "False",
        (f"{CREATION}::test_what_has_another_form_is_told_at_once",),
    ),
    Bug(
        "a checkpoint is a number",
        "streams/streams.py",
        "_check_checkpoint",
        "not isinstance(given, Checkpoint)",
        "False",
        (f"{CREATION}::test_what_has_another_form_is_told_at_once",),
    ),
    Bug(
        "the number of shards is a text",
        "streams/shards/layout.py",
        "check_number",
        "not isinstance(shards, int)",
        "False",
        (f"{CREATION}::test_what_has_another_form_is_told_at_once",),
    ),
    Bug(
        "streams of what is no declarative base",
        "streams/tables.py",
        "StreamTables.of",
        "not isinstance(metadata, MetaData)",
        "False",
        (f"{CREATION}::test_what_has_another_form_is_told_at_once",),
    ),
    Bug(
        "the key of a log is a text",
        "streams/inputs/event_log.py",
        "EventLog.__init__",
        "not callable(key)",
        "False",
        (f"{CREATION}::test_what_has_another_form_is_told_at_once",),
    ),
    Bug(
        "a misspelt keyword of a flow is kept",
        "streams/settings.py",
        "flow_settings",
        "values.keys() - _KEYWORDS",
        "()",
        (f"{CREATION}::test_a_misspelt_keyword",),
    ),
    Bug(
        "one event is appended as a list",
        "streams/inputs/event_log.py",
        "_check",
        "not isinstance(events, Sequence) or isinstance(events, str)",
        "False",
        ("tests/streams/inputs/test_event_log.py::test_one_event_is_no_list",),
    ),
)
