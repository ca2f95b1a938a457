"""``rowlock release MODEL ID``: free a row whose holder is gone."""

from __future__ import annotations

import argparse

from rowlock.cli.acting import Signed, acted, add_act_arguments, add_row_arguments
from rowlock.insight.insight import Insight
from rowlock.insight.steering.action_errors import RowNotFound
from rowlock.insight.steering.actions import ActionDone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Free a row, and what its holder has locked for it, so that the next claim takes it. Exit"
        " code 4: there is no such row, its lease has not ended and nothing was forced, or it has"
        " changed meanwhile."
    )
    add_row_arguments(parser)
    parser.add_argument(
        "--force",
        action="store_true",
        help="also if the lease has not ended: what its holder computes is not written then",
    )
    add_act_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Do it, print what was done, and return the exit code."""

    async def act(insight: Insight, signed: Signed) -> ActionDone:
        # What is released is the lease as it is now: between the two statements it may change.
        explanation = await insight.explain(options.model, options.id)
        if explanation.lease is None:
            raise RowNotFound(model=explanation.model, row_id=explanation.row_id)
        return await insight.release(
            options.model, options.id, seen=explanation.lease, force=options.force, **signed
        )

    return acted(options, act)
