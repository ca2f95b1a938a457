"""``rowlock demo``: its options, and what it does with them; and did it go well? That is judged
from the files and from what the database noted by itself; the library is not asked.

`gather` collects the evidence, `judge` is a pure function over it. The second count shares no code
with the pipeline.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import anyio.to_thread
from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import ConfigurationError
from rowlock.demo.host import DONE, NEW, UNREADABLE, Document
from rowlock.demo.run import CHANGES, REPLICAS, Replica, replicas_on, tables_in, work_off

EXAMPLES_MAX = 3

Result: TypeAlias = tuple[str, str | None, int | None]  # status, sha256 and lines of a file
Change: TypeAlias = Row[Any]  # a row of `CHANGES`


@dataclass(frozen=True, slots=True)
class DemoFinding:
    """One line of the verdict; `holds` is None if there is no promise in it."""

    text: str
    holds: bool | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known when all replicas have ended, by the paths of the files."""

    expected: Mapping[str, Result]
    results: Mapping[str, Result]
    times_written: Mapping[str, int]
    locked: Sequence[str]
    changes: Sequence[Change]


async def gather(connection: AsyncConnection, folder: Path, files: Sequence[str]) -> Evidence:
    """Collect the evidence, and count every file again. Joins the caller's transaction."""
    expected = await anyio.to_thread.run_sync(
        lambda: {path: count_again(folder / path) for path in files}, abandon_on_cancel=True
    )
    rows = (await connection.execute(select(Document.__table__))).all()
    changes = (await connection.execute(select(CHANGES).order_by(CHANGES.c.number))).all()
    written = Counter(
        change.document_id
        for change in changes
        if change.old_last_processed_at != change.new_last_processed_at
    )
    return Evidence(
        expected,
        results={row.path: (row.status, row.sha256, row.lines) for row in rows},
        times_written={row.path: written[row.id] for row in rows},
        locked=[
            row.path
            for row in rows
            if (row.lock_token, row.lock_owner, row.lock_expires_at) != (None, None, None)
        ],
        changes=changes,
    )


def count_again(path: Path) -> Result:
    """Count a file line by line: another way than the pipeline's."""
    digest, lines = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            for line in file:
                digest.update(line)
                lines += line.endswith(b"\n")
    except OSError:
        return UNREADABLE, None, None
    return DONE, digest.hexdigest(), lines


def judge(evidence: Evidence, exit_codes: Sequence[int | None]) -> list[DemoFinding]:
    """Return findings; a negative exit code is the number of a signal."""
    expected, results, changes = evidence.expected, evidence.results, evidence.changes
    finished = {
        path for path, count in evidence.times_written.items() if count and results[path][0] != NEW
    }
    wrong = [path for path in finished if results[path] != expected.get(path)]
    twice = [path for path, count in evidence.times_written.items() if count > 1]
    unreadable = sum(results[path][0] == UNREADABLE for path in finished)
    note = f", {unreadable:,} of them as unreadable" if unreadable else ""
    seized = [
        change.document_id for change in changes if _is_takeover(change) and not _had_ended(change)
    ]
    leases = f"live leases taken, in {len(changes):,} changes noted by the database: {len(seized)}"
    return [
        DemoFinding(f"files in the catalogue: {len(finished):,}{note}", holds=bool(finished)),
        _none(expected.keys() - finished, "files lost"),
        _none(wrong, "results wrong, by a second count"),
        _none(twice, "results written twice"),
        _none(evidence.locked, "files still locked"),
        DemoFinding(leases, holds=not seized),
        *_of_replicas(exit_codes, len(taken_over(changes))),
    ]


def taken_over(changes: Sequence[Change]) -> list[int]:
    """Return the documents that another replica leased when a lease had run out."""
    return [change.document_id for change in changes if _is_takeover(change) and _had_ended(change)]


def story_of(changes: Sequence[Change], document: int) -> str:
    return "\n".join(_line(change) for change in changes if change.document_id == document)


def _line(change: Change) -> str:
    words = []
    if change.new_lock_token is None:
        words += ["freed"] * (change.old_lock_token is not None)
    elif change.old_lock_expires_at != change.new_lock_expires_at:
        ends = _clock(change.new_lock_expires_at)
        words.append(
            f"lease ends {ends} instead of {_clock(change.old_lock_expires_at)}"
            if change.old_lock_token == change.new_lock_token
            else f"taken by {change.new_lock_owner} ({change.new_lock_token.hex[:8]}) until {ends}"
        )
    if change.old_status != change.new_status:
        words.append(f"status {change.old_status!r} -> {change.new_status!r}")
    return f"  {change.number:>6} {_clock(change.at)}  {', '.join(words)}"


def _clock(time: datetime) -> str:
    return f"{time:%H:%M:%S.%f}"


def _is_takeover(change: Change) -> bool:
    if change.old_lock_token is None or change.new_lock_token is None:
        return False
    # A claim that counts a death writes the count into its own token, and leaves the end as it is.
    return bool(
        change.old_lock_token != change.new_lock_token
        and change.old_lock_expires_at != change.new_lock_expires_at
    )


def _had_ended(change: Change) -> bool:
    return bool(change.old_lock_expires_at <= change.at)


def _of_replicas(exit_codes: Sequence[int | None], taken_over: int) -> Iterator[DemoFinding]:
    killed = sum(code is not None and code < 0 for code in exit_codes)
    if failed := sum(code is not None and code > 0 for code in exit_codes):
        yield DemoFinding(f"replicas that failed: {failed} of {len(exit_codes)}", holds=False)
    if killed:
        yield DemoFinding(f"replicas killed with -9: {killed} of {len(exit_codes)}", holds=True)
        text = f"rows taken over when their leases had run out: {taken_over:,}"
        yield DemoFinding(text, holds=bool(taken_over) or None)


def _none(found: Iterable[str], text: str) -> DemoFinding:
    paths = sorted(found)
    examples = ", ".join(paths[:EXAMPLES_MAX]) + (", …" if len(paths) > EXAMPLES_MAX else "")
    return DemoFinding(
        f"{text}: {len(paths):,}" + (f" ({examples})" if paths else ""), holds=not paths
    )


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
    async with tables_in(scratch) as engine, replicas_on(folder, scratch=scratch) as replicas:
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
