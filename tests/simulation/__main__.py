"""Plays random schedules: ``python tests/simulation --schedules 10000 --seed 1``; ``--steps`` shows what happened in each."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.simulation.play import play


def main() -> int:
    """Play schedules and print those that broke a promise."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="the first one's number")
    parser.add_argument("--managed", action="store_true", help="with whole managers instead of single steps")
    parser.add_argument("--first", action="store_true", help="stop at the first that broke a promise")
    parser.add_argument("--steps", action="store_true", help="print what happened")
    options = parser.parse_args()
    failed, began = 0, time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="rowlock-simulation-") as folder:
        seeds = range(options.seed, options.seed + options.schedules)
        for played in play(seeds, Path(folder), managed=options.managed):
            failed += bool(played.wrongs)
            if played.wrongs:
                print(played, end="\n\n", flush=True)
                if options.first:
                    break
            elif options.steps:
                print("\n".join(played.steps), end="\n\n")
    print(f"{options.schedules} schedules, {failed} failed, {time.perf_counter() - began:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
