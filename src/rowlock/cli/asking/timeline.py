"""``rowlock timeline MODEL ID``: what happened to a row, the newest first."""

from __future__ import annotations

import argparse

from rowlock.cli.answering import NO_SUCH_ROW, WELL, add_app_arguments, answered
from rowlock.insight.history.timeline import ENTRIES_MAX, Timeline
from rowlock.insight.insight import Insight


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Say what happened to a row, the newest first, as the table rowlock_history has it."
        " Without that table only the last outcome is known. Exit code 4: there is no such row, and"
        " none is remembered."
    )
    parser.add_argument("model", metavar="MODEL", help="the class of the row, or its table")
    parser.add_argument("id", metavar="ID", help="the key of the row")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=int,
        default=100,
        help=f"most entries, at most {ENTRIES_MAX:,} (default: 100)",
    )
    add_app_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the timeline, and return the exit code."""

    async def ask(insight: Insight) -> Timeline:
        return await insight.timeline(options.model, options.id, limit=options.limit)

    return answered(options, ask, code_of=lambda answer: WELL if answer.is_known else NO_SUCH_ROW)
