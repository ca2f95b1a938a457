"""Commands by which a person acts: ``release``, ``park``, ``unpark`` and ``due`` on a row,
``pause`` and ``resume`` on a pipeline. Each says by whom and why.
"""

from __future__ import annotations

import argparse
import getpass
import re
import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypedDict

from rowlock.cli.answering import add_app_arguments, answered, failed
from rowlock.errors import AppError
from rowlock.insight.actions import ActionDone
from rowlock.insight.insight import Insight
from rowlock.insight.migrations import PERSON_CHARS_MAX, REASON_CHARS_MAX
from rowlock.insight.steering import LeaseChanged, RowNotFound

LASTS_MAX: Final = timedelta(days=366)
_LASTS: Final = re.compile(r"(\d{1,6})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Signed(TypedDict):
    by: str
    reason: str


Act = Callable[[Insight, Signed], Awaitable[ActionDone]]


def add_row_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the class of the row, or its table")
    parser.add_argument("id", metavar="ID", help="the key of the row")


def add_act_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reason",
        metavar="TEXT",
        required=True,
        type=_bounded("a reason", REASON_CHARS_MAX),
        help="why, for the audit log, and for those who look at the row",
    )
    parser.add_argument(
        "--by",
        metavar="NAME",
        type=_bounded("a name", PERSON_CHARS_MAX),
        help="who does it; else user@host of this terminal",
    )
    add_app_arguments(parser)


def acted(options: argparse.Namespace, act: Act) -> int:
    signed: Signed = {"by": options.by or user_at_host(), "reason": options.reason}

    async def ask(insight: Insight) -> ActionDone:
        return await act(insight, signed)

    return answered(options, ask)


def user_at_host() -> str:
    try:
        user = getpass.getuser()
    # Without a name in the environment, and with a number that has none, as in a container.
    except (KeyError, OSError, ImportError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:PERSON_CHARS_MAX]


def lasts(text: str) -> timedelta:
    """Return a duration such as ``2h``."""
    found = _LASTS.fullmatch(text.strip())
    time = timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else timedelta(0)
    if not timedelta(0) < time <= LASTS_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r:.50} is no duration: write 90s, 30m, 2h or 1d, at most {LASTS_MAX.days}d"
        )
    return time


def _bounded(what: str, most: int) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not text.strip() or len(text) > most:
            raise argparse.ArgumentTypeError(f"{what} has 1 to {most} characters")
        return text

    return read


NOT_SEEN = (
    "--force breaks a lease that was shown: add --seen TOKEN, which rowlock explain shows, and"
    " rowlock release without --force"
)


def add_release_arguments(parser: argparse.ArgumentParser) -> None:
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


def run_release(options: argparse.Namespace) -> int:
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


Command = tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]


def _on_row(method: str, description: str) -> Command:
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.description = f"{description} Exit code 4: there is no such row."
        add_row_arguments(parser)
        add_act_arguments(parser)

    async def act(insight: Insight, options: argparse.Namespace, signed: Signed) -> ActionDone:
        done: ActionDone = await getattr(insight, method)(options.model, options.id, **signed)
        return done

    return add_arguments, lambda options: acted(options, lambda one, by: act(one, options, by))


add_park_arguments, run_park = _on_row(
    "park",
    "Set a row aside until it is put back. An attempt that is under way goes on, and the row stays"
    " parked behind it.",
)
add_unpark_arguments, run_unpark = _on_row(
    "unpark", "Put a parked row back, due now and with a clean count of attempts."
)
add_due_arguments, run_due = _on_row("make_due", "Make a row due now. A parked row stays parked.")


def add_pause_arguments(parser: argparse.ArgumentParser) -> None:
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


def run_pause(options: argparse.Namespace) -> int:
    return acted(
        options,
        lambda insight, signed: insight.pause(
            options.pipeline, until=options.lasts, replace=options.replace, **signed
        ),
    )


def add_resume_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "End the pause of a pipeline, and say whose it was."
    parser.add_argument("pipeline", metavar="PIPELINE", help="the name of its class")
    add_act_arguments(parser)


def run_resume(options: argparse.Namespace) -> int:
    return acted(options, lambda insight, signed: insight.resume(options.pipeline, **signed))
