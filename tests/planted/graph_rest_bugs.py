"""Guards of a graph's timers, ends and memory, and of what comes back from child processes."""

from __future__ import annotations

from bug import Bug

ENDS = "tests/graph/test_run_ends.py"
FAIRNESS = "tests/graph/test_fairness.py"
FLOWS = "tests/graph/test_random_flows.py"
MEMORY = "tests/graph/test_memory.py"
PROCESSES = "tests/graph/test_processes.py"
TIMERS = "tests/graph/test_timers.py"

REST_BUGS = (
    Bug(
        "what is late takes a timer away that was set since",
        "graph/lanes/event_loop.py",
        "LoopLanes._cancel_timer",
        "if not node.has_timer:",
        "if True:",
        (f"{TIMERS}::test_a_late_cancelling_takes_no_later_timer_away",),
    ),
    Bug(
        "a timer that comes late replaces that which was set since",
        "graph/lanes/event_loop.py",
        "LoopLanes._set_timer",
        "node.timer == number and node.has_timer",
        "node.has_timer",
        (f"{TIMERS}::test_a_late_setting_takes_no_later_timer_away",),
    ),
    Bug(
        "a timer that is set again fires at both times",
        "graph/lanes/event_loop.py",
        "LoopLanes._set_timer",
        "self._drop_timer(node)",
        "pass",
        (f"{TIMERS}::test_a_timer_that_was_cancelled_does_not_fire",),
    ),
    Bug(
        "a node that wakes itself is asked until it no longer does",
        "graph/scheduling/scheduler.py",
        "Scheduler.advance",
        "self._drain(calls, asks_end - self.asks)",
        "self._drain(calls, asks_max)",
        (f"{FAIRNESS}::test_a_node_that_wakes_itself_does_not_keep_the_loop",),
    ),
    Bug(
        "a value that came too late is held for ever",
        "graph/stock/sources.py",
        "_Source.event",
        "self.dropped += self._value is not EMPTY and not self.is_used_up",
        "pass",
        (f"{FLOWS}::test_operators_do_what_a_loop_would_do[0]",),
    ),
    Bug(
        "a flow of several lanes is taken to be in order",
        "graph/building/operators.py",
        "add_ordered_lanes",
        'return _added(graph, results, [OrderedCollect(dispatch)], name=f"{name} (ordered)")',
        "return resized(graph, results, 1, name=name)",
        (f"{FLOWS}::test_operators_do_what_a_loop_would_do[0]",),
    ),
    Bug(
        "a generator is closed while it is read",
        "graph/scheduling/scheduler.py",
        "Scheduler._drain",
        "if not self.in_flight:",
        "if not self.in_flight or self.phase is Phase.STOPPING:",
        (f"{ENDS}::test_a_generator_is_closed_when_it_is_no_longer_read",),
    ),
    Bug(
        "a thread that sleeps keeps the graph that it has served",
        "graph/lanes/threads.py",
        "GraphThread.run",
        "self._served = None",
        "pass",
        (f"{MEMORY}::test_a_sleeping_thread_keeps_no_graph_alive",),
    ),
    Bug(
        "an error of a child process comes as that of its class",
        "graph/lanes/processes.py",
        "_called",
        "if not _is_made_again(error):",
        "if False:",
        (f"{PROCESSES}::test_error_that_cannot_travel_is_told",),
    ),
    Bug(
        "a value that is complete before its parts are read to the end waits for ever",
        "graph/stock/parts.py",
        "GatherProcessor.event",
        "changed_groups: Iterable[PartGroup] = self._scatter.open",
        "changed_groups: Iterable[PartGroup] = ()",
        (f"{FLOWS}::test_operators_do_what_a_loop_would_do[0]",),
    ),
)
