"""Guards of questions that are asked where little may be asked, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

STATUS = "tests/insight/test_status.py"

ASKED_BUGS = (
    Bug(
        "status names parked rows in no order",
        "insight/listing/states.py",
        "_found",
        ".order_by(*question.order())",
        "",
        (f"{STATUS}::test_parked_rows_are_counted_where_an_index_finds_them",),
    ),
)
