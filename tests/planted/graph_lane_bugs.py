"""Guards of what a run of a graph leaves to others, of its timers, streams and statistics; and the
tests that miss them.
"""

from __future__ import annotations

from bug import Bug

ENDS = "tests/graph/test_run_ends.py"
FAIRNESS = "tests/graph/test_fairness.py"
HOSTILE = "tests/graph/test_hostile_hosts.py"
PORTS = "tests/graph/test_ports.py"
RUN = "tests/graph/test_run.py"
SCHEDULER = "tests/graph/test_scheduler.py"

GRAPH_LANE_BUGS = (
    Bug(
        "an iteration of the loop asks without a bound",
        "graph/lanes/event_loop.py",
        "LoopLanes._advance",
        "asks_max=asks_max",
        "asks_max=1 << 60",
        (f"{FAIRNESS}::test_one_iteration_asks_a_bounded_number_of_nodes",),
    ),
    Bug(
        "an iteration of the loop makes all calls",
        "graph/lanes/event_loop.py",
        "LoopLanes._iterate",
        " or node.ended_at >= until",
        "",
        (f"{FAIRNESS}::test_one_iteration_begins_no_call_after_its_time",),
    ),
    Bug(
        "a timer is not in flight",
        "graph/scheduling/scheduler.py",
        "Scheduler.wake_after",
        "self.in_flight += 1",
        "pass",
        (f"{SCHEDULER}::test_timer_is_in_flight",),
    ),
    Bug(
        "an earlier timer fires as well",
        "graph/scheduling/scheduler.py",
        "Scheduler._timer_fired",
        " and node.timer == number",
        "",
        (f"{SCHEDULER}::test_timer_is_in_flight",),
    ),
    Bug(
        "a finished node keeps its timer",
        "graph/scheduling/scheduler.py",
        "Scheduler._settle",
        "if one.status is NodeStatus.FINISHED",
        "if False",
        (f"{SCHEDULER}::test_finished_node_needs_no_timer",),
    ),
    Bug(
        "values are dropped under the mutex",
        "graph/scheduling/scheduler.py",
        "Scheduler.advance",
        "dropped, changes.dropped = changes.dropped, []",
        "changes.dropped = []",
        (f"{SCHEDULER}::test_rejected_value_is_dropped_after_the_mutex",),
    ),
    Bug(
        "a node that may be woken is not waited for",
        "graph/scheduling/scheduler.py",
        "Scheduler._decide",
        "if any(processor.is_open() for processor in self._open):",
        "if False:",
        (f"{SCHEDULER}::test_open_node_is_waited_for",),
    ),
    Bug(
        "a long call cannot ask whether its run has ended",
        "graph/scheduling/interrupt.py",
        "check_interrupt",
        "if is_obsolete():",
        "if False:",
        (f"{ENDS}::test_interrupted_thread_sees_the_time_limit",),
    ),
    Bug(
        "a long call cannot ask whether its caller goes on",
        "graph/scheduling/wiring.py",
        "RunWiring.__init__",
        "add_check(own, lambda: not goes_on(keep_going))",
        "pass",
        (f"{ENDS}::test_long_call_may_ask_whether_it_is_obsolete",),
    ),
    Bug(
        "an error keeps the node of its call",
        "graph/scheduling/wiring.py",
        "log_later_errors",
        "set_traceback(later.error, None)",
        "pass",
        (f"{ENDS}::test_error_after_the_first_is_kept",),
    ),
    Bug(
        "a pull asks the producer",
        "graph/ports.py",
        "InputPort.pull",
        "edge.is_needed = False",
        "edge.is_needed = False; edge.source.notify(edge.changes)",
        (f"{PORTS}::test_pull_alone_asks_no_producer",),
    ),
    Bug(
        "a call that was cancelled before it began is waited for",
        "graph/lanes/event_loop.py",
        "LoopLanes._task_done",
        "task.cancelled() and is_withdrawn(node)",
        "False",
        (f"{HOSTILE}::test_call_cancelled_by_another_is_an_error[0]",),
    ),
    Bug(
        "a refused thread is waited for",
        "graph/lanes/event_loop.py",
        "LoopLanes._dispatch",
        "self.scheduler.stop(error)",
        "pass",
        (f"{HOSTILE}::test_thread_that_is_refused_is_an_error",),
    ),
)
