"""``rowlock status``: whether anything waits too long."""

from __future__ import annotations

import argparse

from rowlock.cli.answering import add_app_arguments, answered
from rowlock.insight.insight import Insight


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Say whether anything waits too long: what is due, leased and parked for each pipeline, and"
        " who runs it. Counts read at most some 10,000 rows. Exit code 1: a person is needed."
    )
    add_app_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the status, and return the exit code."""
    return answered(options, Insight.status)
