"""What a dispatched attempt starts from and is bounded by, and the tests that miss it."""

from __future__ import annotations

from bug import Bug

EDGES = "tests/dispatch/test_edges.py"

ONE_TASK = "tests/dispatch/test_one_task.py"

REFUSED = "tests/pipelines/test_refused.py"

EDGE_BUGS = (
    Bug(
        "an error that travels is made again from its message alone",
        "errors.py",
        "RowlockError.__reduce__",
        "_made_again, (type(self), self.args, vars(self))",
        "type(self), self.args, vars(self)",
        ("tests/ground/test_errors.py::test_an_error_travels",),
    ),
    Bug(
        "nobody is asked what comes of a refused result",
        "pipelines/settling/settler.py",
        "Settler._refused_outcome",
        "copied(self.context.hooks.on_refused(item, error))",
        "failure",
        (f"{REFUSED}::test_the_pipeline_may_say_what_comes_of_it",),
    ),
    Bug(
        "a host that exits where it is asked about a refusal ends the event loop",
        "pipelines/settling/settler.py",
        "Settler._refused_outcome",
        "BaseException",
        "Exception",
        (f"{REFUSED}::test_a_slip_there_keeps_no_row[sqlite-exits]",),
    ),
    Bug(
        "a slip about a slip keeps the row",
        "pipelines/settling/settler.py",
        "Settler._refused_outcome",
        "BaseException",
        "ZeroDivisionError",
        (f"{REFUSED}::test_a_slip_there_keeps_no_row",),
    ),
    Bug(
        "a timeout that goes off while an event is recorded ends the attempt",
        "dispatch/engines/stream.py",
        "Stream._pass_on",
        "step = self._source.athrow(cancelled)",
        "raise",
        (f"{ONE_TASK}::test_a_timeout_goes_off_across_a_yield",),
    ),
    Bug(
        "each step of a handler is a task of its own",
        "dispatch/engines/stream.py",
        "Stream._pass_on",
        "await step",
        "await asyncio.ensure_future(step)",
        (
            f"{ONE_TASK}::test_a_timeout_goes_off_across_a_yield",
            f"{ONE_TASK}::test_context_goes_on_across_a_yield",
        ),
    ),
    Bug(
        "where a handler failed is told to nobody",
        "dispatch/delivering/delivery.py",
        "Delivery._failed_by_handler",
        "failed.detail:",
        "False:",
        (f"{ONE_TASK}::test_where_a_handler_failed_stands_in_the_log",),
    ),
    Bug(
        "a row that kills replicas is offered on",
        "dispatch/delivering/delivery.py",
        "Delivery._run",
        "self._row.losses >= self._context.settings.max_losses",
        "False",
        (f"{EDGES}::test_a_row_with_too_many_losses_is_offered_to_nobody",),
    ),
    Bug(
        "what was released counts as a loss",
        "dispatch/delivering/delivery.py",
        "Delivery._recover_orphan",
        "self._item.prev_lock_expired",
        "1",
        (f"{EDGES}::test_a_row_that_was_given_back_is_no_loss",),
    ),
    Bug(
        "an attempt shows how far another one was",
        "dispatch/delivering/delivery.py",
        "Delivery._follow",
        '                    "progress": None,\n',
        "",
        (f"{EDGES}::test_an_attempt_begins_without_progress",),
    ),
    Bug(
        "nobody says that a worker is free",
        "dispatch/delivering/delivery.py",
        "Delivery._close",
        "        self._context.hint()\n",
        "",
        (f"{EDGES}::test_a_worker_that_is_free_is_used_at_once",),
    ),
    Bug(
        "the deadline is late by the margin",
        "dispatch/delivering/delivery.py",
        "Delivery._database_time",
        "(lease.lock_timeout - lease.lease_margin)",
        "lease.lock_timeout",
        (f"{EDGES}::test_an_attempt_knows_the_databases_time",),
    ),
    Bug(
        "stages have no bound",
        "dispatch/delivering/delivery.py",
        "Delivery._record",
        "len(stages) > STAGES_MAX",
        "False",
        (f"{EDGES}::test_stages_are_bounded",),
    ),
    Bug(
        "a worker with a long name fails every row",
        "dispatch/delivering/delivery.py",
        "Delivery._follow",
        "shorten(worker, chars_max=WORKER_CHARS_MAX)",
        "worker",
        (f"{EDGES}::test_a_worker_may_have_a_long_name[postgresql]",),
    ),
)
