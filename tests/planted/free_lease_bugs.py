"""The guards of who may take a row that somebody else has left."""

from __future__ import annotations

from bug import Bug

ELIGIBILITY = "tests/rows/test_eligibility.py"
CLAIM = "tests/leases/test_claim.py"
CONTENDED = "tests/leases/test_claim_contended.py"
BESIDES = "tests/leases/test_claim_besides.py"
CRASHES = "tests/pipelines/test_related_crashes.py"
SIBLINGS = "tests/pipelines/test_siblings.py"
REFUSALS = "tests/pipelines/test_related_refusals.py"
CHECKER = "tests/testing/test_checker.py"

FREE_LEASE_BUGS = (
    Bug(
        "a dead lease keeps siblings away",
        "rows/eligibility.py",
        "is_claimable_by",
        'leased.attribute("lock_token").is_not(None),\n        ',
        "",
        (f"{ELIGIBILITY}::test_volumes_at_every_bound",),
    ),
    Bug(
        "a reservation never ends",
        "rows/eligibility.py",
        "is_claimable_by",
        "last <= database_time_after(-reserved_for),",
        "",
        (f"{CONTENDED}::test_a_reset_row_is_reserved_for_seconds_and_then_anybodys", SIBLINGS),
    ),
    Bug(
        "a reservation of before the clock was set back lasts until then",
        "rows/eligibility.py",
        "is_claimable_by",
        "last >= database_time_after(reserved_for),",
        "",
        (f"{ELIGIBILITY}::test_volumes_at_every_bound",),
    ),
    Bug(
        "a reservation without a time never ends",
        "rows/eligibility.py",
        "is_claimable_by",
        ".is_(None),\n        last",
        "",
        (f"{ELIGIBILITY}::test_volumes_at_every_bound",),
    ),
    Bug(
        "a reservation ends before its owner comes back",
        "rows/eligibility.py",
        "eligible_parts",
        " + (reset_interval or timedelta(0)) * (1 + JITTER)",
        "",
        (f"{ELIGIBILITY}::test_a_longer_rest_reserves_for_longer",),
    ),
    Bug(
        "a death of a service counts as one of the row's",
        "rows/eligibility.py",
        "was_main_lease",
        "not_(lock_owner.contains(OWNER_SEPARATOR))",
        "lock_owner.is_not(None)",
        (f"{CLAIM}::test_who_held_a_row_for_another_did_not_work_on_it",),
    ),
    Bug(
        "a death of a parent counts as one of its children's",
        "rows/eligibility.py",
        "was_main_lease",
        "and_(is_plain, lock_owner.not_in(lockers)) if lockers else ",
        "",
        (f"{CRASHES}::test_they_are_free_by_expiry_if_the_main_row_is_gone",),
    ),
    Bug(
        "a death of a sibling costs an attempt on SQLite",
        "dialects/sqlite/leases.py",
        "_claimed",
        "bool(died_here), ",
        "(dead is not None), ",
        (f"{CLAIM}::test_a_death_costs_the_pipeline_that_died_and_no_other[sqlite]",),
    ),
    Bug(
        "a death of a sibling costs an attempt on PostgreSQL",
        "dialects/postgresql/leases.py",
        "_values",
        "func.coalesce(due.c.died_here, false())",
        "due.c.dead_token.is_not(None)",
        (f"{CLAIM}::test_a_death_costs_the_pipeline_that_died_and_no_other[postgresql]",),
    ),
    Bug(
        "live leases are freed for a holder of whom nothing is known",
        "leases/claim.py",
        "_release_what_dead_held",
        "not died_here",
        "False",
        (f"{BESIDES}::test_of_what_a_sibling_had_locked_only_what_has_ended_is_freed",),
    ),
    Bug(
        "what a dead sibling had locked stays locked",
        "leases/claim.py",
        "_release_what_dead_held",
        " False",
        "",
        (f"{BESIDES}::test_of_what_a_sibling_had_locked_only_what_has_ended_is_freed",),
    ),
    Bug(
        "related rows of its own table look like main rows",
        "leases/related/locker.py",
        "RelatedLocker.lock",
        "or is_own_table ",
        "",
        (f"{CRASHES}::test_rows_of_its_own_table_count_as_nobodys_attempts",),
    ),
    Bug(
        "what was not declared is locked all the same",
        "leases/related/locker.py",
        "RelatedLocker.table_of",
        "leased.table is self._leased.table",
        "True",
        (f"{REFUSALS}::test_an_undeclared_model_is_refused",),
    ),
    Bug(
        "rows of its own table cannot be locked",
        "leases/related/locker.py",
        "RelatedLocker.table_of",
        "leased.table is self._leased.table or ",
        "",
        (f"{REFUSALS}::test_rows_of_its_own_table_need_no_declaration",),
    ),
    Bug(
        "related rows of another database are declared",
        "leases/related/locker.py",
        "check_one_database",
        "not ",
        "None and ",
        (f"{REFUSALS}::test_rows_of_another_database_are_refused",),
    ),
    Bug(
        "an engine with other options is another database",
        "leases/related/locker.py",
        "check_one_database",
        ".engine.pool is not bind_of(session, leased).engine.pool",
        " is not bind_of(session, leased)",
        (f"{REFUSALS}::test_engines_that_differ_in_options_are_of_one_database",),
    ),
    Bug(
        "a long key is cut off",
        "rows/eligibility.py",
        "related_owner",
        'f"{owner}{OWNER_SEPARATOR}{digest}"',
        "name[:255]",
        (f"{REFUSALS}::test_a_shared_lock_has_a_name_however_long_the_key_is",),
    ),
    Bug(
        "the judge lets reservations be run over",
        "testing/judge/owner_rules.py",
        "names",
        "timedelta(0) <= kept_for < RESERVED_BEYOND",
        "False",
        (f"{CHECKER}::test_a9_a_reservation_is_kept_for_seconds",),
    ),
)
