"""Guards of how it is learned what became of an outcome: by the row, and by nothing else."""

from __future__ import annotations

from bug import Bug

ALSO = "tests/pipelines/test_also.py"
KEPT = "tests/faults/test_lost_answers_kept_shorter.py"
LOST = "tests/faults/test_lost_answers.py"
STAMPS = "tests/rows/test_stamps.py"

SETTLING_BUGS = (
    Bug(
        "a stamp that is ahead of the clock is written again as it is",
        "rows/stamps.py",
        "stamp_after",
        " + STAMP_STEP + _share_of(token)",
        "",
        (f"{LOST}::test_a_row_whose_stamp_is_ahead_of_the_clock_is_settled",),
    ),
    Bug(
        "attempts that find the same stamp ahead of the clock write the same",
        "rows/stamps.py",
        "stamp_after",
        " + _share_of(token)",
        "",
        (
            f"{LOST}::test_a_stamp_ahead_of_the_clock_is_that_of_one_attempt",
            f"{STAMPS}::test_attempts_differ",
        ),
    ),
    Bug(
        "an attempt's stamp is another one at each try",
        "rows/stamps.py",
        "_share_of",
        "int.from_bytes",
        "id",
        (f"{STAMPS}::test_an_attempt_has_one_stamp",),
    ),
    Bug(
        "what somebody has written since is told as stale",
        "leases/apply.py",
        "processed_at",
        ".UNKNOWN ",
        ".STALE ",
        (
            "tests/faults/test_lost_answers_overwritten.py::test_what_was_overwritten_is_not_cleaned_up",
        ),
    ),
    Bug(
        "the row that is gone is told as stale",
        "leases/apply.py",
        "processed_at",
        "(key, Written.UNKNOWN)",
        "(key, Written.STALE)",
        (
            "tests/faults/test_lost_answers_overwritten.py::test_what_was_overwritten_is_not_cleaned_up",
        ),
    ),
    Bug(
        "what parked its row is told as applied after a lost answer",
        "pipelines/settling/transactions.py",
        "PendingOutcome.stamp",
        "            self.once_written = written\n",
        "",
        (
            "tests/faults/test_lost_answers_overwritten.py::test_what_parked_its_row_is_told_as_parked",
        ),
    ),
    Bug(
        "a value that cannot be looked at costs its worker",
        "pipelines/settling/writer.py",
        "Writer._statements_of",
        "BaseException",
        "ZeroDivisionError",
        ("tests/faults/test_values.py::test_what_is_refused_everywhere",),
    ),
    Bug(
        "the last wait of a drain is not for outcomes",
        "pipelines/run.py",
        "PipelineRun._background_ends",
        "await self.settler.wait_until_idle()",
        "pass",
        (
            "tests/pipelines/test_run.py::test_the_last_wait_is_for_outcomes_that_are_written_with_others",
        ),
    ),
    Bug(
        "lost answers are settled one by one",
        "pipelines/settling/transactions.py",
        "OutcomeTransactions.write_together.work",
        " if earlier is Written.STALE else earlier",
        "",
        (
            "tests/faults/test_lost_answers_together.py::test_a_batch_whose_answer_was_lost_is_settled_together",
        ),
    ),
    Bug(
        "an error that also swallows is told as applied",
        "pipelines/settling/transactions.py",
        "OutcomeTransactions._within",
        "is_rolled_back = await is_unchanged(connection, self.context.leased, pending.item,"
        " values={})",
        "pass",
        (
            f"{ALSO}::test_an_error_that_also_swallows_is_a_failure",
            f"{ALSO}::test_what_also_rolls_back_is_a_failure",
        ),
    ),
    Bug(
        "an error that also swallows is waited out",
        "pipelines/settling/transactions.py",
        "OutcomeTransactions._within",
        "failure is not None and is_after_an_error(failure)",
        "False",
        (f"{ALSO}::test_an_error_that_also_swallows_is_a_failure",),
    ),
    Bug(
        "what also commits is told as stale",
        "pipelines/settling/transactions.py",
        "OutcomeTransactions.write_alone",
        "return await self._see_what_also_left(pending, error)",
        "raise",
        (f"{ALSO}::test_what_also_commits_is_applied",),
    ),
    Bug(
        "what also rolled back is told as applied",
        "pipelines/settling/transactions.py",
        "OutcomeTransactions._see_what_also_left",
        "Written.STALE",
        "None",
        (f"{ALSO}::test_what_also_rolls_back_is_a_failure",),
    ),
    Bug(
        "a COMMIT that is still under way is told as stale",
        "pipelines/settling/transactions.py",
        "OutcomeTransactions.write_alone.work",
        "(connection, pending, waits=True)",
        "(connection, pending)",
        (
            "tests/faults/test_lost_answers_together.py::test_a_commit_that_is_still_under_way_is_waited_for",
        ),
    ),
    Bug(
        "a row is waited for by the stamp that is not there yet",
        "leases/apply.py",
        "processed_at",
        "[0]).where(",
        "[0]).where(column.in_(kept), ",
        (
            "tests/faults/test_lost_answers_together.py::test_a_commit_that_is_still_under_way_is_waited_for",
        ),
    ),
    Bug(
        "a stamp is looked for as the mixin's type writes it",
        "dialects/sqlite/leases.py",
        "SqliteLeases.kept_as",
        "column.type",
        "UtcDateTime()",
        (f"{KEPT}::test_what_the_column_s_type_makes_of_the_stamp_settles_it",),
    ),
    Bug(
        "a stamp is looked for as it was sent, not as it is kept",
        "dialects/postgresql/leases.py",
        "PostgresqlLeases.kept_as",
        "type_name else",
        "False else",
        (f"{KEPT}::test_what_the_database_makes_of_the_stamp_settles_it",),
    ),
    Bug(
        "a tenant's stamps are taken to be kept like the model's",
        "dialects/postgresql/table_names.py",
        "name_in_database",
        "translated.get(table.schema, table.schema)",
        "table.schema",
        (f"{KEPT}::test_the_column_is_that_of_the_tenant",),
    ),
    Bug(
        "what fails behind the COMMIT counts as refused by it",
        "pipelines/settling/writer.py",
        "Writer.write",
        "return await self._learn(pending, error)",
        "raise",
        (f"{LOST}::test_what_fails_behind_the_commit_says_nothing_of_the_outcome",),
    ),
    Bug(
        "two outcomes within one tick have one stamp",
        "leases/apply.py",
        "lock_for_apply.build",
        "= database_now",
        " database_now",
        ("tests/leases/test_apply.py::test_no_two_outcomes_of_a_row_have_one_stamp",),
    ),
    Bug(
        "an outcome of which the row would tell is given up as unknown",
        "pipelines/settling/writer.py",
        "Writer._learn",
        "written = await self._transactions.find_earlier(",
        "return Written.UNKNOWN\n            written = await self._transactions.find_earlier(",
        ("tests/pipelines/test_also.py::test_what_also_commits_by_the_connection_is_applied",),
    ),
    Bug(
        "a host's name for an error of the database makes it final",
        "database/faults.py",
        "_of_database",
        "cause = cause.__cause__",
        "break",
        (
            "tests/leases/test_faults.py::test_what_a_host_raises_instead_is_judged_by_what_the_database_said",
        ),
    ),
    Bug(
        "what host code raised is taken for the database's",
        "database/faults.py",
        "_of_database",
        " or isinstance(cause, RowlockError)",
        "",
        ("tests/leases/test_faults.py::test_what_host_code_raised_is_its_own",),
    ),
    Bug(
        "a row of which nothing more can be said stays leased",
        "pipelines/settling/settler.py",
        "Settler._write_failure",
        "            again = await self._write_instead(item, of_ours, of=outcome)\n",
        "",
        ("tests/pipelines/test_refused.py::test_a_slip_there_keeps_no_row",),
    ),
    Bug(
        "what on_refused writes to rows that are not held is found too late",
        "pipelines/settling/decisions.py",
        "checked",
        "check_related(item, outcome.related)",
        "pass",
        ("tests/pipelines/test_refused.py::test_a_slip_there_keeps_no_row",),
    ),
    Bug(
        "a changed row whose COMMIT was not answered is told as stale",
        "pipelines/settling/transactions.py",
        "PendingOutcome.stamp",
        "self.once_dropped = written",
        "pass",
        (
            "tests/faults/test_lost_answers_overwritten.py::test_a_row_that_was_changed_is_told_as_changed",
        ),
    ),
    Bug(
        "a lost related row is told as a lost lease if the COMMIT was not answered",
        "pipelines/settling/transactions.py",
        "OutcomeTransactions.write_alone",
        ", Written.RELATED_LOST",
        ", Written.STALE",
        (
            "tests/faults/test_lost_answers_overwritten.py::test_a_related_row_that_was_lost_is_told_as_lost",
        ),
    ),
)
