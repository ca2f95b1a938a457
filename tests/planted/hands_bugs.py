"""The guards around an item's way from claim to settlement, and around the host's callbacks; and
the tests that miss them.
"""

from __future__ import annotations

from bug import Bug

BATCHER = "tests/pipelines/test_batcher.py"
DECISIONS = "tests/pipelines/test_decisions.py"
ESCAPES = "tests/pipelines/test_escapes.py"
EVENTS = "tests/ground/test_events.py"
RELAYS = "tests/pipelines/test_hinter_relays.py"
STRAYS = "tests/pipelines/test_strays.py"
SUPERVISOR = "tests/pipelines/test_supervisor.py"
SURPLUS = "tests/pipelines/test_fetcher_surplus.py"
VARIABLES = "tests/pipelines/test_context_variables.py"

IS_NO_STRAY = f"{STRAYS}::test_what_is_queued_worked_on_or_settled_is_no_stray"
GIVEN_BACK = f"{STRAYS}::test_an_item_that_nobody_has_is_given_back"

STRAY_BUGS = (
    Bug(
        "an item that nobody has is renewed for ever",
        "pipelines/renewing/heartbeater.py",
        "Heartbeater._check",
        "self.before_renewal()",
        "pass",
        (GIVEN_BACK,),
    ),
    Bug(
        "strays are looked for in the heartbeat thread",
        "pipelines/renewing/heartbeater.py",
        "Heartbeater.beat_once",
        "._on_host(self._check)",
        "._check()",
        (f"{STRAYS}::test_strays_are_looked_for_on_the_hosts_loop",),
    ),
    Bug(
        "a loop that stands still is asked again and again for strays",
        "pipelines/renewing/heartbeater.py",
        "Heartbeater.beat_once",
        "self._is_check_on_its_way = True",
        "pass",
        (f"{STRAYS}::test_strays_are_looked_for_on_the_hosts_loop",),
    ),
    Bug(
        "strays are looked for once",
        "pipelines/renewing/heartbeater.py",
        "Heartbeater._check",
        "self._is_check_on_its_way = False",
        "pass",
        (f"{STRAYS}::test_strays_are_looked_for_on_the_hosts_loop",),
    ),
    Bug(
        "an idle pipeline wakes the loop at every beat",
        "pipelines/renewing/heartbeater.py",
        "Heartbeater.beat_once",
        "self._tracked and ",
        "",
        (f"{STRAYS}::test_strays_are_looked_for_on_the_hosts_loop",),
    ),
    Bug(
        "a queued item is a stray",
        "pipelines/run.py",
        "PipelineRun.release_strays",
        "item in queued or ",
        "",
        (IS_NO_STRAY,),
    ),
    Bug(
        "an item in hand is a stray",
        "pipelines/run.py",
        "PipelineRun.release_strays",
        "in_progress or item in ",
        "",
        (IS_NO_STRAY,),
    ),
    Bug(
        "an item is a stray while a worker of the host's prepares for it",
        "pipelines/processing/pool.py",
        "Pool._begin_host_work",
        "        self.context.in_progress.add(item)\n",
        "",
        (f"{ESCAPES}::test_an_item_that_a_worker_of_the_hosts_loses_comes_back",),
    ),
    Bug(
        "an item that a worker lost counts as in hand",
        "pipelines/processing/pool.py",
        "Pool._on_host_work_done",
        "context.in_progress.discard(item)\n        self.",
        "",
        (f"{ESCAPES}::test_an_item_that_a_worker_of_the_hosts_loses_comes_back",),
    ),
    Bug(
        "an item that is being settled is a stray",
        "pipelines/run.py",
        "PipelineRun.release_strays",
        " or item in self.settler",
        "",
        (IS_NO_STRAY,),
    ),
    Bug(
        "a drain leaves strays leased",
        "pipelines/run.py",
        "PipelineRun.drain",
        "        self.release_strays()\n",
        "",
        (f"{STRAYS}::test_a_drain_gives_strays_back",),
    ),
    Bug(
        "the process of a stray goes on",
        "pipelines/host_code/call.py",
        "Attempt.ends_within_grace",
        "end(why)\n            self.",
        "",
        (f"{STRAYS}::test_a_stray_is_not_given_back_under_the_hands_of_its_process",),
    ),
)

ESCAPE_BUGS = (
    Bug(
        "only a cancelled worker releases its row",
        "pipelines/processing/worker.py",
        "Worker._work",
        "BaseException",
        "asyncio.CancelledError",
        (f"{ESCAPES}::test_whatever_escapes_from_a_worker_gives_its_item_back",),
    ),
    Bug(
        "an outcome that could not be handed in is settled for ever",
        "pipelines/settling/settler.py",
        "Settler.settle_later",
        "self._pending.discard(item)\n            ",
        "",
        (f"{ESCAPES}::test_what_cannot_be_handed_over_is_given_back",),
    ),
    Bug(
        "a settlement ends only if it has begun",
        "pipelines/settling/settler.py",
        "Settler._in_a_task.over",
        "self._finish",
        "if not task.cancelled():\n                self._finish",
        (f"{ESCAPES}::test_a_settlement_that_is_cancelled_before_it_began_has_ended",),
    ),
    Bug(
        "an exit out of a background task ends the event loop",
        "pipelines/background.py",
        "BackgroundTasks._contained",
        "BaseException",
        "Exception",
        (f"{ESCAPES}::test_a_settlement_that_fails_ends_nothing_but_itself",),
    ),
    Bug(
        "a lost lease is told of before the work of the others is ended",
        "pipelines/renewing/heartbeater.py",
        "Heartbeater._lose_all",
        "for item in lost:\n            self",
        "    self",
        (f"{ESCAPES}::test_all_lost_leases_are_lost_before_any_is_told_of",),
    ),
    Bug(
        "a renewal that fails is told of before the others are tried",
        "pipelines/renewing/heartbeater.py",
        "Heartbeater.beat_once",
        "failures.append",
        "self._record_failure",
        (f"{ESCAPES}::test_a_renewal_that_fails_keeps_no_other_from_being_renewed",),
    ),
    Bug(
        "a round in which a renewal failed counts as a success",
        "pipelines/renewing/heartbeater.py",
        "Heartbeater._record_round",
        "not failures:",
        "True:\n            failures, failed = [], failures",
        (f"{ESCAPES}::test_a_renewal_that_fails_keeps_no_other_from_being_renewed",),
    ),
    Bug(
        "an exit out of a loop ends the event loop",
        "supervisor.py",
        "_contained",
        "SystemExit ",
        "MemoryError ",
        (f"{SUPERVISOR}::test_an_exit_out_of_a_loop_is_its_death",),
    ),
    Bug(
        "a loop whose death cannot be told is gone",
        "supervisor.py",
        "Supervisor._note_death",
        "with suppress(BaseException)",
        "if True",
        (f"{SUPERVISOR}::test_a_loop_is_replaced_whoever_cannot_be_told",),
    ),
    Bug(
        "an outcome that raises an exit ends the event loop",
        "pipelines/settling/decisions.py",
        "decide",
        "BaseException",
        "Exception",
        (f"{DECISIONS}::test_what_an_outcome_raises_is_the_rows_failure",),
    ),
)

CALLBACK_BUGS = (
    Bug(
        "one bad wake keeps the others asleep",
        "hints/hinter.py",
        "_call_each",
        "BaseException ",
        "ZeroDivisionError ",
        (f"{RELAYS}::test_a_bad_callback_keeps_no_hint_from_the_others",),
    ),
    Bug(
        "a bad wake is told of before the others are called",
        "hints/hinter.py",
        "_call_each",
        "(error)",
        '(error)\n            logger.error("told at once")',
        (f"{RELAYS}::test_all_are_hinted_before_a_failure_is_told",),
    ),
    Bug(
        "a bad answer keeps the others from theirs",
        "database/batcher.py",
        "Batcher._tell",
        "BaseException:",
        "ZeroDivisionError:",
        (f"{BATCHER}::test_an_answer_that_fails_keeps_nobody_from_theirs",),
    ),
    Bug(
        "an outcome that was written is settled for ever if it cannot be told",
        "pipelines/settling/settler.py",
        "Settler._on_batch_done",
        "             self._finish(item)",
        "             pass\n            self._finish(item)",
        (f"{RELAYS}::test_a_hint_that_fails_stops_no_pipeline",),
    ),
    Bug(
        "a plain function knows no context variables",
        "pipelines/host_code/call.py",
        "_in_thread.in_the_thread",
        "variables.run(call)",
        "call()",
        (VARIABLES,),
    ),
)

SURPLUS_BUGS = (
    Bug(
        "rows beyond the room stay leased",
        "pipelines/fetching/fetcher.py",
        "Fetcher._release_surplus",
        "await release_items(self.context, items)\n        ",
        "",
        (f"{SURPLUS}::test_what_a_fetch_brings_beyond_the_room_is_given_back",),
    ),
    Bug(
        "a queue that shrank has less than no room",
        "pipelines/item_queue.py",
        "ItemQueue.places",
        "max(0, self.capacity - len(self._heap))",
        "self.capacity - len(self._heap)",
        (f"{SURPLUS}::test_a_queue_that_shrinks_while_rows_are_claimed_strands_none",),
    ),
    Bug(
        "a fetch that brought too much counts as one that found little",
        "pipelines/fetching/fetcher.py",
        "Fetcher._plan_rest",
        ">=",
        "==",
        (f"{SURPLUS}::test_a_greedy_fetcher_still_serves_all_rows",),
    ),
)
