"""Guards of the tools of testing for work without an end, with the tests that must notice."""

from __future__ import annotations

from bug import Bug

LASTING = "tests/testing/test_lasting_work.py"
KEPT = "tests/testing/simulation/test_kept_leases.py"

LASTING_BUGS = (
    Bug(
        "lasting work is stopped though it wants more",
        "testing/stepping.py",
        "run_until_settled",
        "quiet < QUIET_PASSES",
        "False",
        (f"{LASTING}::test_work_that_knows_of_more_is_waited_for",),
    ),
    Bug(
        "leases of lasting work are not renewed while it is stepped",
        "testing/stepping.py",
        "_LastingWork.begin",
        "await self._run.heartbeater.beat_once()",
        "pass",
        (f"{LASTING}::test_work_that_knows_of_more_is_waited_for",),
    ),
    Bug(
        "what lasting work leaves for others is not looked at",
        "testing/stepping.py",
        "run_until_settled",
        "works = []",
        "return worked",
        (f"{LASTING}::test_what_work_leaves_for_others_is_worked_on",),
    ),
    Bug(
        "lasting work is not asked to stop",
        "testing/stepping.py",
        "_LastingWork.stop",
        "drain(grace_s)",
        "drain(0)",
        (f"{LASTING}::test_work_is_asked_to_stop_when_nothing_is_left",),
    ),
)
KEPT_BUGS = (
    Bug(
        "a kept lease is unfinished work",
        "testing/simulation/quiescence.py",
        "_left_in",
        "wants if may_be_held else or_(wants, is_held)",
        "or_(wants, is_held)",
        (f"{KEPT}::test_rows_that_stay_leased_settle",),
    ),
    Bug(
        "every lease may be kept",
        "testing/simulation/quiescence.py",
        "_left_in",
        "wants if may_be_held else or_(wants, is_held)",
        "wants",
        (f"{KEPT}::test_other_rows_must_be_free",),
    ),
    Bug(
        "a dead holder keeps a lease",
        "testing/simulation/quiescence.py",
        "_is_without_holder",
        'or_(leased.column("lock_token").is_(None), leased.column("lock_expires_at") <= now)',
        'leased.column("lock_token").is_(None)',
        (f"{KEPT}::test_a_row_without_a_living_holder_has_not_settled",),
    ),
    Bug(
        "a pipeline's own condition for quiescence is not asked",
        "testing/simulation/scenario.py",
        "Scenario.unsettled",
        "if own is not None:",
        "if False:",
        (f"{KEPT}::test_a_held_row_that_wants_more_has_not_settled",),
    ),
)
