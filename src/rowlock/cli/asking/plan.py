"""``rowlock plan PIPELINE ID...``: what would come of rows, without writing it."""

from __future__ import annotations

import argparse
from typing import Final

from rowlock.cli.answering import NEEDS_PERSON, NO_SUCH_ROW, WELL, add_app_arguments, answered
from rowlock.insight.rehearsing.answer import Rehearsal

PLAN_WITHIN_S: Final = 600.0
"""Longest time for all rows that are named, in seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Run process for rows and print what would come of each; nothing is written, and no"
        " pipeline works on them meanwhile. Only for pipelines that say rehearsable = True: what"
        " process does to other systems is done. Exit code 1: a row would be retried or parked;"
        " 4: a row is not there, or it is held."
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="its name")
    parser.add_argument("ids", metavar="ID", nargs="+", help="keys of rows")
    add_app_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Rehearse, print what would come of it, and return the exit code."""
    return answered(
        options,
        lambda insight: insight.rehearse(options.pipeline, options.ids),
        code_of=_code_of,
        within_s=PLAN_WITHIN_S,
    )


def _code_of(answer: Rehearsal) -> int:
    if not answer.is_complete:
        return NO_SUCH_ROW
    return NEEDS_PERSON if answer.needs_person else WELL
