"""``rowlock release MODEL ID``: free a row whose holder is gone."""

from __future__ import annotations

import argparse

from rowlock.cli.acting import Signed, acted, add_act_arguments, add_row_arguments
from rowlock.cli.answering import failed
from rowlock.errors import AppError
from rowlock.insight.insight import Insight
from rowlock.insight.steering.action_errors import LeaseChanged, RowNotFound
from rowlock.insight.steering.actions import ActionDone

NOT_SEEN = (
    "--force breaks a lease that was shown: add --seen TOKEN, which rowlock explain shows, and"
    " rowlock release without --force"
)


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
    parser.add_argument(
        "--seen",
        metavar="TOKEN",
        help="release this lease alone, which explain, or release without --force, has shown",
    )
    add_act_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Do it, print what was done, and return the exit code."""
    if options.force and options.seen is None:
        return failed(options, AppError(NOT_SEEN))

    async def act(insight: Insight, signed: Signed) -> ActionDone:
        explanation = await insight.explain(options.model, options.id)
        row, lease = {"model": explanation.model, "row_id": explanation.row_id}, explanation.lease
        if lease is None:
            raise RowNotFound(**row)
        if options.seen not in {None, str(lease.token)}:
            raise LeaseChanged(**row, owner=lease.owner)
        return await insight.release(
            options.model, options.id, seen=lease, force=options.force, **signed
        )

    return acted(options, act)
