"""Guards of pages of rows, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

LISTING = "tests/insight/test_listing.py"
STATES = "insight/listing/states.py"

LISTING_BUGS = (
    Bug(
        "a page begins at rows of the time at which the one before ended",
        STATES,
        "_behind",
        "tuple_(as_is, key) > tuple_(literal(after.place, as_is.type), last)",
        "as_is > literal(after.place, as_is.type)",
        (f"{LISTING}::test_each_row_is_on_one_page",),
    ),
    Bug(
        "behind rows that were never processed a page has no others",
        STATES,
        "_behind",
        "or_(place.is_not(None), and_(place.is_(None), key > last))",
        "and_(place.is_(None), key > last)",
        (f"{LISTING}::test_rows_that_were_never_processed_come_first",),
    ),
    Bug(
        "leased rows are sought in the whole table",
        STATES,
        "page_of",
        ".limit(COUNTED_MAX)",
        ".limit(10 * COUNTED_MAX)",
        (f"{LISTING}::test_what_no_index_finds_is_sought_within_a_bound",),
    ),
    Bug(
        "what was not looked through is not gone on with",
        STATES,
        "read_page",
        "elif question.is_sought:",
        "elif False:",
        (f"{LISTING}::test_what_no_index_finds_is_sought_within_a_bound",),
    ),
    Bug(
        "the leases of others are a pipeline's own",
        STATES,
        "StateQuestion.condition",
        "expires_at > database_now(), lock_owner == self.owner",
        "expires_at > database_now(), true()",
        (f"{LISTING}::test_rows_are_listed_by_state",),
    ),
    Bug(
        "errors are listed as they stand in rows",
        STATES,
        "_listed",
        "redacted(str(row.last_error))",
        "str(row.last_error)",
        (f"{LISTING}::test_a_page_is_a_table",),
    ),
    Bug(
        "a forged cursor is an error of the program",
        "insight/listing/cursor.py",
        "RowCursor.of",
        "(ValueError, TypeError, RecursionError, binascii.Error)",
        "LookupError",
        (f"{LISTING}::test_what_is_asked_wrongly_is_said",),
    ),
    Bug(
        "statements of questions are planned for any values",
        "insight/dialects/postgresql.py",
        "",
        "'force_custom_plan'",
        "'auto'",
        (f"{LISTING}::test_questions_are_planned_for_their_values",),
    ),
    Bug(
        "a person acts on a lease that was not shown",
        "insight/steering/actions.py",
        "Actions._writing",
        "[] if seen is None else [is_as_shown(leased, seen)]",
        "[]",
        (
            "tests/insight/test_seen_leases.py::test_an_action_on_another_lease_writes_nothing",
            "tests/insight/test_seen_leases.py::test_a_claim_between_any_two_statements_is_noticed",
        ),
    ),
)
