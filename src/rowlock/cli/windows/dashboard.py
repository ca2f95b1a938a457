"""``rowlock dashboard``: the dashboard alone, in a browser of this machine."""

from __future__ import annotations

import argparse
import asyncio
import sys
import traceback
from importlib.util import find_spec
from typing import Final

from rowlock.cli.acting import user_at_host
from rowlock.cli.answering import (
    INTERRUPTED,
    MISUSED,
    WELL,
    add_app_arguments,
    message_of,
    opened,
)

HOST: Final = "127.0.0.1"
PORT: Final = 8017
PORT_MAX: Final = 65_535
NEEDED: Final = ("starlette", "jinja2", "sse_starlette", "uvicorn")
NO_DOCUMENT: Final = "it serves pages; for JSON: rowlock status --json, or /api/status of the page"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Serve the dashboard to a browser of this machine. The address that is printed has a key;"
        " who has it may look and act, under your name. Ctrl-C ends it."
    )
    parser.add_argument("--host", default=HOST, help="listen on this address; %(default)s")
    parser.add_argument(
        "--port", type=_port, default=PORT, help="listen on this port; 0: any; %(default)s"
    )
    parser.add_argument("--look-only", action="store_true", help="offer no actions")
    add_app_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Serve until it is interrupted, and return the exit code."""
    if options.json:
        print(f"rowlock dashboard: {NO_DOCUMENT}", file=sys.stderr)
        return MISUSED
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        print(
            f'rowlock: the dashboard needs {missing[0]}: pip install "rowlock[dashboard]"',
            file=sys.stderr,
        )
        return MISUSED
    try:
        asyncio.run(_serve(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - of the host's modules and database, whatever it is
        if options.traceback:
            traceback.print_exception(error, file=sys.stderr)
        print(f"rowlock: {message_of(error)}", file=sys.stderr)
        return MISUSED
    return WELL


async def _serve(options: argparse.Namespace) -> None:
    from rowlock.dashboard.serving import KeyedDashboard, serve  # noqa: PLC0415 - an extra

    async with opened(options) as insight:
        app = KeyedDashboard(insight, name=user_at_host(), may_act=not options.look_only)
        await serve(app, host=options.host, port=options.port, told=_tell)


def _tell(address: str) -> None:
    print(address, flush=True)


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > PORT_MAX:
        raise argparse.ArgumentTypeError(f"a port is 0 to {PORT_MAX}, not {text!r:.20}")
    return int(text)
