"""``rowlock demo``: its options, and what it does with them."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rowlock import ConfigurationError
from rowlock.demo.database import address_in, tables_at
from rowlock.demo.display import display
from rowlock.demo.files import PASSED_OVER, find_files, standard_library
from rowlock.demo.play import Audience, DemoRun
from rowlock.demo.processes import replicas_on
from rowlock.demo.verdict import all_hold, gather, judge

ROWS, ROWS_MAX = 3_000, 100_000
REPLICAS, REPLICAS_MAX = 3, 8
FILES_FOR_A_KILL_MIN = 200
"""With fewer files all is over before anybody can be killed."""

HELD, BROKEN, MISUSED, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what `run` wants to know."""
    parser.description = (
        "Catalogue a folder: one row per file, worked on by several replicas, one of which is killed with -9 half-way. "
        "Exit code 0 only if every file has its one right result."
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        default=standard_library(),
        help=f"default: Python's standard library; passed over: {', '.join(sorted(PASSED_OVER))}",
    )
    parser.add_argument("--rows", type=_between(1, ROWS_MAX), default=ROWS, help="files at most (default %(default)s)")
    parser.add_argument("--replicas", type=_between(1, REPLICAS_MAX), default=REPLICAS, help="default %(default)s")
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="let all replicas live")
    parser.add_argument("--database", metavar="URL", help="a PostgreSQL server; a schema is created there and dropped")
    parser.add_argument("--keep", action="store_true", help="keep the database, journals and logs")


def run(options: argparse.Namespace) -> int:
    """Run the demo and return its exit code."""
    try:
        files = _files_of(options.folder, options.rows)
        with _scratch_folder(keep=options.keep) as scratch:
            return asyncio.run(_run(options, files, scratch))
    except ConfigurationError as error:
        _complain(str(error.args[0]))
        return MISUSED
    except ChildProcessError as error:
        _complain(str(error))
        return BROKEN
    except (KeyboardInterrupt, asyncio.CancelledError):
        _complain("interrupted")
        return INTERRUPTED


async def _run(options: argparse.Namespace, files: list[str], scratch: Path) -> int:
    _end_in_order_when_terminated()
    folder: Path = options.folder.absolute()
    address = address_in(scratch, options.database)
    with display() as audience:
        audience.say(f"{len(files):,} files of {folder}, {options.replicas} replicas, database: {address}")
        kills = _kills(options, len(files), audience)
        async with tables_at(address, keep=options.keep) as engine:
            async with replicas_on(address, folder, count=options.replicas, files=scratch) as replicas:
                play = DemoRun(engine, replicas, files, audience, kills=kills)
                await play.run()
                await asyncio.gather(*(replica.end() for replica in replicas if replica.is_alive))
            audience.say("every file is counted again, to compare")
            async with engine.connect() as connection:
                findings = judge(await gather(connection, folder, play))
        audience.conclude(findings)
        if options.keep:
            audience.say(f"kept: {address}; journals and logs: {scratch}")
    if all_hold(findings):
        return HELD
    for replica in replicas:
        _complain(f"log of {replica}:\n{replica.log() or '(empty)'}")
    return BROKEN


def _files_of(folder: Path, limit: int) -> list[str]:
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is no folder; name one that exists, or none for Python's standard library")
    files = find_files(folder, limit)
    if not files:
        raise ConfigurationError(f"{folder} has no files that could be catalogued; name another folder")
    return files


def _kills(options: argparse.Namespace, files: int, audience: Audience) -> bool:
    if options.kill and options.replicas == 1:
        audience.say("nobody is killed: nobody else would be left")
    elif options.kill and files < FILES_FOR_A_KILL_MIN:
        audience.say(f"nobody is killed: with fewer than {FILES_FOR_A_KILL_MIN} files all is over too soon")
    else:
        return bool(options.kill)
    return False


def _between(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not (text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least:,} to {most:,}")
        return int(text)

    return number


@contextmanager
def _scratch_folder(*, keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="rowlock-demo-"))
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _end_in_order_when_terminated() -> None:
    """Treat SIGTERM like Ctrl-C, where the event loop can: the replicas are ended and the tables dropped."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError, RuntimeError):
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


def _complain(text: str) -> None:
    print(f"rowlock demo: {text}", file=sys.stderr)
