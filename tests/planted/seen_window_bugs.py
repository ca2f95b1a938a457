"""Guards of what the dashboard says of others, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

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
        "a page does not say what is wrong",
        "insight/counting/status.py",
        "Status.below",
        "for trouble in one.troubles:",
        "for trouble in one.troubles[1:]:",
        (f"{TROUBLES}::test_pages_say_what_is_wrong",),
    ),
)
