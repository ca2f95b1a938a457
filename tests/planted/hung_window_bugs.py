"""Guards of windows whose questions hang, whose answers race, and whose process forks, with the
tests that must notice.
"""

from __future__ import annotations

from bug import Bug

HUNG = "tests/dashboard/test_hung_questions.py"
LOCKED = f"{HUNG}::test_a_table_that_is_locked_costs_what_stands_in_it"
TIMELINE = "insight/history/timeline.py"
WINGS = "dashboard/wings.py"
AT_ONCE = "tests/dashboard/test_people_at_once.py"
TWO = f"{AT_ONCE}::test_two_people_at_once"
ACTIONS = "insight/steering/actions.py"
FAULTS = "tests/insight/test_history_faults.py"
RIGHTS = f"{FAULTS}::test_a_role_without_rights_to_the_history"
FORKED = "tests/insight/test_forked.py"
CHILD = f"{FORKED}::test_a_child_without_an_observer_is_told"
RECORDER = "insight/history/recorder.py"

HUNG_WINDOW_BUGS = (
    Bug(
        "a row that cannot be read costs its timeline",
        TIMELINE,
        "read_timeline",
        "partial(_row_now, connection, leased, key), apart=True",
        "partial(_row_now, connection, leased, key), apart=False",
        (LOCKED,),
    ),
    Bug(
        "a history that cannot be read looks like none",
        TIMELINE,
        "read_timeline",
        "if not await is_there(connection, history)",
        "if True",
        (LOCKED,),
    ),
    Bug(
        "pipelines are asked for as long as it takes",
        "insight/insight.py",
        "Insight.status",
        "monotonic() < ends",
        "True",
        (f"{HUNG}::test_a_host_s_question_that_hangs_costs_its_pipeline",),
    ),
    Bug(
        "a flow is asked without a bound",
        WINGS,
        "_shown",
        "await visit.insight.read(leased, ask, sessions=sessions)",
        "await flow.status(sessions())",
        (f"{HUNG}::test_a_flow_that_cannot_be_asked_costs_its_own_place",),
    ),
    Bug(
        "flows are asked for as long as it takes",
        WINGS,
        "streams_part",
        "monotonic() < ends",
        "True",
        (f"{HUNG}::test_a_flow_that_cannot_be_asked_costs_its_own_place",),
    ),
    Bug(
        "who puts a row back that was put back just now is told that it was done",
        ACTIONS,
        "Actions.unpark",
        "is_changed=was_parked",
        "is_changed=True",
        (TWO,),
    ),
    Bug(
        "a pause that somebody else has ended is ended again in the log",
        ACTIONS,
        "Actions.resume",
        "if not was_paused",
        "if False",
        (TWO,),
    ),
    Bug(
        "an action that changed nothing stands in the history",
        ACTIONS,
        "Actions._told",
        "if done.is_changed",
        "if True",
        (TWO,),
    ),
    Bug(
        "a button breaks whatever lease there is by then",
        "leases/release.py",
        "break_lease",
        "is_as_shown(leased, seen)",
        "true()",
        (f"{AT_ONCE}::test_two_release_a_row_that_is_at_work",),
    ),
    Bug(
        "all children of one server have the name of their parent",
        "insight/observing/observer.py",
        "Observer.__init__",
        "self._name = name",
        'self._name = name or f"{socket.gethostname()}:{os.getpid()}"',
        (f"{FORKED}::test_what_was_made_before_the_fork_is_each_child_s_own",),
    ),
    Bug(
        "a child has the history of its parent",
        RECORDER,
        "_fork_all",
        "recorder.fork()",
        "pass",
        (CHILD,),
    ),
    Bug(
        "a child keeps what its parent is about to write",
        RECORDER,
        "HistoryRecorder.fork",
        "self._writers.clear()",
        "pass",
        (CHILD,),
    ),
    Bug(
        "a child without an observer is not told",
        RECORDER,
        "HistoryRecorder.fork",
        "events.subscribe(self._tell_fork)",
        "None",
        (CHILD,),
    ),
    Bug(
        "a check does not say that the history cannot be written",
        "insight/checking/reported.py",
        "_of_history",
        'told.get("failing")',
        "False",
        (RIGHTS, f"{FAULTS}::test_a_file_that_may_not_grow"),
    ),
    Bug(
        "a history that is written again is called failing for ever",
        "insight/history/writer.py",
        "HistoryWriter._succeeded",
        "self._failures = 0",
        "pass",
        (RIGHTS, f"{FAULTS}::test_a_server_that_is_stopped"),
    ),
)
