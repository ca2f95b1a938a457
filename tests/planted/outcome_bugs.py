"""Guards of what a host says by an outcome: when a row is due, whether it is deleted, and what is
raised.
"""

from __future__ import annotations

from bug import Bug

DUE_AT = "tests/pipelines/test_due_at.py"

OUTCOME_BUGS = (
    Bug(
        "a time that the host says is forgotten",
        "pipelines/settling/planner.py",
        "Planner._next_due",
        "outcome.due_at is not None",
        "False",
        (f"{DUE_AT}::test_the_row_is_due_at_that_time",),
    ),
    Bug(
        "an outcome with a due time passes for one with values alone",
        "pipelines/outcomes.py",
        "has_values_alone",
        " and outcome.due_at is None",
        "",
        (f"{DUE_AT}::test_what_is_no_time_is_refused",),
    ),
    Bug(
        "a time without a zone is taken",
        "pipelines/outcomes.py",
        "_check_due_at",
        " or due_at.utcoffset() is None",
        "",
        (f"{DUE_AT}::test_what_is_no_time_is_refused",),
    ),
)
