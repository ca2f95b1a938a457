"""Plays random runs: ``python tests/simulation --seeds 5000 --seed 1``; ``--story`` shows what
happened in each.

``--of orders`` (whole managers, the bare protocol), ``--of family`` (whole managers that lock each
other's rows, and services), ``--of crowd`` (many rows at once, far from the database), ``--of
steered`` (orders whose pipelines are paused, and whose rows are released and parked), ``--of
flows`` (streams, compared with one loop over their steps; a table at the end says what they have
reached); each of these by default.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.simulation.crowd import Crowd
from tests.simulation.family import Family
from tests.simulation.orders import Orders
from tests.simulation.steered import Steered
from tests.simulation.streams.flows import Flows
from tests.simulation.streams.reached import counted, never_reached, table
from tests.simulator.command import tell, with_options
from tests.simulator.simulation import Simulation

SCENARIOS: Final = {
    "orders": Orders,
    "family": Family,
    "crowd": Crowd,
    "steered": Steered,
    "flows": Flows,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Play as many runs as asked for, and print those that broke a promise."""
    parser = with_options(argparse.ArgumentParser(description="Plays random runs."))
    parser.add_argument(
        "--of",
        choices=("all", *SCENARIOS),
        default="all",
        help="what is played; by default as many of each",
    )
    options = parser.parse_args(arguments)
    played = SCENARIOS if options.of == "all" else (options.of,)
    return max(play_of(kind, options) for kind in played)


def play_of(kind: str, options: argparse.Namespace) -> int:
    print(f"{kind}:", flush=True)
    seeds = range(options.seed, options.seed + options.seeds)
    command = f"python tests/simulation --of {kind} --seed {{seed}} --seeds 1 --story"
    counts = Counter[str]()
    with Simulation(SCENARIOS[kind], replay=command) as simulation:
        reports = counted(simulation.run_all(seeds), counts)
        failed = tell(reports, total=len(seeds), first=options.first, story=options.story)
    if kind == "flows":
        print(f"runs that have reached:\n{table(counts)}")
        missing = never_reached(counts, runs=len(seeds))
        print(*(f"no run has reached: {name}" for name in missing), sep="\n")
        return max(failed, int(bool(missing)))
    return failed


if __name__ == "__main__":
    sys.exit(main())
