"""Commands that ask: ``status``, ``explain``, ``timeline``, ``plan``, ``rows``, ``replicas`` and
``check``, none of which writes; and those by which a person acts, and says by whom and why:
``release``, ``park``, ``unpark`` and ``due`` on a row, ``pause`` and ``resume`` on a pipeline.
"""

from __future__ import annotations

import argparse
import getpass
import re
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Final, TypedDict

from rowlock.cli.answering import (
    ANSWER_WITHIN_S,
    AddArguments,
    Argument,
    CommandAnswer,
    answered,
    argument,
    takes,
    watched,
)
from rowlock.errors import AppError
from rowlock.insight.actions import ActionDone
from rowlock.insight.claim_plan import PipelineView
from rowlock.insight.explanation import Explanation
from rowlock.insight.insight import Insight
from rowlock.insight.listing import ENTRIES_MAX, PAGE_ROWS, PAGE_ROWS_MAX
from rowlock.insight.migrations import PERSON_CHARS_MAX, REASON_CHARS_MAX
from rowlock.insight.questions import ListedState
from rowlock.insight.status import Status
from rowlock.insight.steering import LeaseChanged, RowNotFound

# ---------------------------------------------------------------- questions


WATCH_S_MIN: Final = 1.0
WATCH_S_MAX: Final = 3600.0
PLAN_WITHIN_S: Final = 600.0
STATUS_WITHIN: Final = timedelta(seconds=5)
"""After that long no further pipeline is asked: half of what a command has for its answer."""
ROW: Final = (
    argument("model", metavar="MODEL", help="the class of the row, or its table"),
    argument("id", metavar="ID", help="the key of the row"),
)


Command = tuple[AddArguments, Callable[[argparse.Namespace], int]]
Asked = Callable[[Insight, argparse.Namespace], Awaitable[CommandAnswer]]


def _asks(
    description: str, ask: Asked, *arguments: Argument, within_s: float = ANSWER_WITHIN_S
) -> Command:
    def run(options: argparse.Namespace) -> int:
        return answered(options, lambda insight: ask(insight, options), within_s=within_s)

    return takes(description, *arguments), run


async def status_in_time(insight: Insight) -> Status:
    """Return the status, of as many pipelines as a command has time for."""
    return await insight.status(within=STATUS_WITHIN)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not WATCH_S_MIN <= seconds <= WATCH_S_MAX:
        raise argparse.ArgumentTypeError(
            f"a number of seconds from {WATCH_S_MIN:g} to {WATCH_S_MAX:g}, not {text!r:.50}"
        )
    return seconds


add_status_arguments = takes(
    "Say whether anything waits too long: what is due, leased and parked for each pipeline, and"
    " who runs it. Counts read at most some 10,000 rows. Exit code 1: a person is needed.",
    argument(
        "--watch",
        metavar="SECONDS",
        type=_seconds,
        help="look again every so many seconds, until it is interrupted; where the output is no"
        " terminal, one answer follows the other",
    ),
)


def run_status(options: argparse.Namespace) -> int:
    if options.watch is not None:
        return watched(options, status_in_time, every_s=options.watch)
    return answered(options, status_in_time)


def check_words(options: argparse.Namespace) -> None:
    """Raise AppError unless either a row or a pipeline is named."""
    names_row = options.model is not None and options.id is not None
    if options.pipeline is not None and options.model is not None:
        raise AppError("name a row or a pipeline: explain MODEL ID, or explain --pipeline NAME")
    if options.pipeline is None and (not names_row or options.plan):
        raise AppError("explain what? explain MODEL ID, or explain --pipeline NAME [--plan]")


async def _explained(insight: Insight, options: argparse.Namespace) -> Explanation | PipelineView:
    check_words(options)
    if options.pipeline is None:
        return await insight.explain(options.model, options.id)
    return replace(await insight.explain_pipeline(options.pipeline), shows_plan=options.plan)


add_explain_arguments, run_explain = _asks(
    "Say why a row waits, or who works on it. Reads one row, writes and locks nothing. Exit"
    " code 1: a person is needed; 4: there is no such row.",
    _explained,
    *(argument(*names, **how, nargs="?") for names, how in ROW),
    argument("--pipeline", metavar="NAME", help="a pipeline as a whole, instead of a row"),
    argument("--plan", action="store_true", help="with --pipeline: how the database reads a claim"),
)
add_timeline_arguments, run_timeline = _asks(
    "Say what happened to a row, the newest first, as the table rowlock_history has it."
    " Without that table only the last outcome is known. Exit code 4: there is no such row, and"
    " none is remembered.",
    lambda insight, given: insight.timeline(given.model, given.id, limit=given.limit),
    *ROW,
    argument(
        "--limit",
        metavar="N",
        type=int,
        default=100,
        help=f"most entries, at most {ENTRIES_MAX:,} (default: 100)",
    ),
)


add_plan_arguments, run_plan = _asks(
    "Run process for rows and print what would come of each; nothing is written, and no"
    " pipeline works on them meanwhile. Only for pipelines that say rehearsable = True: what"
    " process does to other systems is done. Exit code 1: a row would be retried or parked;"
    " 4: a row is not there, or it is held.",
    lambda insight, given: insight.rehearse(given.pipeline, given.ids),
    argument("pipeline", metavar="PIPELINE", help="its name"),
    argument("ids", metavar="ID", nargs="+", help="keys of rows"),
    within_s=PLAN_WITHIN_S,
)


add_rows_arguments, run_rows = _asks(
    "List the rows of a pipeline that are in one state, in the order of claims. Reads at most"
    " some 10,000 rows, writes and locks nothing.",
    lambda insight, given: insight.rows(
        given.pipeline, given.state, after=given.after, limit=given.limit
    ),
    argument("pipeline", metavar="PIPELINE", help="its name"),
    argument(
        "--state",
        choices=[state.value for state in ListedState],
        default=ListedState.DUE.value,
        help="what they are listed by; %(default)s if not given",
    ),
    argument("--after", metavar="CURSOR", help="where a page before ended, as that one says"),
    argument(
        "--limit",
        metavar="N",
        type=int,
        default=PAGE_ROWS,
        help=f"how many at most; 1 to {PAGE_ROWS_MAX}, %(default)s if not given",
    ),
)


add_replicas_arguments, run_replicas = _asks(
    "List the replicas, as they say themselves in the table rowlock_replicas. Without that"
    " table there is no answer.",
    lambda insight, _: insight.replicas(),
)


add_check_arguments, run_check = _asks(
    "Say what is to be mended in the database: columns and indexes that are missing or harm,"
    " what was left behind in rows, what replicas report. Reads, and writes and locks nothing."
    " Exit code 1: something is BAD.",
    lambda insight, _: insight.findings(),
)


# ---------------------------------------------------------------- actions


LASTS_MAX: Final = timedelta(days=366)
_LASTS: Final = re.compile(r"(\d{1,6})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Signed(TypedDict):
    by: str
    reason: str


Acted = Callable[[Insight, argparse.Namespace, Signed], Awaitable[ActionDone]]


def _acts(description: str, act: Acted, *arguments: Argument) -> Command:
    def ask(insight: Insight, options: argparse.Namespace) -> Awaitable[ActionDone]:
        by = options.by or user_at_host()
        return act(insight, options, {"by": by, "reason": options.reason})

    return _asks(description, ask, *arguments, *SIGNED)


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


SIGNED: Final = (
    argument(
        "--reason",
        metavar="TEXT",
        required=True,
        type=_bounded("a reason", REASON_CHARS_MAX),
        help="why, for the audit log, and for those who look at the row",
    ),
    argument(
        "--by",
        metavar="NAME",
        type=_bounded("a name", PERSON_CHARS_MAX),
        help="who does it; else user@host of this terminal",
    ),
)
PIPELINE: Final = argument("pipeline", metavar="PIPELINE", help="the name of its class")
NOT_SEEN = (
    "--force breaks a lease that was shown: add --seen TOKEN, which rowlock explain shows, and"
    " rowlock release without --force"
)


async def _release(insight: Insight, options: argparse.Namespace, signed: Signed) -> ActionDone:
    if options.force and options.seen is None:
        raise AppError(NOT_SEEN)
    explanation = await insight.explain(options.model, options.id)
    row, lease = {"model": explanation.model, "row_id": explanation.row_id}, explanation.lease
    if lease is None:
        raise RowNotFound(**row)
    if options.seen not in {None, str(lease.token)}:
        raise LeaseChanged(**row, owner=lease.owner)
    return await insight.release(
        options.model, options.id, seen=lease, force=options.force, **signed
    )


add_release_arguments, run_release = _acts(
    "Free a row, and what its holder has locked for it, so that the next claim takes it. Exit"
    " code 4: there is no such row, its lease has not ended and nothing was forced, or it has"
    " changed meanwhile.",
    _release,
    *ROW,
    argument(
        "--force",
        action="store_true",
        help="also if the lease has not ended: what its holder computes is not written then",
    ),
    argument(
        "--seen",
        metavar="TOKEN",
        help="release this lease alone, which explain, or release without --force, has shown",
    ),
)


def _on_row(method: str, description: str) -> Command:
    async def act(insight: Insight, options: argparse.Namespace, signed: Signed) -> ActionDone:
        done: ActionDone = await getattr(insight, method)(options.model, options.id, **signed)
        return done

    return _acts(f"{description} Exit code 4: there is no such row.", act, *ROW)


add_park_arguments, run_park = _on_row(
    "park",
    "Set a row aside until it is put back. An attempt that is under way goes on, and the row stays"
    " parked behind it.",
)
add_unpark_arguments, run_unpark = _on_row(
    "unpark", "Put a parked row back, due now and with a clean count of attempts."
)
add_due_arguments, run_due = _on_row("make_due", "Make a row due now. A parked row stays parked.")
add_pause_arguments, run_pause = _acts(
    "Have a pipeline claim nothing, in any replica; what runs goes on. A restart keeps the"
    " pause. Exit code 2: this host cannot pause, and what to add. Exit code 4: it is paused"
    " already.",
    lambda insight, given, signed: insight.pause(
        given.pipeline, until=given.lasts, replace=given.replace, **signed
    ),
    PIPELINE,
    argument(
        "--for",
        dest="lasts",
        metavar="TIME",
        type=lasts,
        help="how long, such as 90s, 30m, 2h or 1d, by the database's clock; else until resume",
    ),
    argument(
        "--replace", action="store_true", help="end a pause that there is, and say whose it was"
    ),
)


add_resume_arguments, run_resume = _acts(
    "End the pause of a pipeline, and say whose it was.",
    lambda insight, given, signed: insight.resume(given.pipeline, **signed),
    PIPELINE,
)
