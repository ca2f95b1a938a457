"""Seeds of flows with everything going wrong: whatever happened, results, states,
cursors and outboxes are those of one loop over the recorded steps.

``ROWLOCK_SIMULATION_FLOWS`` says how many; ``python tests/simulation --of flows --seeds 10000``
plays any number of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from ...simulator.simulation import Simulation
from .flows import Flows
from .reached import ENOUGH, NOTED, TOLD, never_reached, table, variants_of

SEEDS = int(os.environ.get("ROWLOCK_SIMULATION_FLOWS", "0"))
USUAL = (1, 6, 7, 8)
"""Together these reach all that the first eight seeds reach (`reached`)."""
PER_TEST = 2
STAGES = {"one stage", "two stages", "three stages"}
COMMAND = "python tests/simulation --of flows --seed {seed} --seeds 1 --story"
ROOT = Path(__file__).resolve().parents[3]


def portions() -> list[Sequence[int]]:
    seeds = range(1, SEEDS + 1) if SEEDS else USUAL
    return [seeds[begin : begin + PER_TEST] for begin in range(0, len(seeds), PER_TEST)]


@pytest.mark.parametrize("seeds", portions(), ids=str)
def test_flows(seeds: Sequence[int]) -> None:
    """Some fault at some moment would lose an event, count it twice, or leave a flow behind."""
    with Simulation(Flows, replay=COMMAND) as simulation:
        reports = list(simulation.run_all(seeds))
    failures = [str(one) for one in reports if not one.is_good]
    assert not failures, "\n\n".join(failures)
    assert [len(STAGES & variants_of(one)) for one in reports] == [1] * len(reports)


def test_what_no_run_has_reached_is_named() -> None:
    """Faults and variants that are drawn no more would leave a proof of nothing."""
    counts = Counter({name: 1 for name in (*NOTED, *TOLD) if name != "split"})
    assert never_reached(counts, runs=ENOUGH) == ["split"]
    assert "     0  split" in table(counts)


@pytest.mark.at_length
def test_a_seed_gives_the_same_history_in_each_process() -> None:
    """A failing seed could not be played again."""
    seeds = (6,)
    with Simulation(Flows) as simulation:
        here = [simulation.run(seed).fingerprint for seed in seeds]
    code = (
        "from tests.simulator.simulation import Simulation\n"
        "from tests.simulation.streams.flows import Flows\n"
        "with Simulation(Flows) as simulation:\n"
        f"    print(*(simulation.run(seed).fingerprint for seed in {seeds}))\n"
    )
    there = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.split() == here
