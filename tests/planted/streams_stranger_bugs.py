"""Guards of streams that a stranger missed, of buckets and results; and the tests of them."""

from __future__ import annotations

from bug import Bug

SOURCE = "tests/streams/inputs/test_table_source.py"
TABLE = "tests/streams/outputs/test_table_output.py"
WALK = "tests/streams/walk/test_broken_rows.py"

STREAMS_STRANGER_BUGS = (
    Bug(
        "a bucket of another key is believed",
        "streams/inputs/table_source.py",
        "TableSource.__init__",
        "are_foreign=bucket is not None",
        "are_foreign=False",
        (
            f"{SOURCE}::test_a_bucket_of_another_key",
            f"{WALK}::test_a_row_in_another_bucket_is_set_aside",
        ),
    ),
    Bug(
        "a row whose bucket is none is read by no replica",
        "streams/inputs/row_reader.py",
        "RowReader._own",
        "if self.are_foreign:",
        "if False:",
        (f"{SOURCE}::test_a_bucket_of_another_key",),
    ),
    Bug(
        "a bucket that is none is looked up",
        "streams/inputs/row_reader.py",
        "RowReader._placed",
        "if not 0 <= bucket < BUCKETS:",
        "if False:",
        (f"{SOURCE}::test_a_bucket_of_another_key",),
    ),
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
