"""Guards of how outcomes are written: in batches that end in time, settled by what was written, and as the host returned them."""

from __future__ import annotations

from bug import Bug

BATCHER = "tests/pipelines/test_batcher.py"
ALSO = "tests/pipelines/test_also.py"
COPIED = "tests/pipelines/test_copied_outcomes.py"
LOST = "tests/faults/test_lost_answers.py"
RELEASE = "tests/leases/test_release.py"
SLOW = "tests/pipelines/test_slow_statements.py"
TOGETHER = "tests/leases/test_apply_together.py"

WRITE_BUGS = (
    Bug(
        "a batch that ran out of time fails all that are in it",
        "pipelines/batcher.py",
        "            elif may_be_of_the_size(error):\n",
        "            elif False:\n",
        (f"{BATCHER}::test_a_batch_that_ran_out_of_time_is_tried_in_smaller_ones",),
    ),
    Bug(
        "a batch that ran out of time is tried at the same size",
        "pipelines/batcher.py",
        "share: float = 0.5",
        "share: float = 1.0",
        (f"{BATCHER}::test_a_limit_grows_again_when_the_database_is_fast",),
    ),
    Bug(
        "nothing is learned of how long a batch takes",
        "pipelines/batcher.py",
        "        if took_s > self._wanted_s:\n",
        "        if False:\n",
        (f"{BATCHER}::test_a_batch_keeps_within_its_time",),
    ),
    Bug(
        "a limit never grows again",
        "pipelines/batcher.py",
        "            self._fast += 1\n",
        "            pass\n",
        (f"{BATCHER}::test_a_limit_grows_again_when_the_database_is_fast",),
    ),
    Bug(
        "a size that fails is tried again at once",
        "pipelines/batcher.py",
        "        if self._fast < GROWS_AFTER:\n",
        "        if self._fast < 1:\n",
        (f"{BATCHER}::test_a_batch_that_ran_out_of_time_is_tried_in_smaller_ones",),
    ),
    Bug(
        "a batch's wait for its turn counts as its own time",
        "pipelines/batcher.py",
        "        self._began_at = monotonic()\n",
        "        self._began_at = self._began_at or monotonic()\n",
        (f"{BATCHER}::test_time_spent_waiting_for_a_turn_is_not_the_batch_s_own",),
    ),
    Bug(
        "statements of one outcome alone are not counted",
        "pipelines/writer.py",
        "            statements_of=self._statements_of,\n",
        "            statements_of=lambda _: 0,\n",
        (f"{SLOW}::test_the_first_batch_is_small",),
    ),
    Bug(
        "an outcome that ran out of time by itself joins others again",
        "pipelines/writer.py",
        "                submissions[0].apart = may_be_of_the_size(error)\n",
        "                pass\n",
        (f"{SLOW}::test_one_that_runs_out_of_time_takes_no_others_with_it",),
    ),
    Bug(
        "an outcome is given up while others get through",
        "pipelines/writer.py",
        "max(failed_at, self._wrote_at)",
        "failed_at",
        (f"{SLOW}::test_a_result_is_tried_for_longer_while_others_get_through",),
    ),
    Bug(
        "an outcome is tried for ever while others get through",
        "pipelines/writer.py",
        "failed_at + PATIENCE * wait_s)",
        "math.inf)",
        (f"{SLOW}::test_a_result_that_never_gets_through_is_given_up",),
    ),
    Bug(
        "a stamp that is ahead of the clock is written again as it is",
        "rows/stamps.py",
        "ahead + STAMP_STEP",
        "ahead",
        (f"{LOST}::test_a_row_whose_stamp_is_ahead_of_the_clock_is_settled",),
    ),
    Bug(
        "a stamp that no clock wrote stays for ever",
        "leases/apply.py",
        ", last <= database_time_after(STAMP_AHEAD_MAX))",
        ")",
        ("tests/leases/test_apply.py::test_a_stamp_that_no_clock_wrote_is_written_anew",),
    ),
    Bug(
        "lost answers are settled one by one",
        "pipelines/writer.py",
        "                written[i] = Written.APPLIED\n",
        "                pass\n",
        (f"{LOST}::test_a_batch_whose_answer_was_lost_is_settled_together",),
    ),
    Bug(
        "an error that also swallows is told as applied",
        "pipelines/writer.py",
        "                is_undone = await is_still(connection, self.context.leased, submission.item, values={})\n",
        "                pass\n",
        (f"{ALSO}::test_an_error_that_also_swallows_is_a_failure", f"{ALSO}::test_what_also_rolls_back_is_a_failure"),
    ),
    Bug(
        "an error that also swallows is waited out",
        "pipelines/writer.py",
        "        if failure is not None and is_after_an_error(failure):\n",
        "        if False:\n",
        (f"{ALSO}::test_an_error_that_also_swallows_is_a_failure",),
    ),
    Bug(
        "what also commits is told as stale",
        "pipelines/writer.py",
        "            return await self._see_what_also_left(submission, error)\n",
        "            raise\n",
        (f"{ALSO}::test_what_also_commits_is_applied",),
    ),
    Bug(
        "what also rolled back is told as applied",
        "pipelines/writer.py",
        " is not Written.APPLIED:\n            submission.stamps = before",
        " is None:\n            submission.stamps = before",
        (f"{ALSO}::test_what_also_rolls_back_is_a_failure",),
    ),
    Bug(
        "rows share what the host goes on changing",
        "pipelines/attempt.py",
        "return Returned(copied(await call()))",
        "return Returned(await call())",
        (f"{COPIED}::test_each_row_gets_what_its_outcome_said",),
    ),
    Bug(
        "what a thread returns is copied after others could change it",
        "pipelines/attempt.py",
        "return Returned(copied(variables.run(call)))",
        "return Returned(variables.run(call))",
        (f"{COPIED}::test_what_a_thread_returns_is_copied_there",),
    ),
    Bug(
        "a result that is dropped is no warning",
        "pipelines/settler.py",
        '        logger.warning(\n            "%s: %s of row %s was not',
        '        logger.info(\n            "%s: %s of row %s was not',
        ("tests/pipelines/test_settler.py::test_a_result_that_is_dropped_is_a_warning",),
    ),
    Bug(
        "a row of another century never has its turn",
        "pipelines/fetcher.py",
        "                await mend_stamps(connection, context.leased)\n",
        "                pass\n",
        ("tests/faults/test_clocks.py::test_a_row_of_another_century_has_its_turn",),
    ),
    Bug(
        "a row that was reset in another century is never swept",
        "leases/release.py",
        "or_(last < limit, last > database_time_after(older_than))",
        "last < limit",
        (f"{RELEASE}::test_a_stamp_that_no_clock_wrote_is_mended",),
    ),
    Bug(
        "the stamp of a row in work is mended",
        "leases/release.py",
        'and_(leased.column("lock_token").is_(None), last > database_time_after(STAMP_AHEAD_MAX))',
        "last > database_time_after(STAMP_AHEAD_MAX)",
        (f"{RELEASE}::test_a_stamp_that_no_clock_wrote_is_mended",),
    ),
    Bug(
        "each guarded outcome is a statement of its own",
        "leases/apply.py",
        "        if len(members) == 1 or not",
        "        if True or not",
        (f"{TOGETHER}::test_guarded_writes_of_one_shape_share_statements",),
    ),
    Bug(
        "guards that are compared together are not looked at",
        "leases/apply.py",
        "        if not compared.get(index, True):\n",
        "        if False:\n",
        (f"{TOGETHER}::test_guards_are_compared_together_as_they_are_alone",),
    ),
    Bug(
        "who waits behind a round that was cancelled hears nothing",
        "pipelines/batcher.py",
        "            self._tell_all(waiting, ConnectionAbortedError(self._name))\n",
        "            self._waiting.extend(waiting)\n",
        (f"{BATCHER}::test_who_waits_behind_a_round_that_was_cancelled_hears_of_it",),
    ),
    Bug(
        "a shutdown waits for one batch after another",
        "pipelines/batcher.py",
        "            if may_be_of_the_size(error) and self._is_hurried():\n",
        "            if False:\n",
        (f"{BATCHER}::test_nothing_is_split_in_a_hurry",),
    ),
)
