"""Guards of graphs in hosts whose errors, reports, keys and processors misbehave; and the tests
that miss them.
"""

from __future__ import annotations

from bug import Bug

STRANGE = "tests/graph/test_strange_hosts.py"

STRANGE_BUGS = (
    Bug(
        "a build that comes too early is a riddle",
        "graph/pipeline.py",
        "GraphPipeline._built",
        "type(self).__init__ is not GraphPipeline.__init__",
        "False",
        ("tests/graph/pipeline/test_pipeline.py::test_mistakes",),
    ),
    Bug(
        "an error that lets nothing be set ends a thread",
        "graph/lanes/calls.py",
        "Calls.failed",
        "set_traceback(error, traceback and traceback.tb_next)",
        "error.__traceback__ = traceback and traceback.tb_next",
        (f"{STRANGE}::test_errors_that_keep_their_traceback",),
    ),
    Bug(
        "an error that hides its traceback is never a caller's",
        "graph/standing/envelopes.py",
        "Caller.finish",
        "traceback_of(error)",
        "error.__traceback__",
        (f"{STRANGE}::test_errors_that_keep_their_traceback",),
    ),
    Bug(
        "reports that fail are the end of a graph",
        "graph/standing/standing.py",
        "StandingGraph.__init__",
        "ContainedReports(reports or StandingReports())",
        "reports or StandingReports()",
        (f"{STRANGE}::test_reports_that_fail",),
    ),
    Bug(
        "an exit of a processor is its caller's",
        "graph/scheduling/run.py",
        "GraphRun._wait",
        "raise as_ordinary(error)",
        "raise error",
        (f"{STRANGE}::test_processors_that_raise_what_is_no_exception",),
    ),
    Bug(
        "an exit in a report of a deadlock ends the loop",
        "graph/scheduling/scheduler.py",
        "Scheduler._decide",
        "except BaseException as raised:",
        "except Exception as raised:",
        (f"{STRANGE}::test_processors_that_raise_what_is_no_exception",),
    ),
    Bug(
        "an exit in the answer about closing ends the loop",
        "graph/scheduling/scheduler.py",
        "Scheduler._close",
        "except BaseException as error:",
        "except Exception as error:",
        (f"{STRANGE}::test_processors_that_raise_what_is_no_exception",),
    ),
    Bug(
        "a processor that cannot forget skips the hooks",
        "graph/scheduling/wiring.py",
        "forget_values",
        "except BaseException as error:",
        "except ZeroDivisionError as error:",
        (f"{STRANGE}::test_processors_that_cannot_forget",),
    ),
    Bug(
        "a key that cannot be hashed ends all work",
        "graph/stock/keyed.py",
        "KeyProcessor._forget_ended",
        "with suppress(BaseException):",
        "with suppress(ZeroDivisionError):",
        (f"{STRANGE}::test_keys_that_cannot_be_hashed_any_more",),
    ),
    Bug(
        "a result that does not tell its class hangs its callers",
        "graph/stock/batches.py",
        "_BatchLane._answer",
        "except BaseException as error:",
        "except ZeroDivisionError as error:",
        (f"{STRANGE}::test_results_that_do_not_tell_their_class",),
    ),
    Bug(
        "a graph is closed in another loop",
        "graph/standing/nodes.py",
        "StandingNodes.end",
        "self._check_loop()",
        "pass",
        (f"{STRANGE}::test_closed_in_another_loop",),
    ),
)
