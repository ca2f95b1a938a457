"""The guards of what services ask for while a row is worked on: `request_update`, and columns
that are theirs.
"""

from __future__ import annotations

from bug import Bug

PLAN = "tests/pipelines/test_plan.py"
REQUEST = "tests/leases/test_request.py"
REQUESTS = "tests/pipelines/test_requests.py"
SERVICE_COLUMNS = "tests/pipelines/test_service_columns.py"
LOST_STOP = "tests/walks/test_lost_stop.py"

REQUEST_BUGS = (
    Bug(
        "a request does not make its row due",
        "services/request.py",
        "write_request",
        'written = {leased.column("due_at"): now} | written',
        "pass",
        (
            f"{REQUEST}::test_the_row_is_due_now",
            f"{REQUESTS}::test_a_request_during_an_attempt_is_next",
        ),
    ),
    Bug(
        "a request overrides when the service wants it",
        "services/request.py",
        "write_request",
        '{leased.column("due_at"): now} | written',
        'written | {leased.column("due_at"): now}',
        (f"{REQUEST}::test_a_service_may_say_when",),
    ),
    Bug(
        "a request has two times",
        "services/request.py",
        "write_request",
        '{leased.column("due_at"): now} | written',
        '{leased.column("due_at"): database_now()} | written',
        (f"{REQUEST}::test_all_times_of_a_request_are_one",),
    ),
    Bug(
        "a request does not move the version",
        "services/request.py",
        "write_request",
        "version is not None and written",
        "False",
        (f"{REQUEST}::test_the_version_moves",),
    ),
    Bug(
        "a request goes past what is pending",
        "services/request.py",
        "write_request",
        "    await session.flush()\n",
        "",
        (f"{REQUEST}::test_what_is_pending_in_the_session_is_written_first",),
    ),
    Bug(
        "a request is not shown in its session",
        "services/request.py",
        "write_past_lease",
        "set_committed_value(instance, name, value)",
        "pass",
        (f"{REQUEST}::test_an_instance_of_the_session_shows_it",),
    ),
    Bug(
        "a request that was taken back is still shown",
        "services/request.py",
        "write_past_lease",
        '"fetch"',
        "False",
        (f"{REQUEST}::test_a_savepoint_takes_it_back",),
    ),
    Bug(
        "services' columns are not compared",
        "pipelines/settling/planner.py",
        "Planner._guarded",
        "*self._intent, *(column_of(self._leased, key) for key in outcome.unless_changed)",
        "column_of(self._leased, key) for key in outcome.unless_changed",
        (f"{SERVICE_COLUMNS}::test_an_outcome_of_older_values_is_not_written", LOST_STOP),
    ),
    Bug(
        "services' columns are compared only where they are written",
        "pipelines/settling/planner.py",
        "Planner._guarded",
        "self._intent",
        "(column for column in self._intent if column in self._written(outcome.values))",
        (f"{SERVICE_COLUMNS}::test_an_outcome_of_older_values_is_not_written",),
    ),
    Bug(
        "a retry overwrites what a service asked for",
        "pipelines/settling/planner.py",
        "Planner._retry",
        "column for column in self._intent if column in written",
        "",
        (
            "tests/pipelines/test_service_columns_values.py::test_a_retry_that_would_overwrite_it_is_not_written",
            LOST_STOP,
        ),
    ),
    Bug(
        "a failure costs nothing while services ask for something",
        "pipelines/settling/planner.py",
        "Planner._retry",
        "if reason else",
        "or",
        (
            "tests/pipelines/test_service_columns_values.py::test_a_retry_that_leaves_it_alone_is_written",
        ),
    ),
    Bug(
        "the last attempt sets a row aside with a request in it",
        "pipelines/settling/planner.py",
        "Planner._retry",
        "*self._intent, *rests_on] if reason else [",
        "",
        (
            "tests/pipelines/test_service_columns_values.py::test_a_row_is_not_set_aside_with_a_request_in_it",
        ),
    ),
    Bug(
        "a deadline that a service extends meanwhile has passed",
        "pipelines/settling/planner.py",
        "Planner._retry",
        "[*self._intent, *rests_on]",
        "self._intent",
        (f"{PLAN}::test_a_deadline_that_was_extended_meanwhile_is_heard",),
    ),
    Bug(
        "who extends a deadline takes a limit of attempts away",
        "pipelines/settling/planner.py",
        "Planner._reason_to_park",
        '"gave up after {item.attempt} attempts", ()',
        '"gave up after {item.attempt} attempts", (self._leased.column("deadline_at"),)',
        (f"{PLAN}::test_a_limit_of_attempts_is_final_whatever_the_deadline",),
    ),
    Bug(
        "a row is parked with a request in it",
        "pipelines/settling/planner.py",
        "Planner._park",
        "self._unless_changed(item, self._intent, ",
        "RowWrite(",
        (
            "tests/pipelines/test_service_columns_values.py::test_a_row_is_not_set_aside_with_a_request_in_it",
        ),
    ),
    Bug(
        "an outcome that was refused waits for its interval",
        "pipelines/settling/planner.py",
        "Planner._released",
        'due = {self._leased.column("due_at"): self._now} if self._leased.has_schedule else {}\n   '
        "     return unlocked_values(self._leased) | due",
        "return self._done",
        (f"{SERVICE_COLUMNS}::test_an_outcome_of_older_values_is_not_written",),
    ),
    Bug(
        "lock columns may be services' columns",
        "pipelines/host_code/hooks.py",
        "intent_columns",
        "column.key in leased.lease_columns or column is leased.key",
        "False",
        (f"{SERVICE_COLUMNS}::test_what_may_not_be_named",),
    ),
    Bug(
        "the letters of a name are columns",
        "pipelines/host_code/hooks.py",
        "intent_columns",
        "isinstance(intent, str) or ",
        "",
        (f"{SERVICE_COLUMNS}::test_what_may_not_be_named",),
    ),
)
