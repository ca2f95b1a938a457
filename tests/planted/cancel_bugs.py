"""Guards against hosts that cancel tasks of ours, or refuse to make them."""

from __future__ import annotations

from bug import Bug

SUPERVISOR = "tests/pipelines/test_supervisor.py"

CANCEL_BUGS = (
    Bug(
        "one keeper that is cancelled passes for the end of the loop",
        "pipelines/supervisor.py",
        "bool(keepers) and all(task.cancelling()",
        "bool(keepers) and any(task.cancelling()",
        (f"{SUPERVISOR}::test_a_keeper_that_is_cancelled_alone_is_not_the_end",),
    ),
    Bug(
        "a keeper that is cancelled alone leaves its loop dead",
        "pipelines/supervisor.py",
        "            self.keep(name, loop)\n",
        "",
        (
            f"{SUPERVISOR}::test_a_loop_outlives_its_keeper",
            f"{SUPERVISOR}::test_a_keeper_that_is_cancelled_alone_is_not_the_end",
        ),
    ),
    Bug(
        "a loop whose task is refused is gone without a word",
        "pipelines/supervisor.py",
        "            work.close()\n            return error\n",
        "            work.close()\n            raise\n",
        (f"{SUPERVISOR}::test_a_loop_whose_task_is_refused_is_replaced",),
    ),
)
