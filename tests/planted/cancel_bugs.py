"""Guards against hosts that cancel tasks of ours, or refuse to make them."""

from __future__ import annotations

from bug import Bug

FACTORIES = "tests/pipelines/test_task_factories.py"
SETTLEMENT = (
    "tests/pipelines/test_settlements_cancelled.py"
    "::test_a_cancelled_settlement_is_carried_out_and_told"
)
SUPERVISOR = "tests/pipelines/test_supervisor.py"

CANCEL_BUGS = (
    Bug(
        "one keeper that is cancelled passes for the end of the loop",
        "supervisor.py",
        "Supervisor.is_ending",
        "all(",
        "any(",
        (f"{SUPERVISOR}::test_a_keeper_that_is_cancelled_alone_is_not_the_end",),
    ),
    Bug(
        "a keeper that is cancelled alone leaves its loop dead",
        "supervisor.py",
        "Supervisor._keeper_over",
        "            self.keep(name, loop)\n",
        "",
        (
            f"{SUPERVISOR}::test_a_loop_outlives_its_keeper",
            f"{SUPERVISOR}::test_a_keeper_that_is_cancelled_alone_is_not_the_end",
        ),
    ),
    Bug(
        "a loop whose task is refused is gone without a word",
        "supervisor.py",
        "Supervisor._run",
        "return error",
        "raise",
        (f"{SUPERVISOR}::test_a_loop_whose_task_is_refused_is_replaced",),
    ),
    Bug(
        "a settlement that is cancelled before it began is dropped",
        "pipelines/settling/settler.py",
        "Settler._in_a_task.over",
        "not has_begun",
        "False",
        (SETTLEMENT,),
    ),
    Bug(
        "an outcome whose settlement is cancelled is written and not told",
        "pipelines/settling/settler.py",
        "Settler._carried_out",
        "self.context.check_ending() or task is None",
        "True",
        (SETTLEMENT,),
    ),
    Bug(
        "a background task is cancelled without a word",
        "pipelines/background.py",
        "BackgroundTasks._ended",
        "not task.cancelled() or self._check_ending()",
        "True",
        (SETTLEMENT,),
    ),
    Bug(
        "rows that were not started are untracked though nobody releases them",
        "pipelines/run.py",
        "PipelineRun._stop_fetching",
        "    return\n        for",
        "for",
        (f"{FACTORIES}::test_rows_that_were_not_started_are_released_though_a_task_is_refused",),
    ),
    Bug(
        "rows that wait too long leave the queue though nobody releases them",
        "pipelines/fetching/unstarted.py",
        "Unstarted._look",
        "# First, since a task factory of the host's may refuse it: then they stay where they are.",
        "for item in late:\n                self._heartbeater.untrack(item)\n           "
        " queue.discard(late)",
        (f"{FACTORIES}::test_rows_that_wait_too_long_stay_queued_if_a_task_is_refused",),
    ),
)
