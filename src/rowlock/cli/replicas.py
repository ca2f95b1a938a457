"""``rowlock replicas``: which replicas live, as they say themselves."""

from __future__ import annotations

import argparse

from rowlock.cli.answering import add_app_arguments, answered
from rowlock.insight.insight import Insight


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "List the replicas, as they say themselves in the table rowlock_replicas. Without that"
        " table there is no answer."
    )
    add_app_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the replicas, and return the exit code."""
    return answered(options, Insight.replicas)
