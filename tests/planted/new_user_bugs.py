"""Guards of what a person meets on the first day, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

NEW_USER_BUGS = (
    Bug(
        "a row that is held passes for a database that is away",
        "cli/answering.py",
        "_code_of",
        "if isinstance(error, LockWaitTimeout):",
        "if False:",
        ("tests/cli/test_plan.py::test_a_row_that_is_held_is_no_outage",),
    ),
)
