"""``rowlock park MODEL ID``: set a row aside."""

from __future__ import annotations

import argparse

from rowlock.cli.acting import Signed, acted, add_act_arguments, add_row_arguments
from rowlock.insight.insight import Insight
from rowlock.insight.steering.actions import ActionDone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Set a row aside until it is put back. An attempt that is under way goes on, and the"
        " row stays parked behind it. Exit code 4: there is no such row."
    )
    add_row_arguments(parser)
    add_act_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Do it, print what was done, and return the exit code."""

    async def act(insight: Insight, signed: Signed) -> ActionDone:
        return await insight.park(options.model, options.id, **signed)

    return acted(options, act)
