"""What a command for thousands of runs needs: ``python tests/simulation --seeds 5000``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Final

from rowlock.clock import monotonic

from .simulation import SimulationReport

PROGRESS_S: Final = 5.0
"""How often the progress is told. **Unit** seconds."""


def with_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
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
