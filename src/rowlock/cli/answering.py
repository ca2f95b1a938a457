"""What all commands about rows share: their options, their exit codes, and how an answer or an
error is printed, once or again and again.

The one idea: stdout has the answer and nothing else, as text or as one JSON document, so that it
can be piped. The exit code says the rest. Where an answer is watched, a look is never begun before
the last one has ended, and a database that is away is an answer, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from math import ceil
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from sqlalchemy.exc import SQLAlchemyError

from rowlock.cli import handed_over, may_embellish, print_text, width, write_json
from rowlock.clock import sleep
from rowlock.errors import (
    AppError,
    ConfigurationError,
    HostCodeError,
    LockWaitTimeout,
    RowlockError,
    TransactionTimeout,
    describe,
)
from rowlock.insight.apps import app_named, imported, insight_of_app
from rowlock.insight.insight import Insight
from rowlock.insight.insight_dialect import is_locked_out
from rowlock.insight.shown import shown
from rowlock.insight.steering import NotPausable
from rowlock.spi import is_outage
from rowlock.tasks import as_ordinary

WELL: Final = 0
NEEDS_PERSON: Final = 1
MISUSED: Final = 2
NO_DATABASE: Final = 3
NO_SUCH_ROW: Final = 4
INTERRUPTED: Final = 130  # exit codes
ERROR_SCHEMA: Final = "rowlock.error/1"
ANSWER_WITHIN_S: Final = 10.0
"""Longest time in which an imported app is opened, then in which it answers, and then in which it
is closed, each.
"""
ENDS_WITHIN_S: Final = 5.0
"""Code of the host that goes on for longer behind the answer is left behind."""
ENDING_LOOKS: Final = 10
_IS_THERE: Final = ("is_there", "is_known", "is_complete")  # what answers about rows say of these


class CommandAnswer(Protocol):
    @property
    def needs_person(self) -> bool: ...

    def text(self, width: int = ...) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


Ask = Callable[[Insight], Awaitable[CommandAnswer]]


Argument = tuple[tuple[str, ...], dict[str, Any]]
AddArguments = Callable[[argparse.ArgumentParser], None]


def argument(*names: str, **how: Any) -> Argument:
    return names, how


APP: Final = (
    argument(
        "--app",
        metavar="MODULE:ATTRIBUTE",
        help="where the pipelines are; else ROWLOCK_APP, or [tool.rowlock] app in pyproject.toml",
    ),
    argument(
        "--database", metavar="URL", help="another database than the app's; else ROWLOCK_DATABASE"
    ),
    argument("--json", action="store_true", help="print one JSON document"),
    argument(
        "--no-colour", "--no-color", action="store_true", help="print plain text on terminals, too"
    ),
    argument("--traceback", action="store_true", help="print the traceback of an error, too"),
)


def takes(description: str, *arguments: Argument) -> AddArguments:
    """Return what describes a command about rows, and adds its arguments and those of all."""

    def add(parser: argparse.ArgumentParser) -> None:
        parser.description = description
        group = parser.add_argument_group("where, and how it is printed")
        for target, added in ((parser, arguments), (group, APP)):
            for names, how in added:
                target.add_argument(*names, **how)

    return add


def answered(options: argparse.Namespace, ask: Ask, *, within_s: float = ANSWER_WITHIN_S) -> int:
    runner, before = asyncio.Runner(), frozenset(threading.enumerate())
    try:
        answer = runner.run(_asked(options, ask, within_s))
    except KeyboardInterrupt:
        code = INTERRUPTED
    # Of the host's modules and database, whatever it is; the code of an exit would be an answer.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        code = failed(options, as_ordinary(error))
    else:
        code = _printed(options, answer)
    _close(runner, before, code)
    return code


def _close(runner: asyncio.Runner, before: frozenset[threading.Thread], code: int) -> None:
    """Close the event loop; end the process if host code keeps it beyond `ENDS_WITHIN_S`."""
    is_closed, never = threading.Event(), threading.Event()

    def exit_if_kept() -> None:
        # In parts: a machine that stands still for as long is no reason.
        for _ in range(ENDING_LOOKS):
            never.wait(ENDS_WITHIN_S / ENDING_LOOKS)
            begun = {one for one in threading.enumerate() if not one.daemon} - before
            if is_closed.is_set() and not begun:
                return
        print("rowlock: code of the app goes on, and is left behind", file=sys.stderr)
        # Whatever runs by now ignores its cancellation, or is a thread for which Python waits.
        os._exit(code)

    threading.Thread(target=exit_if_kept, name="rowlock: command ends", daemon=True).start()
    with suppress(KeyboardInterrupt):
        runner.close()
    is_closed.set()


def _printed(options: argparse.Namespace, answer: CommandAnswer) -> int:
    def write() -> None:
        if options.json:
            write_json(answer.to_dict())
        else:
            print_text(answer.text(width()), is_plain=options.no_colour)

    code = NEEDS_PERSON if answer.needs_person else WELL
    if not all(getattr(answer, name, True) for name in _IS_THERE):
        code = NO_SUCH_ROW
    return handed_over(write, code, unwritten=MISUSED)


async def _asked(options: argparse.Namespace, ask: Ask, within_s: float) -> CommandAnswer:
    answer: CommandAnswer | None = None
    loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
    try:
        async with limit, opened(options) as insight:
            limit.reschedule(loop.time() + within_s)
            answer = await ask(insight)
            limit.reschedule(loop.time() + ANSWER_WITHIN_S)
    except Exception as error:
        if answer is None:
            if limit.expired() and within_s > ANSWER_WITHIN_S:
                raise AppError(f"not done within {within_s:g} s: take fewer rows") from error
            raise
        print(f"rowlock: the app did not close: {describe(error)}", file=sys.stderr)
    assert answer is not None
    return answer


@asynccontextmanager
async def opened(options: argparse.Namespace) -> AsyncIterator[Insight]:
    """Import the app, however long that takes, and provide its `Insight` during the block."""
    name, folder, project = app_named(options.app, os.environ, Path.cwd())
    if project is not None:
        print(f"rowlock: the app is {shown(name)}, named by {project}", file=sys.stderr)
    app = insight_of_app(imported(name, folder), name, database=options.database)
    limit = asyncio.timeout(ANSWER_WITHIN_S)
    async with AsyncExitStack() as stack:
        try:
            async with limit:
                insight = await stack.enter_async_context(app)
        except OSError as error:  # of its files and services, and not of the database alone
            why = f"within {ANSWER_WITHIN_S:g} s" if limit.expired() else f"({describe(error)})"
            raise AppError(f"the app {shown(name)} was not open {why}") from error
        yield insight


def failed(options: argparse.Namespace, error: Exception) -> int:
    """Print an error, in one line or as JSON, and return the exit code."""
    code = _code_of(error)
    if options.traceback:
        traceback.print_exception(error, file=sys.stderr)
    if options.json:
        write_json(failure_document(error))
    else:
        print(f"rowlock: {message_of(error)}", file=sys.stderr)
    return code


def failure_document(error: Exception) -> dict[str, Any]:
    slug = error.slug if isinstance(error, RowlockError) else type(error).__name__
    return {
        "schema": ERROR_SCHEMA,
        "error": slug,
        "message": message_of(error),
        "exit_code": _code_of(error),
    }


def message_of(error: Exception) -> str:
    if isinstance(error, TransactionTimeout | TimeoutError):
        return (
            f"no answer from the database within {ANSWER_WITHIN_S:g} s: it is away, or a"
            " transaction keeps what was asked for; look at rowlock status"
        )
    text = str(error) if isinstance(error, RowlockError) else describe(error)
    prefix = "no database: " if _code_of(error) == NO_DATABASE else ""
    if is_locked_out(error):
        prefix = "another transaction keeps the database locked: "
    return prefix + shown(text, 1000)


def _code_of(error: Exception) -> int:
    if isinstance(error, LockWaitTimeout):  # the database has answered: another holder has the row
        return NO_SUCH_ROW
    if isinstance(error, TransactionTimeout | TimeoutError | OSError) or is_outage(error):
        return NO_DATABASE
    if isinstance(error, ConfigurationError | HostCodeError | NotPausable | SQLAlchemyError):
        return MISUSED
    return NO_SUCH_ROW if isinstance(error, RowlockError) else MISUSED


# ---------------------------------------------------------------- again and again


HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"
LINES_MIN: Final = 2


def watched(options: argparse.Namespace, ask: Ask, *, every_s: float) -> int:
    """Ask every `every_s` seconds and print each answer, until the process is interrupted."""
    return run_to_end(options, lambda options: _watch(options, ask, every_s))


def run_to_end(
    options: argparse.Namespace, main: Callable[[argparse.Namespace], Coroutine[Any, Any, int]]
) -> int:
    """Run a command that stays until it is interrupted, and return the exit code."""
    try:
        return asyncio.run(main(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who reads has seen enough; what Python would still write to it is lost.
        sys.stdout = None
        return WELL
    except Exception as error:  # noqa: BLE001 - any of the host's modules and database
        return failed(options, error)


async def _watch(options: argparse.Namespace, ask: Ask, every_s: float) -> NoReturn:
    async with opened(options) as insight:
        while True:
            _print(options, await _look(insight, ask))
            await sleep(every_s)


async def _look(insight: Insight, ask: Ask) -> CommandAnswer | Exception:
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await ask(insight)
    except Exception as error:  # noqa: BLE001 - the next look may fare better
        return error


def _print(options: argparse.Namespace, answer: CommandAnswer | Exception) -> None:
    if options.json:
        document: dict[str, Any] = (
            failure_document(answer) if isinstance(answer, Exception) else answer.to_dict()
        )
        print(json.dumps(document, ensure_ascii=False), flush=True)
        return
    is_drawn = may_embellish() and not options.no_colour
    text = f"? {message_of(answer)}" if isinstance(answer, Exception) else answer.text(width())
    if is_drawn:
        print(HOME_AND_CLEAR + _cut(text), end="", flush=True)
    else:
        print(f"{text}\n", flush=True)


def _cut(text: str) -> str:
    """Return as many lines as the terminal has: one more would scroll the first away."""
    size = shutil.get_terminal_size((80, 24))
    left, kept = max(LINES_MIN, size.lines - 1), list[str]()
    lines = text.split("\n")
    for line in lines:
        left -= max(1, ceil(len(line) / size.columns))
        if left < (1 if len(kept) < len(lines) - 1 else 0):
            return "\n".join([*kept, f"… {len(lines) - len(kept)} lines more"])
        kept.append(line)
    return text
