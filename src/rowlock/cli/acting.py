"""What all commands share by which a person acts: who it is, why, and for how long."""

from __future__ import annotations

import argparse
import getpass
import re
import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypedDict

from rowlock.cli.answering import add_app_arguments, answered
from rowlock.insight.insight import Insight
from rowlock.insight.migrations import PERSON_CHARS_MAX, REASON_CHARS_MAX
from rowlock.insight.steering.actions import ActionDone

LASTS_MAX: Final = timedelta(days=366)
"""Longest pause that ends by itself."""
_LASTS: Final = re.compile(r"(\d{1,6})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Signed(TypedDict):
    """By whom something is done, and why."""

    by: str
    reason: str


Act = Callable[[Insight, Signed], Awaitable[ActionDone]]
"""Does it, by somebody and for a reason."""


def add_row_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what names a row."""
    parser.add_argument("model", metavar="MODEL", help="the class of the row, or its table")
    parser.add_argument("id", metavar="ID", help="the key of the row")


def add_act_arguments(parser: argparse.ArgumentParser) -> None:
    """Add who acts and why, and the options of every command about rows."""
    parser.add_argument(
        "--reason",
        metavar="TEXT",
        required=True,
        type=_reason,
        help="why, for the audit log, and for those who look at the row",
    )
    parser.add_argument(
        "--by", metavar="NAME", type=_person, help="who does it; else user@host of this terminal"
    )
    add_app_arguments(parser)


def acted(options: argparse.Namespace, act: Act) -> int:
    """Act, print what was done, and return the exit code."""
    signed: Signed = {"by": options.by or user_at_host(), "reason": options.reason}

    async def ask(insight: Insight) -> ActionDone:
        return await act(insight, signed)

    return answered(options, ask)


def user_at_host() -> str:
    """Return who sits at this terminal, as far as the system knows."""
    try:
        user = getpass.getuser()
    # Without a name in the environment, and with a number that has none, as in a container.
    except (KeyError, OSError, ImportError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:PERSON_CHARS_MAX]


def lasts(text: str) -> timedelta:
    """Return a duration such as ``2h``.

    Raises:
        ArgumentTypeError: the text is none, or longer than `LASTS_MAX`.
    """
    found = _LASTS.fullmatch(text.strip())
    time = timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else timedelta(0)
    if not timedelta(0) < time <= LASTS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r:.50} is no duration: write 90s, 30m, 2h or 1d, at most {LASTS_MAX.days}d"
        )
    return time


def _reason(text: str) -> str:
    return _bounded(text, "a reason", REASON_CHARS_MAX)


def _person(text: str) -> str:
    return _bounded(text, "a name", PERSON_CHARS_MAX)


def _bounded(text: str, what: str, most: int) -> str:
    if not text.strip() or len(text) > most:
        raise argparse.ArgumentTypeError(f"{what} has 1 to {most} characters")
    return text
