"""``rowlock status``: whether anything waits too long, once or again and again."""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Final

from rowlock.cli.answering import add_app_arguments, answered
from rowlock.cli.watching.again import watched
from rowlock.insight.counting.status import Status
from rowlock.insight.insight import Insight

WATCH_S_MIN: Final = 1.0
"""Shortest time between two looks, in seconds."""
WATCH_S_MAX: Final = 3600.0
STATUS_WITHIN: Final = timedelta(seconds=5)
"""After that long no further pipeline is asked: half of what a command has for its answer."""


async def status_in_time(insight: Insight) -> Status:
    """Return the status, of as many pipelines as a command has time for."""
    return await insight.status(within=STATUS_WITHIN)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Say whether anything waits too long: what is due, leased and parked for each pipeline, and"
        " who runs it. Counts read at most some 10,000 rows. Exit code 1: a person is needed."
    )
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        type=_seconds,
        help="look again every so many seconds, until it is interrupted; where the output is no"
        " terminal, one answer follows the other",
    )
    add_app_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the status, and return the exit code."""
    if options.watch is not None:
        return watched(options, status_in_time, every_s=options.watch)
    return answered(options, status_in_time)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not WATCH_S_MIN <= seconds <= WATCH_S_MAX:
        raise argparse.ArgumentTypeError(
            f"a number of seconds from {WATCH_S_MIN:g} to {WATCH_S_MAX:g}, not {text!r:.50}"
        )
    return seconds
