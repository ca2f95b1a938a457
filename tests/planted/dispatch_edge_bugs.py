"""The guards of dispatch against what strangers hand it: texts that no database stores, floods,
and troubles that pass.
"""

from __future__ import annotations

from bug import Bug

TEXTS = "tests/dispatch/test_client_text_stored.py"
BAD_KEY = f"{TEXTS}::test_a_bad_key_leaves_the_transaction_of_the_caller_as_it_was"
SAID = f"{TEXTS}::test_whatever_a_worker_or_a_handler_says_is_written_without_what_cannot_be_stored"

FORGED = "tests/pipelines/test_notifications_forged.py"
FLOOD = f"{FORGED}::test_a_flood_wakes_a_model_once_in_a_while_and_fills_nothing"

COLUMNS = "tests/migrations/test_dispatch_columns.py"

LOG = "tests/dispatch/test_dispatch_log.py"

TROUBLE = "tests/dispatch/test_passing_trouble.py"
SLOW = "tests/dispatch/test_slow_statements.py"

HOSTILE = "tests/dispatch/test_hostile_events.py"
ENGINES = "tests/dispatch/test_hostile_engines.py"
CONTAINMENT = "tests/ground/test_containment.py"

DISPATCH_EDGE_BUGS = (
    Bug(
        "a key that cannot be stored aborts the caller's transaction",
        "dispatch/submitting/admission.py",
        "_check_key",
        " or not is_storable(str(dedup_key))",
        "",
        (BAD_KEY,),
    ),
    Bug(
        "a cancellation takes any key",
        "dispatch/submitting/admission.py",
        "Admission.cancel",
        "_check_key(dedup_key)\n        ",
        "",
        (BAD_KEY,),
    ),
    Bug(
        "a stage's name is not looked into",
        "dispatch/plain_events.py",
        "_stage_name",
        " or not is_storable(name)",
        "",
        (f"{TEXTS}::test_a_stage_whose_name_cannot_be_stored_is_refused",),
    ),
    Bug(
        "a worker's name is only cut",
        "dispatch/delivering/delivery.py",
        "Delivery._follow",
        "shorten(worker, chars_max=WORKER_CHARS_MAX)",
        "worker[: WORKER_CHARS_MAX - 1]",
        (SAID,),
    ),
    Bug(
        "a flood of notifications wakes a model with each",
        "hints/notifier.py",
        "Notifier._wake",
        "self._received_again[model_name] = False",
        "pass",
        (FLOOD,),
    ),
    Bug(
        "what is heard while a model rests is forgotten",
        "hints/notifier.py",
        "Notifier._listen_again",
        "self._received_again.pop(model_name)",
        "not self._received_again.pop(model_name, True)",
        (f"{FORGED}::test_what_comes_while_a_model_rests_wakes_it_afterwards",),
    ),
    Bug(
        "every name that anybody notifies of is remembered",
        "hints/notifier.py",
        "Notifier._wake",
        "(model_name):",
        "(model_name) or model_name:",
        (FLOOD,),
    ),
    Bug(
        "the default of the stages cannot be compared on PostgreSQL",
        "dialects/postgresql/rows.py",
        "PostgresqlRows.empty_object",
        "\"'{}'::json\"",
        "\"'{}'\"",
        (f"{COLUMNS}::test_it_makes_what_the_model_says",),
    ),
    Bug(
        "nobody is told that workers are missing until rows fail",
        "dispatch/delivering/delivery.py",
        "Delivery._overflow",
        "        self._context.log.overflowed(self._item.id, nobody, waited=self._waited(),"
        " rest=rest)\n",
        "",
        (f"{LOG}::test_a_row_that_finds_no_worker_is_told_before_it_fails",),
    ),
    Bug(
        "a row that is about to fail is told like any other",
        "dispatch/dispatch_log.py",
        "DispatchLog.overflowed",
        "left <= self._deadline / 2",
        "not left",
        (f"{LOG}::test_a_row_that_finds_no_worker_is_told_before_it_fails",),
    ),
    Bug(
        "only outages that are listed are waited out by dispatch",
        "dialects/postgresql/faults.py",
        "PostgresqlFaults.fault_of",
        "not code.startswith(_FINAL_SQLSTATES)",
        "code.startswith(('08', '40', '57P01'))",
        (f"{TROUBLE}::test_what_was_done_is_written_when_the_trouble_has_passed",),
    ),
    Bug(
        "a batch of dispatch that ran out of time is tried again whole",
        "database/batcher.py",
        "Batcher._fail",
        "may_be_of_the_size(error):",
        "False:",
        (f"{SLOW}::test_nothing_is_lost_where_round_trips_take_long",),
    ),
    Bug(
        "a part of an event that exits has its row begun again and again",
        "dispatch/plain_events.py",
        "plain_event",
        "BaseException",
        "Exception",
        (
            f"{HOSTILE}::test_whatever_a_part_of_an_event_raises_fails_its_row_once[progress-SystemExit]",
        ),
    ),
    Bug(
        "what a stage records is read within the transaction",
        "dispatch/plain_events.py",
        "_plain",
        "copied_value(key)",
        "key",
        (
            f"{HOSTILE}::test_whatever_a_part_of_an_event_raises_fails_its_row_once[key-GeneratorExit]",
        ),
    ),
    Bug(
        "paths are looked for in all of a long text",
        "dispatch/client_text.py",
        "progress_of",
        "READ_CHARS_MAX",
        "10**9",
        (f"{HOSTILE}::test_of_a_long_text_no_more_is_read_than_is_shown",),
    ),
    Bug(
        "an exit out of code of the host ends the event loop",
        "containment.py",
        "without_exits",
        "BaseException",
        "ZeroDivisionError",
        (
            f"{CONTAINMENT}::test_an_exit_out_of_a_task_is_an_error[SystemExit]",
            f"{ENGINES}::test_events_that_end_in_an_exit_fail_their_row[SystemExit]",
        ),
    ),
    Bug(
        "work that was cancelled before it began is left to a warning",
        "containment.py",
        "contained_task",
        "    task.add_done_callback(lambda _task: work.close())\n",
        "",
        (f"{CONTAINMENT}::test_a_task_that_is_cancelled_before_it_begins_leaves_nothing_behind",),
    ),
    Bug(
        "a cancellation that nobody asked for passes for ours",
        "containment.py",
        "as_host_code",
        "task is None or task.cancelling()",
        "True",
        (f"{CONTAINMENT}::test_a_cancellation_that_nobody_asked_for_is_an_error",),
    ),
    Bug(
        "a cancellation of ours is a failure of the host",
        "containment.py",
        "as_host_code",
        "task is None or task.cancelling()",
        "False",
        (f"{CONTAINMENT}::test_a_cancellation_that_was_asked_for_goes_through",),
    ),
    Bug(
        "the next event of an engine passes for a shutdown",
        "dispatch/delivering/liveness.py",
        "next_event",
        "as_host_code(partial(anext, events)",
        "partial(anext, events)(",
        (f"{ENGINES}::test_events_that_end_in_an_exit_fail_their_row[CancelledError]",),
    ),
    Bug(
        "an offer passes for a shutdown",
        "dispatch/delivering/placement.py",
        "Placement.place",
        "as_host_code(partial(self._engine.offer, worker, task))",
        "partial(self._engine.offer, worker, task)()",
        (f"{ENGINES}::test_an_offer_that_exits_is_a_failed_attempt[CancelledError]",),
    ),
    Bug(
        "a close that exits fails the row",
        "dispatch/delivering/delivery.py",
        "_end.close",
        "as_host_code(events.aclose)",
        "events.aclose()",
        (f"{ENGINES}::test_a_close_that_exits_after_a_loss_fails_no_row[SystemExit]",),
    ),
    Bug(
        "an attempt that exits before it begins ends the event loop",
        "dispatch/engines/local.py",
        "LocalEngine._begun",
        "has_all = contained_task(",
        "has_all = asyncio.create_task(",
        (f"{ENGINES}::test_an_attempt_that_exits_before_it_begins_is_the_offers_error",),
    ),
    Bug(
        "a provisioner that exits is taken for one that has promised",
        "dispatch/delivering/provisioner.py",
        "Provisioner._call",
        "as_host_code(partial(self._provision, key))",
        "self._provision(key)",
        (f"{ENGINES}::test_a_provisioner_that_exits_is_logged_and_asked_again[SystemExit]",),
    ),
    Bug(
        "a drain waits for a provisioner for ever",
        "dispatch/delivering/provisioner.py",
        "Provisioner.stop",
        ", timeout=grace.total_seconds()",
        "",
        (f"{ENGINES}::test_a_call_that_ignores_its_cancellation_does_not_hold_up_a_drain",),
    ),
    Bug(
        "sessions that commit in two phases are taken",
        "database/binds.py",
        "check_session_factory",
        "session.sync_session.twophase",
        "False",
        (
            "tests/pipelines/test_manager_engines.py::test_a_factory_that_commits_in_two_phases_is_refused",
        ),
    ),
)
