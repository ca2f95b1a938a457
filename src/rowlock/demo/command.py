"""``rowlock demo``: its options, and what it does with them."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from rowlock import ConfigurationError
from rowlock.demo.run import REPLICAS, Replica, replicas_on, tables_in, work_off
from rowlock.demo.verdict import DemoFinding, gather, judge, story_of, taken_over

ROWS, ROWS_MAX = 3_000, 20_000  # the verdict reads the whole history of the rows into memory
FILE_BYTES_MAX = 16 * 1024 * 1024  # larger files are left out: each worker reads a whole file
PASSED_OVER = "__pycache__"
"""Folders of this name are left out: Python itself writes into them meanwhile."""

MARKS = {True: "ok", False: "BAD", None: ""}

FILE_COLUMNS = 120  # width of the history of a row where the output is no terminal

HELD, BROKEN, MISUSED, INTERRUPTED = 0, 1, 2, 130  # exit codes


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Catalogue a folder: one row per file, worked on by several replicas, one of which is"
        " killed with -9 half-way. Exit code 0 only if every file has its one right result."
    )
    library = Path(sysconfig.get_path("stdlib"))
    parser.add_argument(
        "folder", nargs="?", type=Path, default=library, help="default: Python's standard library"
    )
    told = "files at most (default %(default)s)"
    parser.add_argument("--rows", type=_number_of_rows, default=ROWS, help=told)


def run_demo(options: argparse.Namespace) -> int:
    try:
        files = _files_of(options.folder, options.rows)
        with tempfile.TemporaryDirectory(
            prefix="rowlock-demo-", ignore_cleanup_errors=True
        ) as scratch:
            return asyncio.run(_run(options, files, Path(scratch)))
    except ConfigurationError as error:
        _complain(str(error.args[0]))
        return MISUSED
    except ChildProcessError as error:
        _complain(str(error))
        return BROKEN
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED


async def _run(options: argparse.Namespace, files: list[str], scratch: Path) -> int:
    with suppress(NotImplementedError):  # on Windows
        # SIGTERM is treated like Ctrl-C: the replicas are ended.
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, signal.raise_signal, signal.SIGINT
        )
    folder: Path = options.folder.absolute()
    print(
        f"{len(files):,} files of {folder}, a row for each in a file of SQLite, and {REPLICAS}"
        " replicas that work on the rows",
        flush=True,
    )
    async with (
        tables_in(scratch) as engine,
        replicas_on(folder, scratch=scratch) as replicas,
    ):
        await work_off(engine, replicas, files)
        await asyncio.gather(*(replica.end() for replica in replicas if replica.is_alive))
        async with engine.connect() as connection:
            evidence = await gather(connection, folder, files)
    for document in taken_over(evidence.changes)[:1]:
        columns = shutil.get_terminal_size((FILE_COLUMNS, 1)).columns
        print("\none of the rows whose leases had run out, as the database noted it:")
        for line in story_of(evidence.changes, document).splitlines():
            print(textwrap.fill(line, columns, subsequent_indent=" " * 26))
    return _conclude(
        judge(evidence, [replica.process.returncode for replica in replicas]), replicas
    )


def _conclude(findings: Sequence[DemoFinding], replicas: Sequence[Replica]) -> int:
    print()
    for finding in findings:
        print(f"{MARKS[finding.holds]:4} {finding.text}")
    broken = [finding for finding in findings if finding.holds is False]
    print("\nsomething does not hold" if broken else "\nall of it holds")
    if not broken:
        return HELD
    for replica in replicas:
        _complain(f"log of {replica}:\n{replica.log()}")
    return BROKEN


def _files_of(folder: Path, limit: int) -> list[str]:
    if not folder.is_dir():
        raise ConfigurationError(
            f"{folder} is no folder; name one that exists, or none for Python's standard library"
        )
    paths = (path for path in _walk(folder) if _is_wanted(path))
    files = [path.relative_to(folder).as_posix() for path in islice(paths, limit)]
    if not files:
        raise ConfigurationError(
            f"{folder} has no files that could be catalogued; name another folder"
        )
    return files


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - {PASSED_OVER})
        yield from (Path(place, name) for name in sorted(names))


def _is_wanted(path: Path) -> bool:
    """Whether it is a regular file of a reasonable size, with a name that a database can store."""
    try:
        str(path).encode()
        return path.is_file() and not path.is_symlink() and path.stat().st_size <= FILE_BYTES_MAX
    except (OSError, UnicodeEncodeError):
        return False


def _number_of_rows(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= ROWS_MAX):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {ROWS_MAX:,}")
    return int(text)


def _complain(text: str) -> None:
    print(f"rowlock demo: {text}", file=sys.stderr)
