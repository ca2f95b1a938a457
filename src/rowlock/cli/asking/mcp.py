"""``rowlock mcp``: lets an assistant ask, over stdin and stdout."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec

from rowlock.cli.answering import INTERRUPTED, MISUSED, WELL, add_app_arguments, failed, opened
from rowlock.errors import describe

NEEDS_EXTRA = 'it needs an extra: python -m pip install "rowlock[mcp]"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `run` reads."""
    parser.description = (
        "Answer questions of an assistant by the Model Context Protocol, on stdin and stdout, until"
        " it goes away. No tool writes. Exit code 2: there is no app, or the extra is missing."
    )
    add_app_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Serve, and return the exit code."""
    if find_spec("mcp") is None:
        print(f"rowlock mcp: {NEEDS_EXTRA}", file=sys.stderr)
        return MISUSED
    try:
        asyncio.run(_served(options))
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - of the host's modules and database, whatever it is
        return failed(options, error)
    return WELL


async def _served(options: argparse.Namespace) -> None:
    # What the host's modules print would be taken for answers.
    with redirect_stdout(sys.stderr):
        app = opened(options)
        insight = await app.__aenter__()
    try:
        from rowlock.assistants.server import serve  # noqa: PLC0415 - it needs an extra

        await serve(insight, on_broken=_end)
    finally:
        await app.__aexit__(None, None, None)


def _end(error: OSError) -> None:
    """End at once: a thread waits for the next question, and nothing can wake it."""
    is_gone = isinstance(error, BrokenPipeError)
    if not is_gone:
        print(f"rowlock mcp: nothing can be written: {describe(error)}", file=sys.stderr)
    os._exit(WELL if is_gone else MISUSED)
