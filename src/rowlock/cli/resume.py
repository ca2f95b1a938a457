"""``rowlock resume PIPELINE``: end a pause."""

from __future__ import annotations

import argparse

from rowlock.cli.acting import Signed, acted, add_act_arguments
from rowlock.insight.insight import Insight
from rowlock.insight.steering.actions import ActionDone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = "End the pause of a pipeline, and say whose it was."
    parser.add_argument("pipeline", metavar="PIPELINE", help="the name of its class")
    add_act_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Do it, print what was done, and return the exit code."""

    async def act(insight: Insight, signed: Signed) -> ActionDone:
        return await insight.resume(options.pipeline, **signed)

    return acted(options, act)
