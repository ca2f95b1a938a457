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
)
