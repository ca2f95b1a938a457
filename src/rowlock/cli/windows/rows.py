"""``rowlock rows PIPELINE``: the rows of one state, a page of them."""

from __future__ import annotations

import argparse

from rowlock.cli.answering import add_app_arguments, answered
from rowlock.insight.insight import Insight
from rowlock.insight.listing.asking import PAGE_ROWS, PAGE_ROWS_MAX
from rowlock.insight.listing.row_page import ListedState, RowPage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "List the rows of a pipeline that are in one state, in the order of claims. Reads at most"
        " some 10,000 rows, writes and locks nothing."
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="its name")
    parser.add_argument(
        "--state",
        choices=[state.value for state in ListedState],
        default=ListedState.DUE.value,
        help="what they are listed by; %(default)s if not given",
    )
    parser.add_argument(
        "--after", metavar="CURSOR", help="where a page before ended, as that one says"
    )
    parser.add_argument(
        "--limit",
        metavar="N",
        type=int,
        default=PAGE_ROWS,
        help=f"how many at most; 1 to {PAGE_ROWS_MAX}, %(default)s if not given",
    )
    add_app_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the page, and return the exit code."""

    async def ask(insight: Insight) -> RowPage:
        return await insight.rows(
            options.pipeline, options.state, after=options.after, limit=options.limit
        )

    return answered(options, ask)
