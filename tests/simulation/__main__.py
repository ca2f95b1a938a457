"""Plays random runs: ``python tests/simulation --seeds 5000 --seed 1``; ``--story`` shows what happened in each.

``--of orders`` (whole managers, the bare protocol), ``--of family`` (whole managers that lock each other's rows, and services),
``--of steps`` (the schedules of single steps).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rowlock.testing.simulation import run_command
from rowlock.testing.simulation.command import with_options
from tests.simulation.family import Family
from tests.simulation.orders import Orders
from tests.simulation.play import play


def main() -> int:
    """Play as many runs as asked for, and print those that broke a promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--of", choices=("orders", "family", "steps"), default="orders", help="what is played")
    options, others = parser.parse_known_args()
    if options.of == "steps":
        return play_steps(others)
    scenario = {"orders": Orders, "family": Family}[options.of]
    return run_command(scenario, others, replay=f"python tests/simulation --of {options.of}")


def play_steps(arguments: list[str]) -> int:
    """Play schedules of single steps."""
    options = with_options(argparse.ArgumentParser()).parse_args(arguments)
    failed, began = 0, time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="rowlock-simulation-") as folder:
        for played in play(range(options.seed, options.seed + options.seeds), Path(folder)):
            failed += bool(played.wrongs)
            if played.wrongs:
                print(played, end="\n\n", flush=True)
                if options.first:
                    break
            elif options.story:
                print("\n".join(played.steps), end="\n\n")
    print(f"{options.seeds} schedules, {failed} failed, {time.perf_counter() - began:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
