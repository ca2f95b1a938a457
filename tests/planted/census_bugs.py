"""Guards of the census and of the alerts, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

CENSUS = "tests/insight/test_census.py"
EXACT = f"{CENSUS}::test_the_counts_are_exact"
ONE = f"{CENSUS}::test_one_replica_of_all_counts"
FAILS = f"{CENSUS}::test_a_census_that_fails_says_so_once_and_keeps_what_it_knew"

CENSUS_BUGS = (
    Bug(
        "every replica makes the census",
        "insight/observing/census.py",
        "Census._counted_now",
        "if not await counts_here(connection, replicas, mark):",
        "if False:",
        (ONE,),
    ),
    Bug(
        "a dead replica is waited for with the census",
        "insight/counting/exact.py",
        "counts_here",
        "columns.seen_at > database_time_after(-DEAD_AFTER),",
        "",
        (ONE,),
    ),
    Bug(
        "a replica that is not asked to is waited for with the census",
        "insight/counting/exact.py",
        "counts_here",
        "columns.report[WILLING].as_boolean(),",
        "",
        (ONE,),
    ),
    Bug(
        "parked rows rest",
        "insight/counting/exact.py",
        "exact_counts",
        "and_(waits, ~parts.due, ~is_parked)",
        "and_(waits, ~parts.due)",
        (EXACT,),
    ),
    Bug(
        "a pipeline that was not started runs",
        "insight/counting/exact.py",
        "running_replicas",
        "if one.runs(pipeline)",
        "",
        (EXACT,),
    ),
    Bug(
        "a census that fails is told every time",
        "insight/observing/census.py",
        "Census._count",
        "self._failing.add(name)",
        "pass",
        (FAILS,),
    ),
)
