"""``rowlock pause PIPELINE``: have a pipeline claim nothing, anywhere."""

from __future__ import annotations

import argparse

from rowlock.cli.acting import Signed, acted, add_act_arguments, lasts
from rowlock.insight.insight import Insight
from rowlock.insight.steering.actions import ActionDone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Have a pipeline claim nothing, in any replica; what runs goes on. A restart keeps the"
        " pause. Exit code 2: this host cannot pause, and what to add. Exit code 4: it is paused"
        " already."
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="the name of its class")
    parser.add_argument(
        "--for",
        dest="lasts",
        metavar="TIME",
        type=lasts,
        help="how long, such as 90s, 30m, 2h or 1d, by the database's clock; else until resume",
    )
    parser.add_argument(
        "--replace", action="store_true", help="end a pause that there is, and say whose it was"
    )
    add_act_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Do it, print what was done, and return the exit code."""

    async def act(insight: Insight, signed: Signed) -> ActionDone:
        return await insight.pause(
            options.pipeline, until=options.lasts, replace=options.replace, **signed
        )

    return acted(options, act)
