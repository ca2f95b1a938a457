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

from rowlock.cli.answering import add_app_arguments, answered, failed, watched
from rowlock.errors import AppError
from rowlock.insight.actions import ActionDone
from rowlock.insight.claim_plan import PipelineView
from rowlock.insight.explanation import Explanation
from rowlock.insight.insight import Insight
from rowlock.insight.listing import PAGE_ROWS, PAGE_ROWS_MAX
from rowlock.insight.migrations import PERSON_CHARS_MAX, REASON_CHARS_MAX
from rowlock.insight.questions import ListedState
from rowlock.insight.status import Status
from rowlock.insight.steering import LeaseChanged, RowNotFound
from rowlock.insight.timeline import ENTRIES_MAX

# ---------------------------------------------------------------- questions


WATCH_S_MIN: Final = 1.0
WATCH_S_MAX: Final = 3600.0
STATUS_WITHIN: Final = timedelta(seconds=5)
"""After that long no further pipeline is asked: half of what a command has for its answer."""


async def status_in_time(insight: Insight) -> Status:
    """Return the status, of as many pipelines as a command has time for."""
    return await insight.status(within=STATUS_WITHIN)


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say whether anything waits too long: what is due, leased and parked for each pipeline, and"
        " who runs it. Counts read at most some 10,000 rows. Exit code 1: a person is needed."
    )
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        type=_seconds,
        help="look again every so many seconds, until it is interrupted; where the output is no"
        " terminal, one answer follows the other",
    )
    add_app_arguments(parser)


def run_status(options: argparse.Namespace) -> int:
    if options.watch is not None:
        return watched(options, status_in_time, every_s=options.watch)
    return answered(options, status_in_time)


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


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say why a row waits, or who works on it. Reads one row, writes and locks nothing. Exit"
        " code 1: a person is needed; 4: there is no such row."
    )
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="the class of the row, or its table"
    )
    parser.add_argument("id", metavar="ID", nargs="?", help="the key of the row")
    parser.add_argument(
        "--pipeline", metavar="NAME", help="a pipeline as a whole, instead of a row"
    )
    parser.add_argument(
        "--plan", action="store_true", help="with --pipeline: how the database reads a claim"
    )
    add_app_arguments(parser)


def run_explain(options: argparse.Namespace) -> int:
    async def ask(insight: Insight) -> Explanation | PipelineView:
        check_words(options)
        if options.pipeline is None:
            return await insight.explain(options.model, options.id)
        return replace(await insight.explain_pipeline(options.pipeline), shows_plan=options.plan)

    return answered(options, ask)


def check_words(options: argparse.Namespace) -> None:
    """Raise AppError unless either a row or a pipeline is named."""
    names_row = options.model is not None and options.id is not None
    if options.pipeline is not None and options.model is not None:
        raise AppError("name a row or a pipeline: explain MODEL ID, or explain --pipeline NAME")
    if options.pipeline is None and (not names_row or options.plan):
        raise AppError("explain what? explain MODEL ID, or explain --pipeline NAME [--plan]")


def add_timeline_arguments(parser: argparse.ArgumentParser) -> None:
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


def run_timeline(options: argparse.Namespace) -> int:
    return answered(
        options, lambda insight: insight.timeline(options.model, options.id, limit=options.limit)
    )


PLAN_WITHIN_S: Final = 600.0


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run process for rows and print what would come of each; nothing is written, and no"
        " pipeline works on them meanwhile. Only for pipelines that say rehearsable = True: what"
        " process does to other systems is done. Exit code 1: a row would be retried or parked;"
        " 4: a row is not there, or it is held."
    )
    parser.add_argument("pipeline", metavar="PIPELINE", help="its name")
    parser.add_argument("ids", metavar="ID", nargs="+", help="keys of rows")
    add_app_arguments(parser)


def run_plan(options: argparse.Namespace) -> int:
    return answered(
        options,
        lambda insight: insight.rehearse(options.pipeline, options.ids),
        within_s=PLAN_WITHIN_S,
    )


def add_rows_arguments(parser: argparse.ArgumentParser) -> None:
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


def run_rows(options: argparse.Namespace) -> int:
    return answered(
        options,
        lambda insight: insight.rows(
            options.pipeline, options.state, after=options.after, limit=options.limit
        ),
    )


def add_replicas_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the replicas, as they say themselves in the table rowlock_replicas. Without that"
        " table there is no answer."
    )
    add_app_arguments(parser)


def run_replicas(options: argparse.Namespace) -> int:
    return answered(options, Insight.replicas)


def add_check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say what is to be mended in the database: columns and indexes that are missing or harm,"
        " what was left behind in rows, what replicas report. Reads, and writes and locks nothing."
        " Exit code 1: something is BAD."
    )
    add_app_arguments(parser)


def run_check(options: argparse.Namespace) -> int:
    return answered(options, Insight.findings)


# ---------------------------------------------------------------- actions


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
