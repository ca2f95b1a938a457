"""Did it go well? Judged from the files, the database's own history, and the replicas' journals; the library is not asked.

`gather` collects the evidence, `judge` is a pure function over it. The recount shares no code with the pipeline.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import anyio.to_thread
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.demo.documents import DONE, NEW, UNREADABLE, Document
from rowlock.demo.history import times_applied
from rowlock.demo.journal import Journal
from rowlock.demo.play import DemoRun, Kill

EXAMPLES_MAX = 3
"""How many files are named where something is wrong."""

Result: TypeAlias = tuple[str, str | None, int | None, int | None, int | None]
"""Status, sha256, size, lines and words of a file."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the verdict. `holds`: None where there is nothing to hold."""

    name: str
    value: str
    holds: bool | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known when all replicas have ended.

    Attributes:
        files: what should be in the catalogue.
        ids: document by path.
        results: what is in the catalogue, by path.
        recounted: what should be, by path.
        applied: how often a result was written, by document.
        still_leased: documents that carry a lease though nobody is left.
        journals: what each replica noted, and whether it was killed.
        kill: the kill that we did; others may have killed too.
        wants_kill: whether there should have been one.
        failed: replicas that ended by themselves.
        rows_per_s: how fast the backlog was worked off.
    """

    files: Sequence[str]
    ids: Mapping[str, int]
    results: Mapping[str, Result]
    recounted: Mapping[str, Result]
    applied: Mapping[int, int]
    still_leased: Sequence[int] = ()
    journals: Sequence[tuple[Journal, bool]] = ()
    kill: Kill | None = None
    wants_kill: bool = False
    failed: Sequence[str] = ()
    rows_per_s: float = field(default=0.0)


async def gather(connection: AsyncConnection, folder: Path, play: DemoRun) -> Evidence:
    """Collect the evidence, and count every file again. Joins the caller's transaction."""
    columns = (Document.status, Document.sha256, Document.size, Document.lines, Document.words)
    recounted = await anyio.to_thread.run_sync(
        lambda: {path: recount(folder / path) for path in play.files}, abandon_on_cancel=True
    )
    documents = (await connection.execute(select(Document.path, Document.id, Document.lock_token, *columns))).all()
    return Evidence(
        files=play.files,
        ids={document.path: document.id for document in documents},
        results={document.path: document[3:] for document in documents},
        recounted=recounted,
        applied=await times_applied(connection),
        still_leased=[document.id for document in documents if document.lock_token is not None],
        journals=[(replica.journal(), replica.was_killed) for replica in play.replicas],
        kill=play.kill,
        wants_kill=play.kills,
        failed=[str(replica) for replica in play.replicas if replica.process.returncode and not replica.was_killed],
        rows_per_s=play.rows_per_s,
    )


def recount(path: Path) -> Result:
    """Count a file line by line: another way than the pipeline's."""
    digest, size, lines, words = hashlib.sha256(), 0, 0, 0
    try:
        with path.open("rb") as file:
            for line in file:
                digest.update(line)
                size += len(line)
                lines += line.endswith(b"\n")
                words += len(line.split())
    except OSError:
        return UNREADABLE, None, None, None, None
    return DONE, digest.hexdigest(), size, lines, words


def judge(evidence: Evidence) -> list[Finding]:
    """Return what there is to say, the promises first."""
    return [
        *_results(evidence),
        *_recovery(evidence),
        *_starts(evidence),
        Finding("backlog worked off at", f"{evidence.rows_per_s:,.0f} rows/s"),
    ]


def all_hold(findings: Sequence[Finding]) -> bool:
    """Whether every finding that could fail did not."""
    return all(finding.holds is not False for finding in findings)


def _results(evidence: Evidence) -> list[Finding]:
    files, results = evidence.files, evidence.results
    finished = [path for path in files if path in results and _is_finished(path, evidence)]
    lost = sorted(set(files).difference(finished))
    wrong = [path for path in finished if results[path] != evidence.recounted[path]]
    doubled = [path for path in evidence.ids if evidence.applied.get(evidence.ids[path], 0) > 1]
    unreadable = sum(results[path][0] == UNREADABLE for path in finished)
    note = f", {unreadable} of them unreadable" if unreadable else ""
    return [
        Finding("files", f"{len(files):,}{note}", holds=bool(files)),
        Finding("wrong results, by an independent recount", _count(wrong), holds=not wrong),
        Finding("double applies, by the database's history", _count(doubled), holds=not doubled),
        Finding("lost", _count(lost), holds=not lost),
        Finding("still leased at the end", _count(evidence.still_leased), holds=not evidence.still_leased),
    ]


def _is_finished(path: str, evidence: Evidence) -> bool:
    return evidence.results[path][0] != NEW and bool(evidence.applied.get(evidence.ids[path]))


def _recovery(evidence: Evidence) -> list[Finding]:
    findings = [Finding("replicas that failed", ", ".join(evidence.failed), holds=False)] if evidence.failed else []
    killed = sum(was_killed for _, was_killed in evidence.journals)
    if killed:
        orphans = orphaned_documents(evidence)
        recovered = {document_id for document_id in orphans if evidence.applied.get(document_id)}
        of_all = f"{len(recovered)} of {len(orphans)} rows that the dead held"
        findings.append(Finding("killed with -9", f"{killed} of {len(evidence.journals)} replicas", holds=True))
        findings.append(Finding("recovered after the kill", of_all, holds=recovered == orphans))
    elif evidence.wants_kill:
        findings.append(Finding("killed with -9", "nobody: all was over too soon; try more files", holds=False))
    return findings


def orphaned_documents(evidence: Evidence) -> set[int]:
    """Return the documents that killed replicas held and did not settle: begun, or leased and in their queue.

    A lease of the moment of the kill that no survivor ever began belongs to the dead. What nobody began again, and yet has a
    result, was settled by the dead replica itself.
    """
    alive = {start for journal, was_killed in evidence.journals if not was_killed for start in journal.starts}
    begun_by_living = {start.token for start in alive}
    begun = {
        start.token: start.document_id
        for journal, was_killed in evidence.journals
        if was_killed
        for start in journal.starts
    }
    leased = evidence.kill.leased if evidence.kill else {}
    of_dead = begun | {token: document for token, document in leased.items() if token not in begun_by_living}
    begun_again = {start.document_id for start in alive}
    return {document for document in of_dead.values() if document in begun_again or not evidence.applied.get(document)}


def _starts(evidence: Evidence) -> list[Finding]:
    times: Counter[int] = Counter()
    first_start: dict[int, float] = {}
    hinted: dict[int, float] = {}
    for journal, _ in evidence.journals:
        hinted |= journal.hinted
        for start in journal.starts:
            times[start.document_id] += 1
            first_start[start.document_id] = min(start.at, first_start.get(start.document_id, start.at))
    again = sum(count > 1 for count in times.values())
    waits = sorted(max(0.0, first_start[document] - at) for document, at in hinted.items() if document in first_start)
    return [
        Finding("started more than once", f"{again} (work runs at least once; its result is written once)"),
        Finding(f"pickup: commit and hint to start, {len(waits)} arrivals", _percentiles(waits)),
    ]


def _percentiles(waits_s: Sequence[float]) -> str:
    """Say the middle and the 99th of 100 of sorted waits."""
    if not waits_s:
        return "no arrivals"
    p50, p99 = (waits_s[min(len(waits_s) - 1, len(waits_s) * percent // 100)] for percent in (50, 99))
    return f"p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms"


def _count(wrong: Sequence[object]) -> str:
    if not wrong:
        return "0"
    examples = ", ".join(map(str, wrong[:EXAMPLES_MAX]))
    return f"{len(wrong):,} ({examples}{', …' if len(wrong) > EXAMPLES_MAX else ''})"
