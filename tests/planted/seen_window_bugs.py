"""Guards of what the dashboard says of others, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

COMMAND = "tests/cli/test_dashboard_command.py"
GUARDS = "tests/dashboard/test_guards.py"
WINGS = "tests/dashboard/test_wings.py"
REHEARSAL = "tests/insight/test_rehearsal.py"
TROUBLES = "tests/dashboard/test_troubles.py"

SEEN_WINDOW_BUGS = (
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
        "a page does not say what is wrong",
        "insight/counting/status.py",
        "Status.below",
        "for trouble in one.troubles:",
        "for trouble in one.troubles[1:]:",
        (f"{TROUBLES}::test_pages_say_what_is_wrong",),
    ),
)
