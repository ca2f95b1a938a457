"""``rowlock top``: the status as a picture that keeps itself new.

The one idea: whatever ends it, the terminal is as it was. Textual restores it; and because a shell
without echo is the last thing that somebody needs at night, so does this module.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Final

from rowlock.cli.answering import INTERRUPTED, MISUSED, add_app_arguments, failed, opened

ENDED_BY: Final = {"SIGINT": INTERRUPTED, "SIGTERM": 143, "SIGHUP": 129}
"""Exit codes of signals: 128 and their number, as shells have it."""
INSTEAD: Final = "rowlock status --watch 2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Show the status, what is longest at work and what is wrong, every 2 s. Looks and never"
        " acts. Keys: r refresh, e explain, ? help, q quit. Exit code 2: this is no terminal."
    )
    add_app_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Show it until somebody quits, and return the exit code."""
    trouble = why_not(options)
    if trouble:
        print(f"rowlock top: {trouble}", file=sys.stderr)
        return MISUSED
    if options.no_colour:
        os.environ["NO_COLOR"] = "1"
    # A size that was exported stays the same when the window changes, and textual would heed it.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    try:
        with terminal_restored(), logs_silenced():
            return asyncio.run(_shown(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - of the host's modules and database, whatever it is
        return failed(options, error)


def why_not(options: argparse.Namespace) -> str:
    """Return why nothing can be drawn here, and what can be done; empty if it can."""
    if options.json:
        return "it draws a picture; for JSON: rowlock status --json"
    # Textual reads keys from the first, and draws on the third.
    is_terminal = all(
        one is not None and one.isatty() for one in (sys.stdin, sys.stdout, sys.stderr)
    )
    if not is_terminal or os.environ.get("TERM", "dumb") in {"dumb", ""}:
        return f"it needs a terminal; without one: {INSTEAD}"
    if find_spec("textual") is None:
        return f'it needs an extra: python -m pip install "rowlock[cli]"; without it: {INSTEAD}'
    return ""


@contextmanager
def terminal_restored() -> Iterator[None]:
    """Have the settings of the terminal be as they were before, whatever happens within."""
    try:
        import termios  # noqa: PLC0415 - Windows has none
    except ImportError:
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is closed
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def logs_silenced() -> Iterator[None]:
    """Have no handler of the host's write a line into the picture; errors stand in it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


async def _shown(options: argparse.Namespace) -> int:
    from rowlock.cli.top.screen import TopApp  # noqa: PLC0415 - textual is an extra

    async with opened(options) as insight:
        app = TopApp(insight)
        with _signals_end(app.exit):
            code = await app.run_async(mouse=False)
        app.stop_looking()
        if app.failure is not None:
            raise app.failure
        return MISUSED if code is None else code


@contextmanager
def _signals_end(end: Callable[[int], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    known = {name: getattr(signal, name) for name in ENDED_BY if hasattr(signal, name)}
    try:
        for name, number in known.items():
            loop.add_signal_handler(number, end, ENDED_BY[name])
    except NotImplementedError:  # Windows: Ctrl-C is a key there, too
        known = {}
    try:
        yield
    finally:
        for number in known.values():
            loop.remove_signal_handler(number)
