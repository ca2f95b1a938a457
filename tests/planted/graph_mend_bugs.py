"""Guards against wrong settings, values in logs and coroutines that nothing awaits; and guards of
graphs that stay open which no other list has. And the tests that miss them.
"""

from __future__ import annotations

from bug import Bug

CANCELLED = "tests/graph/standing/test_cancelled.py"
LEFTOVERS = "tests/graph/standing/test_leftovers.py"
MISTAKES = "tests/graph/building/test_mistakes.py"
NOTES = "tests/graph/test_notes.py"
PROCESSES = "tests/graph/test_processes.py"
SETTINGS = "tests/graph/test_settings.py"
SUBMIT = "tests/graph/standing/test_submit.py"
WATCH = "tests/graph/standing/test_watch.py"

SETTING_BUGS = (
    Bug(
        "a run has whatever is given as its runtime",
        "graph/scheduling/settings.py",
        "run_settings",
        "check_runtime(runtime)",
        "pass",
        (f"{SETTINGS}::test_settings_of_a_run",),
    ),
    Bug(
        "a run asks a coroutine function whether it may go on",
        "graph/scheduling/settings.py",
        "check_keep_going",
        'check_plain_function("keep_going", keep_going)',
        "pass",
        (f"{SETTINGS}::test_settings_of_a_run", f"{SETTINGS}::test_settings_of_a_submit"),
    ),
    Bug(
        "a run with a wrong setting skips its hooks",
        "graph/scheduling/run.py",
        "run_graph",
        "mistake = error",
        "raise",
        (f"{SETTINGS}::test_settings_of_a_run",),
    ),
    Bug(
        "a run with a wrong setting goes on",
        "graph/scheduling/run.py",
        "GraphRun._prepare",
        "raise self._mistake",
        "pass",
        (f"{SETTINGS}::test_settings_of_a_run",),
    ),
    Bug(
        "a wrong setting uses up the flow",
        "graph/building/streaming.py",
        "stream_graph",
        "    settings = run_settings(",
        '    flow.last_output("stream")\n    settings = run_settings(',
        (f"{SETTINGS}::test_settings_of_a_stream",),
    ),
    Bug(
        "a graph is streamed",
        "graph/building/streaming.py",
        "stream_graph",
        'check_type("flow", flow, Flow)',
        "pass",
        (f"{SETTINGS}::test_what_is_streamed_is_a_flow",),
    ),
    Bug(
        "a standing graph has whatever is given as its runtime",
        "graph/standing/standing.py",
        "StandingGraph.__init__",
        "check_runtime(runtime)",
        "pass",
        (f"{SETTINGS}::test_settings_of_a_standing_graph",),
    ),
    Bug(
        "a standing graph reports to a function",
        "graph/standing/standing.py",
        "StandingGraph.__init__",
        'check_type("reports", reports, StandingReports)',
        "pass",
        (f"{SETTINGS}::test_settings_of_a_standing_graph",),
    ),
    Bug(
        "a name leaves a standing graph",
        "graph/standing/standing.py",
        "StandingGraph.__init__",
        "_check_leaves(leaves)",
        "pass",
        (f"{SETTINGS}::test_settings_of_a_standing_graph",),
    ),
    Bug(
        "an operator has a number as its name",
        "graph/building/topology.py",
        "Topology.add",
        "check_name(name)",
        "pass",
        (f"{MISTAKES}::test_mistake",),
    ),
    Bug(
        "a number is joined with a flow",
        "graph/building/operators.py",
        "_end_of",
        "not isinstance(end, OpenEnd)",
        "False",
        (f"{MISTAKES}::test_mistake",),
    ),
    Bug(
        "an on_error is never awaited",
        "graph/building/call_operators.py",
        "_check_drops",
        'check_plain_function("on_error", options.on_error)',
        "pass",
        (f"{MISTAKES}::test_mistake",),
    ),
)

COROUTINE_BUGS = (
    Bug(
        "a coroutine chooses the way of a value",
        "graph/building/flow.py",
        "Flow.split",
        "not_awaited(predicate(one))",
        "predicate(one)",
        (f"{SETTINGS}::test_coroutine_that_nothing_awaits",),
    ),
    Bug(
        "a coroutine is the part of a value",
        "graph/building/flow.py",
        "Flow.partition",
        "not_awaited(key(value))",
        "key(value)",
        (f"{SETTINGS}::test_coroutine_that_nothing_awaits",),
    ),
    Bug(
        "a coroutine is a key",
        "graph/stock/keyed.py",
        "KeyProcessor.process",
        "not_awaited(self._key(self.carrier.body(item)))",
        "self._key(self.carrier.body(item))",
        (f"{SETTINGS}::test_coroutine_that_nothing_awaits",),
    ),
    Bug(
        "a coroutine drops a value",
        "graph/stock/lanes.py",
        "Lane.outlives",
        "not_awaited(self.on_error(self.carrier.body(item), error))",
        "self.on_error(self.carrier.body(item), error)",
        (f"{SETTINGS}::test_coroutine_that_nothing_awaits",),
    ),
    Bug(
        "a run goes on for a coroutine",
        "graph/scheduling/interrupt.py",
        "goes_on",
        "not_awaited(keep_going())",
        "keep_going()",
        (f"{SETTINGS}::test_keep_going_that_is_not_awaited",),
    ),
)

VALUE_BUGS = (
    Bug(
        "values stand in notes",
        "graph/building/topology.py",
        "_place_of",
        "not node.graph.shows_values or ",
        "",
        (f"{NOTES}::test_values_are_shown_where_they_are_asked_for",),
    ),
    Bug(
        "an error that takes no note ends a thread",
        "graph/building/topology.py",
        "add_place",
        "with suppress(BaseException):",
        "with suppress(ZeroDivisionError):",
        (f"{NOTES}::test_error_that_takes_no_note",),
    ),
    Bug(
        "an error has a note for each value",
        "graph/building/topology.py",
        "add_place",
        "place not in known and len(known) < NOTES_MAX",
        "True",
        (f"{NOTES}::test_notes_on_one_error_are_bounded",),
    ),
    Bug(
        "notes on one error are not bounded",
        "graph/building/topology.py",
        "add_place",
        " and len(known) < NOTES_MAX",
        "",
        (f"{NOTES}::test_notes_on_one_error_are_bounded",),
    ),
    Bug(
        "a wrong answer is shown under the mutex",
        "graph/scheduling/fix_point.py",
        "_not_a_status",
        "type(status).__name__",
        "repr(status)",
        (f"{NOTES}::test_answer_that_is_no_status_is_not_shown",),
    ),
    Bug(
        "a wrong argument is shown",
        "graph/building/arguments.py",
        "shown",
        "value is None or type(value) in {bool, int, float, str, timedelta}",
        "True",
        (f"{MISTAKES}::test_mistake",),
    ),
    Bug(
        "a lambda goes to a child process",
        "graph/building/operators.py",
        "in_process",
        "check_travels(function, operator=name)",
        "pass",
        (f"{MISTAKES}::test_mistake",),
    ),
    Bug(
        "what cannot be pickled is not named",
        "graph/lanes/processes.py",
        "ProcessLane.call",
        "error.add_note(note)",
        "pass",
        (f"{PROCESSES}::test_what_cannot_travel_is_named",),
    ),
    Bug(
        "an error of a function is blamed on its result",
        "graph/lanes/processes.py",
        "_note_of",
        "isinstance(error, pickle.PickleError) or _of_pickle(error)",
        "True",
        (f"{PROCESSES}::test_what_cannot_travel_is_named",),
    ),
)

STANDING_BUGS = (
    Bug(
        "parts wait for room that a caller has left",
        "graph/stock/parts.py",
        "ScatterProcessor.event",
        "output.can_push or not self._is_wanted(self._group)",
        "output.can_push",
        (f"{CANCELLED}::test_parts_do_not_wait_for_room_that_a_neighbour_has",),
    ),
    Bug(
        "parts of a caller that has left are read",
        "graph/stock/parts.py",
        "ScatterProcessor.process",
        "self.outputs[0].is_finished or not self._is_wanted(group)",
        "self.outputs[0].is_finished",
        (f"{CANCELLED}::test_parts_of_a_caller_that_has_left_are_not_read",),
    ),
    Bug(
        "what is read for a caller that has left is not closed",
        "graph/stock/carriers.py",
        "Call.cancel",
        "self.processor.wake()",
        "pass",
        (f"{CANCELLED}::test_parts_of_a_caller_that_has_left_are_not_read",),
    ),
    Bug(
        "a value waits outside for a caller that has left",
        "graph/standing/ends.py",
        "Inlet.left",
        "self._waiting.pop(caller, None)",
        "pass",
        (f"{LEFTOVERS}::test_a_value_that_waits_outside_is_forgotten",),
    ),
    Bug(
        "a late result is dropped under the mutex",
        "graph/standing/ends.py",
        "Outlet.event",
        "discard(source, envelope)",
        "pass",
        (f"{LEFTOVERS}::test_a_late_result_is_not_dropped_under_the_mutex",),
    ),
    Bug(
        "an idle standing graph is a deadlock",
        "graph/standing/ends.py",
        "Inlet.is_open",
        "not self.inside",
        "False",
        (f"{SUBMIT}::test_an_idle_graph_is_no_deadlock",),
    ),
    Bug(
        "a thread hangs for a caller that has left",
        "graph/standing/nodes.py",
        "StandingNodes._replace_threads",
        "self._wiring.replace_thread(call.processor)",
        "pass",
        (f"{WATCH}::test_a_thread_that_no_caller_waits_for_is_replaced",),
    ),
    Bug(
        "calls that wait for a thread that hangs are left",
        "graph/lanes/runtime.py",
        "GraphRuntime.abandon",
        "self.wake(len(self._shared))",
        "pass",
        (f"{WATCH}::test_a_thread_that_no_caller_waits_for_is_replaced",),
    ),
    Bug(
        "a quick call is reported when calls are looked at",
        "graph/scheduling/call_watch.py",
        "CallWatch._look",
        "node.started_at, LONG_S",
        "node.started_at, 0.0",
        (f"{WATCH}::test_a_call_is_not_reported_before_its_time",),
    ),
    Bug(
        "calls of a lane are reported as one",
        "graph/scheduling/call_watch.py",
        "CallWatch._look",
        "if node.started_at != began_at:",
        "if not began_at:",
        (f"{WATCH}::test_each_call_of_a_lane_has_its_own_time",),
    ),
)
