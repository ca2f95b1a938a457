"""Guards of a simulation that blames nobody for what a flow may do."""

from __future__ import annotations

from bug import Bug

LIVENESS = "tests/testing/simulation/test_liveness.py"
SIMULATE = "tests/testing/simulation/test_simulate.py"

FAIR_BUGS = (
    Bug(
        "a pipeline that looks around is given the time of a claim alone",
        "testing/simulation/liveness.py",
        "_Bounds.of",
        "pipeline.fetcher_class.transactions_per_claim * ",
        "",
        (f"{LIVENESS}::test_a_fetch_may_take_as_long_as_its_transactions",),
    ),
    Bug(
        "a check writes where a process holds the lock",
        "testing/simulation/scenario.py",
        "World.copying",
        "self._engines.copies",
        "self._engines.eye",
        (f"{SIMULATE}::test_a_check_writes_into_a_copy_though_the_file_is_locked",),
    ),
)
