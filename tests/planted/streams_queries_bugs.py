"""Guards of questions about flows, of the events of flows and of their commands. And the tests that
miss them.
"""

from __future__ import annotations

from bug import Bug

COMMANDS = "tests/streams/walk/test_commands.py"
DEAD = "tests/streams/queries/test_dead_letters.py"
EVENTS = "tests/streams/queries/test_events.py"
INPUTS = "tests/streams/queries/test_step_inputs.py"
RACES = "tests/streams/queries/test_pause_races.py"
STATUS = "tests/streams/queries/test_status.py"
TEXTS = "tests/streams/queries/test_status_text.py"
VERIFY = "tests/streams/queries/test_verification.py"
WAITS = "tests/streams/queries/test_wait_for.py"

QUERY_BUGS = (
    Bug(
        "events of steps are built for nobody",
        "streams/shards/telling.py",
        "Telling.written",
        "if has_listeners(events.StepDone):",
        "if True:",
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
        "if write.is_version and",
        "if",
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
    Bug(
        "a wait ends with a step that the slowest shard has not done",
        "streams/queries/frontier_watch.py",
        "done_upto",
        "done.c.step == frontier - 1",
        "done.c.step == flows.c.next_step - 1",
        (f"{WAITS}::test_a_step_is_done_when_its_slowest_shard_is",),
    ),
    Bug(
        "a wait ends with an earlier position",
        "streams/queries/frontier_watch.py",
        "FrontierWatch._answer",
        "waiting[0][0] <= upto",
        "0 < upto",
        (f"{WAITS}::test_each_wait_has_its_own_position",),
    ),
    Bug(
        "each wait looks for itself",
        "streams/queries/waits.py",
        "FlowWaits._wait",
        "self._watches.setdefault(key, FrontierWatch(self._program, sessions))",
        "FrontierWatch(self._program, sessions)",
        (f"{WAITS}::test_many_waits_share_their_looks",),
    ),
    Bug(
        "a wait goes by polling alone",
        "streams/shards/writing.py",
        "topics_of",
        "[program.frontier_topic, *",
        "[*",
        (f"{WAITS}::test_a_wait_ends_with_its_step",),
    ),
    Bug(
        "a wait whose hint is lost never looks again",
        "streams/queries/frontier_watch.py",
        "FrontierWatch._run",
        "rest(self._woken, POLL_S)",
        "rest(self._woken, None)",
        (f"{WAITS}::test_a_wait_whose_hint_is_lost",),
    ),
    Bug(
        "an outage ends all waits",
        "streams/queries/frontier_watch.py",
        "FrontierWatch._look",
        "if not is_transient(error):",
        "if True:",
        (f"{WAITS}::test_a_wait_survives_an_outage",),
    ),
    Bug(
        "a wait that is cancelled leaves its look behind",
        "streams/queries/frontier_watch.py",
        "FrontierWatch.wait",
        "await self._end()",
        "pass",
        (f"{WAITS}::test_waits_that_are_cancelled_leave_nothing",),
    ),
    Bug(
        "rows before the begin of a flow count as done",
        "streams/queries/waits.py",
        "FlowWaits._check",
        "0 < position <= seen.begins_after.get(name, 0)",
        "False",
        (f"{WAITS}::test_what_cannot_be_waited_for",),
    ),
    Bug(
        "a row that is expired has no position",
        "streams/inputs/table_source.py",
        "TableSource.position_of",
        "position = state.identity[mapper.primary_key.index(column)]",
        "pass",
        (f"{WAITS}::test_a_service_reads_its_own_write",),
    ),
    Bug(
        "an append to another log is waited for",
        "streams/inputs/event_log.py",
        "EventLog.position_of",
        " and added.stream == self.name",
        "",
        (f"{WAITS}::test_an_append_is_waited_for",),
    ),
    Bug(
        "each shard is shown with the cause of the slowest",
        "streams/queries/status.py",
        "shard_text",
        "replace(look, shards=[shard], unsent={})",
        "look",
        (f"{TEXTS}::test_each_shard_has_its_own_cause",),
    ),
    Bug(
        "the lag is counted to its end",
        "streams/queries/status_reader.py",
        "_source",
        "limit=LAG_ROWS_MAX",
        "limit=10**9",
        (f"{STATUS}::test_a_long_lag_is_counted_in_part",),
    ),
    Bug(
        "what was discarded is a consumer",
        "streams/queries/status_reader.py",
        "_consumers",
        ", c.consumer != DISCARDED",
        "",
        (f"{STATUS}::test_the_lag_of_consumers",),
    ),
    Bug(
        "a step that is kept no longer has no events",
        "streams/inputs/step_inputs.py",
        "cut_pair",
        "cuts.keys() == {step - 1, step}",
        "step in cuts and cuts.setdefault(step - 1, cuts[step])",
        (f"{INPUTS}::test_steps_that_cannot_be_asked_about",),
    ),
    Bug(
        "steps are verified that shards are still at",
        "streams/queries/verification.py",
        "_check_done",
        "if last >= frontier:",
        "if False:",
        (f"{VERIFY}::test_only_what_is_done_and_kept_is_verified",),
    ),
    Bug(
        "a verification only counts",
        "streams/queries/verification.py",
        "_difference",
        "digest == part.input_digest",
        "True",
        (f"{VERIFY}::test_a_row_that_was_changed_is_found",),
    ),
    Bug(
        "rows of shards without a part are not looked at",
        "streams/queries/verification.py",
        "differences",
        "if left:",
        "if False:",
        (f"{VERIFY}::test_a_row_that_belongs_to_another_shard_now",),
    ),
    Bug(
        "a dead letter comes without its rows",
        "streams/computing/dead_letters.py",
        "_events_of",
        "if not letter.rows:",
        "if True:",
        (f"{DEAD}::test_events_that_fail_are_moved",),
    ),
    Bug(
        "dead letters are moved and not written",
        "streams/computing/compute.py",
        "compute",
        "[*effects.results, *dead_results(stage.name, run.dead)]",
        "effects.results",
        (f"{DEAD}::test_events_that_fail_are_moved",),
    ),
    Bug(
        "keys are set aside at their first failure",
        "streams/computing/compute.py",
        "compute",
        "stage.dead_letters and is_last_attempt",
        "stage.dead_letters",
        (f"{DEAD}::test_events_that_fail_are_moved",),
    ),
    Bug(
        "a replay stops at what was set aside",
        "streams/shards/steps/stage_computing.py",
        "StageComputing._compute_step",
        "cut.step < shard.step or ",
        "",
        (f"{DEAD}::test_what_was_moved_is_moved_again_in_a_replay",),
    ),
    Bug(
        "a flow is another one with dead letters",
        "streams/program.py",
        "FlowProgram.description",
        " if name != DEAD_LETTERS",
        "",
        (f"{DEAD}::test_dead_letters_may_be_wanted_later",),
    ),
    Bug(
        "a second pause leaves steps undone",
        "streams/shards/steering.py",
        "steered",
        "isinstance(state, Paused) and state.at < facts.next_step",
        "False",
        (f"{RACES}::test_every_order_of_pauses_cuts_and_steps",),
    ),
    Bug(
        "a pause leaves steps undone that are cut",
        "streams/shards/next_action.py",
        "_of_run",
        "if state.at < flow.next_step:",
        "if isinstance(state, Run) and state.at < flow.next_step:",
        (f"{RACES}::test_every_order_of_pauses_cuts_and_steps",),
    ),
    Bug(
        "the shards of a stopped flow are claimed again and again",
        "streams/shards/pipeline.py",
        "FlowPipeline.ready_anywhere",
        "return and_(shards.c.flow_id == self.program.id, is_wanted)",
        "return and_(shards.c.flow_id == self.program.id)",
        (f"{COMMANDS}::test_shards_of_a_stopped_flow_stay_free",),
    ),
    Bug(
        "what a stopped flow has cut stays undone",
        "streams/shards/pipeline.py",
        "FlowPipeline.ready_anywhere",
        "shards.c.version < select(flows.c.next_step).where(of_flow).scalar_subquery()",
        "false()",
        (f"{COMMANDS}::test_shards_of_a_stopped_flow_stay_free",),
    ),
)
