"""Guards of the pool: one task for each row, and the next one begun when it ends."""

from __future__ import annotations

from bug import Bug

ASTRAY = "tests/pipelines/test_task_factories_astray.py"
POOL = "tests/pipelines/test_pool.py"
FACTORIES = "tests/pipelines/test_task_factories.py"

POOL_BUGS = (
    Bug(
        "work that cannot be begun keeps its row",
        "pipelines/pool.py",
        "                self._settler.hand_over(item, Ended.INTERRUPTED)\n",
        "                pass\n",
        (f"{POOL}::test_work_that_cannot_be_begun_gives_its_row_back",),
    ),
    Bug(
        "a late result that nobody has asked for yet is forgotten",
        "pipelines/attempt.py",
        "        if self._late is not None:\n            act(self._late)\n",
        "",
        ("tests/pipelines/test_attempt.py::test_what_came_before_anybody_asked_for_it_is_told_at_once",),
    ),
    Bug(
        "rows are begun while the loop ends",
        "pipelines/run.py",
        "            self.pool.is_open = False\n        return",
        "            pass\n        return",
        (f"{POOL}::test_the_end_of_the_loop_is_no_failure_of_a_row",),
    ),
    Bug(
        "who is busy counts as idle",
        "pipelines/pool.py",
        "context.queue.idle = lambda: len(self._idle)",
        "context.queue.idle = lambda: len(self._names)",
        (f"{POOL}::test_a_pool_that_holds_nothing_ahead_has_claimed_for_those_who_are_idle",),
    ),
    Bug(
        "nobody says that a worker is idle",
        "pipelines/pool.py",
        "        if self._idle and not self.context.queue.holds_ahead:\n            self.context.queue.on_room()\n",
        "",
        (f"{POOL}::test_a_pool_that_holds_nothing_ahead_has_claimed_for_those_who_are_idle",),
    ),
    Bug(
        "a task that is cancelled before its first step keeps its row",
        "pipelines/worker.py",
        "        task.add_done_callback(hand.drop)\n",
        "",
        (f"{POOL}::test_a_task_that_is_cancelled_before_its_first_step_gives_its_row_back",),
    ),
    Bug(
        "a worker from which something escapes takes the next row at once",
        "pipelines/pool.py",
        "        if error is not None and not self.context.is_ending():\n",
        "        if False:\n",
        (f"{POOL}::test_a_worker_from_which_something_escapes_rests",),
    ),
    Bug(
        "context variables of one row are those of the next",
        "pipelines/pool.py",
        "        variables = self._variables.copy()\n",
        "        variables = None\n",
        (f"{POOL}::test_each_row_has_context_variables_of_its_own",),
    ),
    Bug(
        "what is queued while a shutdown begins is begun",
        "pipelines/run.py",
        "        self._stopping, self.pool.is_open = True, False\n        with suppress",
        "        self._stopping = True\n        with suppress",
        ("tests/pipelines/test_run.py::test_a_signal_handler_may_shut_down_in_the_middle_of_anything",),
    ),
    Bug(
        "the end of the loop is a failure of each row",
        "pipelines/worker.py",
        " and context.is_ending():",
        " and not context:",
        (f"{POOL}::test_the_end_of_the_loop_is_no_failure_of_a_row",),
    ),
    Bug(
        "a SystemExit of ours in the task of a row ends the event loop",
        "pipelines/worker.py",
        "            if hand.is_with_host or isinstance(error, asyncio.CancelledError):\n                raise\n",
        "            raise\n",
        ("tests/pipelines/test_escapes.py::test_a_pipeline_outlives_loggers_that_raise",),
    ),
    Bug(
        "the objects of a row point at each other when it is done",
        "pipelines/attempt.py",
        "            self._task = self._leave = None\n",
        "            self._task = None\n",
        (f"{POOL}::test_what_belongs_to_a_row_is_gone_with_it[sqlite]",),
    ),
    Bug(
        "a row that is read when the grace of a shutdown ends is begun",
        "pipelines/worker.py",
        "(context.hurried or self._heartbeater.has_lost(item))",
        "self._heartbeater.has_lost(item)",
        ("tests/pipelines/test_run.py::test_a_row_that_is_read_when_the_grace_ends_is_not_begun",),
    ),
    Bug(
        "a row whose lease ended while it was read is begun",
        "pipelines/worker.py",
        "(context.hurried or self._heartbeater.has_lost(item))",
        "context.hurried",
        ("tests/pipelines/test_heartbeater_trust.py", "tests/pipelines/test_worker_interrupted.py"),
    ),
    Bug(
        "work that a task factory has thrown away stays in hand",
        "pipelines/worker.py",
        "self._over is not None and not self.attempt.is_running",
        "self._over is not None and task.cancelled()",
        (f"{ASTRAY}::test_work_that_never_begins_is_given_back",),
    ),
    Bug(
        "an attempt that a task factory has thrown away is waited for",
        "pipelines/attempt.py",
        "            if not self.is_running:\n                tell(",
        "            if task.cancelled():\n                tell(",
        (f"{ASTRAY}::test_work_that_never_begins_is_given_back",),
    ),
    Bug(
        "what was given up is begun all the same",
        "pipelines/worker.py",
        "            if item not in context.in_hand:\n",
        "            if False:\n",
        (f"{ASTRAY}::test_what_was_begun_though_it_was_refused_is_no_attempt",),
    ),
    Bug(
        "a coroutine out of a thread begins after its cancellation",
        "pipelines/attempt.py",
        "    if not unwanted:\n        return await call\n",
        "    if True:\n        return await call\n",
        ("tests/pipelines/test_attempt_threads.py::test_a_coroutine_out_of_a_thread_that_was_ended_is_not_begun",),
    ),
    Bug(
        "who feeds is fed within",
        "pipelines/pool.py",
        "        if self._is_feeding:\n",
        "        if False:\n",
        (f"{POOL}::test_work_that_ends_within_its_beginning_begins_the_next_one_behind_it",),
    ),
    Bug(
        "a worker of the host's that cannot begin keeps its row",
        "pipelines/pool.py",
        "            self._over(worker, error)\n\n    def _begin_host_work",
        "            if type(worker).work is not Worker.work:\n                raise\n            self._over(worker, error)\n\n"
        "    def _begin_host_work",
        (f"{POOL}::test_a_worker_of_the_hosts_that_cannot_begin_gives_its_row_back",),
    ),
    Bug(
        "a row of which no task could be made stays in hand",
        "pipelines/pool.py",
        "            self.context.in_hand.discard(item)\n            with suppress",
        "            with suppress",
        (f"{POOL}::test_a_task_that_cannot_be_made_leaves_nothing_in_hand",),
    ),
    Bug(
        "a cleanup that begins behind the grace goes on behind the drain",
        "pipelines/run.py",
        "                self._interrupt()\n",
        "                pass\n",
        ("tests/pipelines/test_run.py::test_a_cleanup_that_begins_behind_the_grace_is_ended",),
    ),
    Bug(
        "work that cannot be left behind keeps its worker",
        "pipelines/worker.py",
        "            self.give_up(error)\n\n    def give_up",
        "            raise\n\n    def give_up",
        (f"{POOL}::test_work_that_cannot_be_left_behind_gives_its_worker_back",),
    ),
    Bug(
        "task factories must know what a context is",
        "pipelines/worker.py",
        "begin() if variables is None else variables.run(begin)",
        "begin() if variables is None else begin(context=variables)",
        (f"{FACTORIES}::test_a_task_factory_may_know_no_context",),
    ),
    Bug(
        "what cannot be settled is renewed for ever",
        "pipelines/settler.py",
        "            # Nobody else has it: better that its lease ends than that it is renewed for ever.\n            self._finish(item)\n",
        "",
        (f"{FACTORIES}::test_what_cannot_be_settled_is_left_to_its_lease",),
    ),
    Bug(
        "what was left behind is noted by a task alone",
        "pipelines/settler.py",
        "            # Noted at once: a task that is cancelled before its first step notes nothing.\n"
        "            self._abandon(item, attempt)\n",
        "            async def note(left: Attempt = attempt) -> None:\n"
        "                self._abandon(item, left)\n"
        "            self.context.in_background(note(), purpose='x').cancel()\n",
        (f"{FACTORIES}::test_what_is_left_behind_is_noted_though_its_settlement_is_cancelled",),
    ),
    Bug(
        "work of a host's own is kept by nobody",
        "pipelines/pool.py",
        "        self._host_work.add(task)\n",
        "",
        (f"{FACTORIES}::test_work_that_nobody_else_has_is_not_collected",),
    ),
)
