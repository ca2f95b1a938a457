"""Did it go well? Judged from the files and from what the database noted by itself; the library is
not asked.

`gather` collects the evidence, `judge` is a pure function over it. The second count shares no code
with the pipeline. The notes are those of the historian of `rowlock.testing`, and its checker looks
in them for broken promises.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import anyio.to_thread
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.demo.host import DONE, NEW, UNREADABLE, Document
from rowlock.testing import Change, check, key_text, read_history, timeline

EXAMPLES_MAX = 3
"""How many files are named where something is wrong."""

Result: TypeAlias = tuple[str, str | None, int | None]
"""Status, sha256 and lines of a file."""


@dataclass(frozen=True, slots=True)
class DemoFinding:
    """One line of the verdict.

    Attributes:
        text: the line.
        holds: None if there is no promise in it.
        details: what is worth reading if it does not hold.
    """

    text: str
    holds: bool | None = None
    details: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known when all replicas have ended.

    Attributes:
        expected: the results of the second count, by path.
        results: those in the catalogue, by path.
        times_written: how often a result was written, by path.
        changes: what became of the rows, as the database noted it.
    """

    expected: Mapping[str, Result]
    results: Mapping[str, Result]
    times_written: Mapping[str, int]
    changes: Sequence[Change]


async def gather(connection: AsyncConnection, folder: Path, files: Sequence[str]) -> Evidence:
    """Collect the evidence, and count every file again. Joins the caller's transaction."""
    expected = await anyio.to_thread.run_sync(
        lambda: {path: count_again(folder / path) for path in files}, abandon_on_cancel=True
    )
    columns = (Document.path, Document.id, Document.status, Document.sha256, Document.lines)
    rows = (await connection.execute(select(*columns))).all()
    changes = await read_history(connection)
    written = Counter(change.key for change in changes if _is_result(change))
    return Evidence(
        expected,
        results={row.path: (row.status, row.sha256, row.lines) for row in rows},
        times_written={row.path: written[key_text(row.id)] for row in rows},
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
    """Return what the evidence says, and what the exit codes of the replicas do: a negative one
    is the number of a signal.
    """
    expected, results, changes = evidence.expected, evidence.results, evidence.changes
    finished = {
        path for path, count in evidence.times_written.items() if count and results[path][0] != NEW
    }
    wrong = [path for path in finished if results[path] != expected.get(path)]
    twice = [path for path, count in evidence.times_written.items() if count > 1]
    unreadable = sum(results[path][0] == UNREADABLE for path in finished)
    note = f", {unreadable:,} of them as unreadable" if unreadable else ""
    violations = [str(violation) for violation in check(changes, stopped=True)]
    promises = (
        f"promises broken, in {len(changes):,} changes that the database noted: {len(violations)}"
    )
    return [
        DemoFinding(f"files in the catalogue: {len(finished):,}{note}", holds=bool(finished)),
        _none(expected.keys() - finished, "files lost"),
        _none(wrong, "results wrong, by a second count"),
        _none(twice, "results written twice"),
        DemoFinding(promises, holds=not violations, details=violations),
        *_of_replicas(exit_codes, len(taken_over(changes))),
    ]


def taken_over(changes: Sequence[Change]) -> list[str]:
    """Return the keys of rows that another replica leased when a lease had run out."""
    return [change.key for change in changes if _is_takeover(change)]


def story_of(changes: Sequence[Change], key: str) -> str:
    """Return what happened to one row, one change a line."""
    return timeline(changes, Document.__tablename__, key)


def _is_result(change: Change) -> bool:
    before, after = change.before, change.after
    return (
        before is not None
        and after is not None
        and before.last_processed_at != after.last_processed_at
    )


def _is_takeover(change: Change) -> bool:
    before, after = change.before, change.after
    if before is None or after is None or before.lock_token is None or after.lock_token is None:
        return False
    return before.lock_token != after.lock_token


def _of_replicas(exit_codes: Sequence[int | None], taken_over: int) -> Iterator[DemoFinding]:
    killed = sum(code is not None and code < 0 for code in exit_codes)
    if failed := sum(code is not None and code > 0 for code in exit_codes):
        yield DemoFinding(f"replicas that failed: {failed} of {len(exit_codes)}", holds=False)
    if killed:
        yield DemoFinding(f"replicas killed with -9: {killed} of {len(exit_codes)}", holds=True)
        yield DemoFinding(
            f"rows taken over when their leases had run out: {taken_over:,}",
            holds=bool(taken_over) or None,
        )
    else:
        yield DemoFinding("no replica was killed: all was over too soon; try more files")


def _none(found: Iterable[str], text: str) -> DemoFinding:
    paths = sorted(found)
    examples = ", ".join(paths[:EXAMPLES_MAX]) + (", …" if len(paths) > EXAMPLES_MAX else "")
    return DemoFinding(
        f"{text}: {len(paths):,}" + (f" ({examples})" if paths else ""), holds=not paths
    )
