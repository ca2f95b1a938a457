"""Commands that stay until they are interrupted: ``dashboard`` serves pages to a browser of this
machine, ``mcp`` lets an assistant ask over stdin and stdout, ``top`` draws the status on the
terminal.

Each needs an extra, which is imported when all else is known to be well. Each end of
``top`` leaves the terminal as it was: Textual restores it, and so does this module, since a shell
without echo is a trap at night.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from importlib.util import find_spec
from typing import Final

from rowlock.cli.answering import INTERRUPTED, MISUSED, WELL, argument, opened, run_to_end, takes
from rowlock.cli.commands import user_at_host
from rowlock.errors import describe

HOST: Final = "127.0.0.1"
PORT: Final = 8017
PORT_MAX: Final = 65_535
NEEDED: Final = ("starlette", "jinja2", "sse_starlette", "uvicorn")
NO_DOCUMENT: Final = "it serves pages; for JSON: rowlock status --json, or /api/status of the page"


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"a port is 0 to {PORT_MAX}, not {text!r:.20}")
    return int(text)


add_dashboard_arguments = takes(
    "Serve the dashboard to a browser of this machine. The address that is printed has a key;"
    " who has it may look and act, under your name. Ctrl-C ends it.",
    argument("--host", default=HOST, help="listen on this address; %(default)s"),
    argument("--port", type=_port, default=PORT, help="listen on this port; 0: any; %(default)s"),
    argument("--look-only", action="store_true", help="offer no actions"),
)


def run_dashboard(options: argparse.Namespace) -> int:
    if options.json:
        return _misused(f"dashboard: {NO_DOCUMENT}")
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        return _misused(f'dashboard: it needs {missing[0]}: pip install "rowlock[dashboard]"')
    return run_to_end(options, _serve)


def _misused(text: str) -> int:
    print(f"rowlock {text}", file=sys.stderr)
    return MISUSED


async def _serve(options: argparse.Namespace) -> int:
    from rowlock.dashboard.dashboard import KeyedDashboard, serve  # noqa: PLC0415 - an extra

    async with opened(options) as insight:
        app = KeyedDashboard(insight, name=user_at_host(), may_act=not options.look_only)
        await serve(app, host=options.host, port=options.port, told=partial(print, flush=True))
    return WELL


NEEDS_EXTRA = 'it needs an extra: python -m pip install "rowlock[mcp]"'


add_mcp_arguments = takes(
    "Answer questions of an assistant by the Model Context Protocol, on stdin and stdout, until"
    " it goes away. No tool writes. Exit code 2: there is no app, or the extra is missing."
)


def run_mcp(options: argparse.Namespace) -> int:
    if find_spec("mcp") is None:
        return _misused(f"mcp: {NEEDS_EXTRA}")
    return run_to_end(options, _served)


async def _served(options: argparse.Namespace) -> int:
    # What the host's modules print would be taken for answers.
    with redirect_stdout(sys.stderr):
        app = opened(options)
        insight = await app.__aenter__()
    try:
        from rowlock.assistants import serve  # noqa: PLC0415 - it needs an extra

        await serve(insight, on_broken=_end)
    finally:
        await app.__aexit__(None, None, None)
    return WELL


def _end(error: OSError) -> None:
    """End at once: a thread waits for the next question, and nothing can wake it."""
    is_gone = isinstance(error, BrokenPipeError)
    if not is_gone:
        print(f"rowlock mcp: nothing can be written: {describe(error)}", file=sys.stderr)
    os._exit(WELL if is_gone else MISUSED)


ENDED_BY: Final = {"SIGINT": INTERRUPTED, "SIGTERM": 143, "SIGHUP": 129}
"""Exit codes of signals: 128 and their number, as shells have it."""
INSTEAD: Final = "rowlock status --watch 2"


add_top_arguments = takes(
    "Show the status, what is longest at work and what is wrong, every 2 s. Looks and never"
    " acts. Keys: r refresh, e explain, ? help, q quit. Exit code 2: this is no terminal."
)


def run_top(options: argparse.Namespace) -> int:
    trouble = why_not(options)
    if trouble:
        return _misused(f"top: {trouble}")
    if options.no_colour:
        os.environ["NO_COLOR"] = "1"
    # A size that was exported stays the same when the window changes, and textual would heed it.
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    with terminal_restored(), logs_silenced():
        return run_to_end(options, _shown)


def why_not(options: argparse.Namespace) -> str:
    """Return why nothing can be drawn here, and what to do instead; empty if it can."""
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
    """Keep log lines out of the picture, which shows errors itself."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


async def _shown(options: argparse.Namespace) -> int:
    from rowlock.cli.top import TopApp  # noqa: PLC0415 - textual is an extra

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
