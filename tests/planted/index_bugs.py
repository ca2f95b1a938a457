"""Guards of what is said once: the index of a pipeline, the look for it at the start, and the
migrations that Alembic writes; with the tests that must notice.
"""

from __future__ import annotations

from bug import Bug

DUE = "tests/rows/test_due_index.py"

PIPELINE_INDEX_BUGS = (
    Bug(
        "the index of a pipeline has parts of ready that no index can hold",
        "rows/expressions/index_condition.py",
        "index_condition",
        "if _fits_index(part, table)",
        "if table is not None",
        (f"{DUE}::test_what_no_index_can_hold_is_left_out",),
    ),
    Bug(
        "an index of a boolean column is spelt otherwise than the claim",
        "rows/expressions/index_condition.py",
        "index_condition",
        ".self_group(against=operators.and_)",
        "",
        (f"{DUE}::test_a_boolean_column_is_spelt_as_in_the_claim",),
    ),
    Bug(
        "the index of a pipeline may ask a lock column",
        "rows/expressions/index_condition.py",
        "_refuse_lock_columns",
        "if column in columns",
        "if column is columns",
        (f"{DUE}::test_a_lock_column_is_refused_by_whatever_name",),
    ),
    Bug(
        "the index of a pipeline needs all models",
        "rows/due_index.py",
        "_index_of_model",
        "configured=False",
        "configured=True",
        (f"{DUE}::test_a_pipeline_says_all_of_its_index",),
    ),
)
