"""Guards of what a person does to rows, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

BREAK = "tests/leases/test_break_lease.py"
PARK = "tests/leases/test_park.py"
BREAKING = "leases/release.py"
PLANNER = "pipelines/settling/planner.py"

STEERING_BUGS = (
    Bug(
        "a lease is broken whoever holds the row by now",
        BREAKING,
        "break_lease",
        "is_as_shown(leased, seen)",
        "true()",
        (f"{BREAK}::test_a_lease_that_has_changed_is_another_holders",),
    ),
    Bug(
        "a lease is broken by its owner's name alone",
        BREAKING,
        "is_as_shown",
        'and_(owner_is, leased.column("lock_token").is_not_distinct_from(token))',
        "owner_is",
        (f"{BREAK}::test_a_lease_that_has_changed_is_another_holders",),
    ),
    Bug(
        "a live lease is broken without force",
        BREAKING,
        "_has_ended",
        "expires_at <= database_instant()",
        "true()",
        (f"{BREAK}::test_a_live_lease_may_be_spared",),
    ),
    Bug(
        "related rows of a broken lease stay locked",
        BREAKING,
        "break_lease",
        "for other in related:",
        "for other in ():",
        (f"{BREAK}::test_rows_that_its_holder_has_locked_for_it_are_freed",),
    ),
    Bug(
        "a broken lease waits for related rows",
        BREAKING,
        "break_lease",
        "dialect.skip_locked(other, theirs)",
        "theirs",
        (f"{BREAK}::test_a_related_row_that_is_locked_is_not_waited_for",),
    ),
    Bug(
        "a failure takes the place of the reason of a parked row",
        PLANNER,
        "Planner._retry",
        "self._unless_parked(error)",
        "error",
        (f"{PARK}::test_an_outcome_under_way_leaves_it_parked",),
    ),
    Bug(
        "a row that is parked twice forgets since when",
        "services/due.py",
        "parked_values",
        "func.coalesce(parked_at, database_now())",
        "database_now()",
        (f"{PARK}::test_a_second_reason_takes_the_place_of_the_first",),
    ),
)
