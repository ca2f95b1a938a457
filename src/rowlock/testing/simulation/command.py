"""A command for thousands of runs: ``python simulate_volumes.py --seeds 5000``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from rowlock.clock import monotonic
from rowlock.testing.simulation.scenario import Scenario
from rowlock.testing.simulation.simulation import Simulation, SimulationReport

__all__ = ["run_command"]

PROGRESS_S: Final = 5.0
"""How often the progress is told. **Unit** seconds."""


def run_command(
    scenario: type[Scenario], arguments: Sequence[str] | None = None, *, replay: str | None = None
) -> int:
    """Play as many runs as the command line says, tell those that broke a promise, and return the
    exit code.

    Args:
        scenario: what is played.
        arguments: the command line; the process's own by default.
        replay: the command without its options; what was typed by default.

    ``--seeds N`` (how many), ``--seed S`` (the first one), ``--first`` (stop at the first failure),
    ``--story`` (tell everything).
    """
    parser = argparse.ArgumentParser(description=f"Simulates {scenario.__name__}.")
    options = with_options(parser).parse_args(arguments)
    command = f"python {sys.argv[0]}" if replay is None else replay
    with Simulation(scenario, replay=f"{command} --seed {{seed}} --seeds 1 --story") as simulation:
        seeds = range(options.seed, options.seed + options.seeds)
        return tell(
            simulation.run_all(seeds), total=options.seeds, first=options.first, story=options.story
        )


def with_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options that every simulation has."""
    parser.add_argument("--seeds", "--schedules", type=int, default=200, help="how many runs")
    parser.add_argument("--seed", type=int, default=1, help="the first one's number")
    parser.add_argument(
        "--first", action="store_true", help="stop at the first that broke a promise"
    )
    parser.add_argument(
        "--story", action="store_true", help="print what happened, also where all is well"
    )
    return parser


def tell(reports: Iterable[SimulationReport], *, total: int, first: bool, story: bool) -> int:
    """Tell progress, rate and failures; return the exit code."""
    began_at = told_at = monotonic()
    played, failed = 0, []
    for report in reports:
        played += 1
        if story:
            print("\n".join(map(str, report.entries)), flush=True)
        if not report.is_good:
            failed.append(report.seed)
        if story or not report.is_good:
            print(report, end="\n\n", flush=True)
        if monotonic() - told_at > PROGRESS_S:
            told_at = monotonic()
            print(
                f"{played} of {total}, {len(failed)} failed, {played / (told_at - began_at):.1f} a"
                " second",
                flush=True,
            )
        if failed and first:
            break
    seconds = monotonic() - began_at
    print(
        f"{played} runs in {seconds:.1f} s, {played / seconds:.1f} a second, {len(failed)} failed",
        *failed,
    )
    return 1 if failed else 0
