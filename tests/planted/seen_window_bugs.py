"""Guards of what the dashboard says of others, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

COMMAND = "tests/cli/test_dashboard_command.py"
GUARDS = "tests/dashboard/test_guards.py"
WINGS = "tests/dashboard/test_wings.py"
REHEARSAL = "tests/insight/test_rehearsal.py"
PLACES = "tests/insight/test_places.py"
TROUBLES = "tests/dashboard/test_troubles.py"

SEEN_WINDOW_BUGS = (
    Bug(
        "a pipeline of which another version has no report takes the pages from everybody",
        "insight/counting/replicas.py",
        "ReplicaState.runs",
        "isinstance(report, dict)",
        "report is not None",
        (f"{TROUBLES}::test_a_report_that_nobody_understands",),
    ),
    Bug(
        "a report of another version takes the pages from everybody",
        "dashboard/reported.py",
        "_sum",
        "isinstance(one.get(name), int)",
        "name in one",
        (f"{TROUBLES}::test_a_report_that_nobody_understands",),
    ),
    Bug(
        "a function that hangs gives its thread back",
        "dashboard/guarding/threads.py",
        "AuthorizeThreads.call",
        "if not called.cancel():",
        "self._pool = None\n            if not called.cancel() and len(args) > 2:",
        (f"{GUARDS}::test_a_function_that_hangs_has_so_many_threads_and_no_more",),
    ),
    Bug(
        "rights are asked for one after the other",
        "dashboard/visits.py",
        "PageVisit.may",
        "await asyncio.gather(*asked)",
        "[await one for one in asked]",
        (f"{GUARDS}::test_rights_are_asked_for_at_once",),
    ),
    Bug(
        "a port that is taken is told as an outage",
        "dashboard/serving.py",
        "listening",
        "except OSError as error:",
        "except EOFError as error:",
        (f"{COMMAND}::test_a_port_that_is_taken_is_one_line",),
    ),
    Bug(
        "a rehearsal leaves connections of a pooler that only read",
        "insight/dialects/postgresql.py",
        "PostgresqlInsight.begin_without_writing",
        "raw.autocommit else",
        "raw else",
        (f"{REHEARSAL}::test_nothing_is_left_on_a_connection",),
    ),
    Bug(
        "questions have the whole pool of the host",
        "insight/asking/places.py",
        "QuestionPlaces.taken",
        "asyncio.Semaphore(QUESTIONS_AT_ONCE_MAX)",
        "asyncio.Semaphore(10 * QUESTIONS_AT_ONCE_MAX)",
        (f"{PLACES}::test_questions_leave_connections_to_the_work",),
    ),
    Bug(
        "a question that was cancelled keeps its place",
        "insight/asking/places.py",
        "QuestionPlaces.taken",
        "try:\n            yield\n        finally:\n            places.release()",
        "yield\n        places.release()",
        (f"{PLACES}::test_questions_leave_connections_to_the_work",),
    ),
    Bug(
        "a page does not say what is wrong",
        "insight/counting/status.py",
        "Status.below",
        "for trouble in one.troubles:",
        "for trouble in one.troubles[1:]:",
        (f"{TROUBLES}::test_pages_say_what_is_wrong",),
    ),
)
