"""``rowlock plan PIPELINE ID...``: what would come of rows, without writing it; and with
``--shadow``, what would come of the first rows in line beside what live replicas made of them.
"""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import Final

from rowlock.cli.answering import (
    NEEDS_PERSON,
    NO_SUCH_ROW,
    WELL,
    Ask,
    add_app_arguments,
    answered,
)
from rowlock.errors import AppError
from rowlock.insight.insight import Insight
from rowlock.insight.rehearsing.answer import Rehearsal
from rowlock.insight.shadowing.plans import SHADOW_WAIT
from rowlock.insight.shadowing.shadow_run import ShadowRun

PLAN_WITHIN_S: Final = 600.0
"""Longest time for all rows that are named, in seconds."""
SHADOW_WITHIN_S: Final = 900.0
"""Longest time for a shadow run, in seconds: most rows, each of which takes as long as it may."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Run process for rows and print what would come of each; nothing is written, and no"
        " pipeline works on them meanwhile. With --shadow, run it for the first rows in line beside"
        " the replicas that live, hold no row, and print where their outcomes differ. Only for"
        " pipelines that say rehearsable = True: what process does to other systems is done. Exit"
        " code 1: a row would be retried or parked, or differs; 4: a row is not there, or it is"
        " held, or there was no row to compare."
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="its name")
    parser.add_argument("ids", metavar="ID", nargs="*", help="keys of rows")
    group = parser.add_argument_group("beside live replicas")
    group.add_argument(
        "--shadow", metavar="ROWS", type=int, help="how many rows, the first in line; up to 100"
    )
    group.add_argument(
        "--wait",
        metavar="SECONDS",
        type=_seconds,
        help="how long replicas may take for them, up to 300; else"
        f" {SHADOW_WAIT.total_seconds():g}",
    )
    group.add_argument(
        "--ignore",
        metavar="COLUMN",
        action="append",
        help="a column that is not compared, such as a time from a clock; may be given again",
    )
    add_app_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Rehearse or shadow, print what would come of it, and return the exit code."""
    if options.shadow is not None:
        return answered(
            options, _shadow(options), code_of=_code_of_shadow, within_s=SHADOW_WITHIN_S
        )
    return answered(options, _rehearsal(options), code_of=_code_of, within_s=PLAN_WITHIN_S)


def _rehearsal(options: argparse.Namespace) -> Ask:
    async def ask(insight: Insight) -> Rehearsal:
        if options.wait is not None or options.ignore is not None:
            raise AppError("--wait and --ignore belong to --shadow ROWS")
        return await insight.rehearse(options.pipeline, options.ids)

    return ask


def _shadow(options: argparse.Namespace) -> Ask:
    async def ask(insight: Insight) -> ShadowRun:
        if options.ids:
            raise AppError("--shadow chooses the rows itself, the first in line: name none")
        return await insight.shadow(
            options.pipeline,
            rows=options.shadow,
            wait=SHADOW_WAIT if options.wait is None else options.wait,
            ignore=options.ignore or (),
        )

    return ask


def _seconds(text: str) -> timedelta:
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"not a number of seconds: {text:.40}") from None


def _code_of(answer: Rehearsal) -> int:
    if not answer.is_complete:
        return NO_SUCH_ROW
    return NEEDS_PERSON if answer.needs_person else WELL


def _code_of_shadow(answer: ShadowRun) -> int:
    if answer.needs_person:
        return NEEDS_PERSON
    return WELL if answer.compared else NO_SUCH_ROW
