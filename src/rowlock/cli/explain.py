"""``rowlock explain MODEL ID``: why a row waits, who has it, and what to do."""

from __future__ import annotations

import argparse

from rowlock.cli.answering import NEEDS_PERSON, NO_SUCH_ROW, WELL, add_app_arguments, answered
from rowlock.insight.explanation import Explanation
from rowlock.insight.insight import Insight


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Say why a row waits, or who works on it. Reads one row, writes and locks nothing. Exit"
        " code 1: a person is needed; 4: there is no such row."
    )
    parser.add_argument("model", metavar="MODEL", help="the class of the row, or its table")
    parser.add_argument("id", metavar="ID", help="the key of the row")
    add_app_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Print the explanation, and return the exit code."""

    async def ask(insight: Insight) -> Explanation:
        return await insight.explain(options.model, options.id)

    return answered(options, ask, code_of=_code_of)


def _code_of(answer: Explanation) -> int:
    if not answer.is_there:
        return NO_SUCH_ROW
    return NEEDS_PERSON if answer.needs_person else WELL
