"""Guards of streams that a stranger missed: of results and timers; and the tests that miss them."""

from __future__ import annotations

from bug import Bug

TABLE = "tests/streams/outputs/test_table_output.py"

STREAMS_STRANGER_BUGS = (
    Bug(
        "a key is unique by an index alone",
        "streams/outputs/table_output.py",
        "_outbox_rule",
        "(*table.indexes, *table.constraints)",
        "table.indexes",
        (f"{TABLE}::test_a_key_is_unique_however_it_was_declared",),
    ),
    Bug(
        "a key that is checked later is asked for at once",
        "streams/outputs/table_output.py",
        "_is_unique",
        " and not one.deferrable",
        "",
        (f"{TABLE}::test_a_key_that_is_checked_later_is_no_outbox",),
    ),
)
