"""The guards of submissions: who waits for whom, what is too many, and which row gives way."""

from __future__ import annotations

from bug import Bug

ADMISSION = "tests/dispatch/test_admission.py"
CANCELLATION = "tests/dispatch/test_cancellation.py"
AT_ONCE = "tests/dispatch/test_admission_at_once.py"
EXACT = f"{AT_ONCE}::test_all_get_a_row_or_a_refusal_and_the_ceiling_is_exact"
UNTIL_COMMIT = "tests/locks/test_until_commit.py"

ADMISSION_BUGS = (
    Bug(
        "hosts that begin transactions themselves cannot lock where they begin",
        "dialects/sqlite/until_commit.py",
        "untouched_connection",
        "not is_new and ",
        "",
        (f"{UNTIL_COMMIT}::test_a_transaction_that_did_nothing_so_far_may_have_begun",),
    ),
    Bug(
        "a savepoint is left behind by who waits for a lock",
        "dialects/sqlite/until_commit.py",
        "joined_connection",
        "for_savepoints == [False]",
        "bool(for_savepoints)",
        (
            f"{UNTIL_COMMIT}::test_a_transaction_that_did_nothing_so_far_may_have_begun",
            f"{AT_ONCE}::test_a_savepoint_that_is_open_is_kept",
        ),
    ),
    Bug(
        "submissions take no turns on SQLite",
        "dispatch/submitting/submission_lock.py",
        "SubmissionLock.acquire",
        "is_bound and",
        "False and",
        (f"{EXACT}[DELETE-None]",),
    ),
    Bug(
        "hosts that begin transactions themselves have no turns",
        "dialects/sqlite/locks.py",
        "SqliteLocks.queue_to_write",
        " and (not is_new or await unless())",
        "",
        (f"{EXACT}[DELETE-BEGIN]",),
    ),
    Bug(
        "what a host wrote before its submission is lost",
        "dialects/sqlite/locks.py",
        "SqliteLocks.queue_to_write",
        "(not is_new or await unless())",
        "await unless()",
        (f"{AT_ONCE}::test_what_the_host_has_done_before_is_kept[BEGIN]",),
    ),
    Bug(
        "who attaches keeps others from writing",
        "dialects/sqlite/locks.py",
        "SqliteLocks.queue_to_write",
        "(not is_new or await unless())",
        "not is_new",
        (f"{AT_ONCE}::test_who_writes_nothing_keeps_nobody_waiting[BEGIN]",),
    ),
    Bug(
        "somebody writes between the look and the row",
        "dialects/sqlite/locks.py",
        "SqliteLocks.queue_to_write",
        "begun_by_host and not await write_alone",
        "False and not await write_alone",
        (f"{AT_ONCE}::test_nobody_writes_between_the_look_and_the_row[BEGIN]",),
    ),
    Bug(
        "who waited for the file in vain keeps the turn",
        "dialects/sqlite/locks.py",
        "SqliteLocks.queue_to_write",
        "self.leave_queue(session, name)\n                ",
        "",
        (f"{AT_ONCE}::test_a_turn_that_does_not_come_is_told[BEGIN-another process]",),
    ),
    Bug(
        "who writes nothing keeps the turn",
        "dispatch/submitting/admission.py",
        "Admission.submit",
        "holds_lock and not made",
        "False",
        (f"{AT_ONCE}::test_who_writes_nothing_keeps_nobody_waiting[None]",),
    ),
    Bug(
        "the ceiling does not count what waits",
        "dispatch/submitting/admission.py",
        "Admission.count_active",
        "is_active(self._leased)",
        "self._model.status == RUNNING",
        (f"{AT_ONCE}::test_the_ceiling_is_exceeded_only_by_those_who_submit_at_the_same_moment",),
    ),
    Bug(
        "those who were refused at once come back at once",
        "dispatch/submitting/admission.py",
        "Admission._admit",
        " + random.random() * self._settings.jitter",
        "",
        (f"{ADMISSION}::test_those_who_are_refused_at_once_come_back_one_by_one[sqlite]",),
    ),
    Bug(
        "work that was released a moment ago is stale",
        "dispatch/submitting/admission.py",
        "Admission._is_stale",
        "released)",
        "model.started_at <= long_ago)",
        (f"{ADMISSION}::test_a_row_that_was_given_back_a_moment_ago_is_attached_to",),
    ),
    Bug(
        "a submission says when it is due",
        "dispatch/states.py",
        "refuse_own_columns",
        "(*DISPATCH_COLUMNS, *WHEN_COLUMNS)",
        "DISPATCH_COLUMNS",
        (f"{ADMISSION}::test_a_submission_gives_nothing_of_the_mixins[sqlite-deadline_at]",),
    ),
    Bug(
        "what is done can be cancelled",
        "dispatch/submitting/admission.py",
        "Admission._fail_active",
        ", is_active(self._leased)",
        "",
        (f"{CANCELLATION}::test_what_is_settled_stays[sqlite]",),
    ),
    Bug(
        "who cancels one key cancels them all",
        "dispatch/submitting/admission.py",
        "Admission._fail_active",
        "model.dedup_key == dedup_key, ",
        "",
        (f"{CANCELLATION}::test_what_waits_is_not_begun[sqlite]",),
    ),
    Bug(
        "who cancels is shown the row as it was",
        "dispatch/submitting/admission.py",
        "Admission._fail_active",
        "populate_existing=shows_anew(session, model), ",
        "",
        (f"{CANCELLATION}::test_it_joins_the_callers_transaction[sqlite]",),
    ),
    Bug(
        "a cancelled row is as good as waiting",
        "dispatch/submitting/admission.py",
        "Admission._fail_active",
        "FAILED",
        '"pending"',
        (f"{CANCELLATION}::test_what_waits_is_not_begun[sqlite]",),
    ),
)
