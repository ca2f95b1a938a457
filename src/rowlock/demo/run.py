"""Runs the demo: makes its database, starts the replicas as processes, has them work off one row
for each file, and kills one of them half-way.

Not here: whether it went well (``command.py``).
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Column, Integer, Table, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from rowlock import UtcDateTime
from rowlock.clock import monotonic, sleep
from rowlock.demo.host import NEW, Base, CatalogueFiles, Document, open_engine

WATCHED = ("lock_token", "lock_owner", "lock_expires_at", "last_processed_at", "status")
_SIDES = [(side, name) for name in WATCHED for side in ("old", "new")]
CHANGES = Table(
    "changes",
    Base.metadata,
    Column("number", Integer, primary_key=True),
    Column("document_id", Integer, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    *(Column(f"{side}_{name}", Document.__table__.c[name].type) for side, name in _SIDES),
)
"""Every change of a document, noted by a trigger in the transaction that makes it: what is rolled
back leaves none, and those of one document are in the order of their commits.
"""
_INSERT = (
    f"INSERT INTO changes (document_id, at, {', '.join('_'.join(side) for side in _SIDES)})"  # noqa: S608 - names of ours
    " VALUES (NEW.id, strftime('%Y-%m-%d %H:%M:%f000', 'now'),"
    f" {', '.join('.'.join(side) for side in _SIDES)})"
)
_TRIGGER = f"CREATE TRIGGER note_change AFTER UPDATE ON documents BEGIN {_INSERT}; END"


@asynccontextmanager
async def tables_in(folder: Path) -> AsyncIterator[AsyncEngine]:
    """Create a database in `folder`, with the tables and the trigger, and yield an engine."""
    engine = open_engine(folder / "demo.db")
    try:
        await _create_tables(engine)
        yield engine
    finally:
        await engine.dispose()


async def _create_tables(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        await connection.run_sync(Base.metadata.create_all)
        await connection.exec_driver_sql(_TRIGGER)


REPLICAS = 3  # one is killed, and others take over
ANSWER_S_MAX = 60.0  # longest wait for a replica's answer; its first one comes when it has started
END_S_MAX = 15.0  # how long a replica may take to end by itself
STALL_S_MAX = 60.0
"""Without progress for so long the run ends, and rows that are not finished are lost."""
CHUNK_ROWS = 500  # rows that are inserted in one transaction: on SQLite no replica writes meanwhile
LOOK_S = 0.05
LINE_S = 1.0
LOG_CHARS_MAX = 4000


@dataclass(eq=False)
class Replica:
    number: int
    process: asyncio.subprocess.Process
    log_path: Path

    def __str__(self) -> str:
        return f"replica {self.number} (pid {self.process.pid})"

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    def log(self) -> str:
        return (
            self.log_path.read_text(encoding="utf-8", errors="replace")[-LOG_CHARS_MAX:].strip()
            or "(empty)"
        )

    async def ask(self, message: str) -> str:
        """Send one line and return the answer; empty if the replica is dead."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(ConnectionError):
            async with self._within(ANSWER_S_MAX, "gave no answer"):
                self.process.stdin.write(f"{message}\n".encode())
                await self.process.stdin.drain()
                return (await self.process.stdout.readline()).decode().strip()
        return ""

    @asynccontextmanager
    async def _within(self, seconds: float, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise ChildProcessError(f"{self} {what} within {seconds:g} s:\n{self.log()}") from None

    async def kill(self) -> None:
        """Kill it with -9 and wait until it is dead."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    async def end(self) -> None:
        """Close its input and wait until it has finished its work."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with self._within(END_S_MAX, "did not end"):
            await self.process.wait()


@asynccontextmanager
async def replicas_on(
    folder: Path, *, scratch: Path, count: int = REPLICAS
) -> AsyncIterator[list[Replica]]:
    """Start replicas on the database in `scratch` that catalogue `folder`, and end them all."""
    replicas: list[Replica] = []
    try:
        for number in range(1, count + 1):
            log_path = scratch / f"replica-{number}.log"
            with log_path.open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "rowlock.demo.host"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                )
            replicas.append(Replica(number, process, log_path))
        setup = json.dumps([str(scratch / "demo.db"), str(folder)])
        answers = await asyncio.gather(*(replica.ask(setup) for replica in replicas))
        for replica, answer in zip(replicas, answers, strict=True):
            if not answer:
                raise ChildProcessError(f"{replica} did not start:\n{replica.log()}")
        yield replicas
    finally:
        for replica in _alive(replicas):
            await replica.kill()


class BacklogProgress(NamedTuple):
    finished: int
    leased: int
    waiting: int


async def work_off(engine: AsyncEngine, replicas: Sequence[Replica], files: Sequence[str]) -> None:
    """Insert a row for each file, show the progress, and kill one replica half-way, until all are
    finished, none was for `STALL_S_MAX`, or all replicas are dead.
    """
    half = len(files) // 2
    paths, is_kill_due, finished = iter(files[:half]), True, 0
    began_at = moved_at = monotonic()
    shown_at = float("-inf")
    progress = await _look(engine)
    while finished < len(files) and monotonic() - moved_at < STALL_S_MAX and _alive(replicas):
        if is_kill_due and finished >= half:
            is_kill_due, paths = False, iter(files[half:])
            await kill_at_work(engine, replicas, list(islice(paths, CHUNK_ROWS)))
        elif progress.waiting < CHUNK_ROWS and (chunk := list(islice(paths, CHUNK_ROWS))):
            await _insert(engine, chunk)
        else:
            await sleep(LOOK_S)
        progress, now = await _look(engine), monotonic()
        if progress.finished != finished:
            finished, moved_at = progress.finished, now
        if now - shown_at >= LINE_S or finished == len(files):
            print(
                f"{now - began_at:5.1f} s {finished:6,} done {progress.leased:5,} leased"
                f" {progress.waiting:6,} waiting  {len(_alive(replicas))} replicas",
                flush=True,
            )
            shown_at = now


async def kill_at_work(
    engine: AsyncEngine, replicas: Sequence[Replica], paths: Sequence[str]
) -> None:
    """Insert a row for each of `paths`, and kill the replica with -9 that has most of them. All
    hold meanwhile: the rows could be finished before.
    """
    alive, counts = _alive(replicas), [0]
    await _ask(alive, "hold")
    await _insert(engine, paths)
    while _alive(alive) and not any(counts):
        await sleep(LOOK_S)
        counts = await _ask(alive, "hold")
    victim = alive[counts.index(max(counts))]
    await victim.kill()
    await _ask(_alive(alive), "go on")
    print(
        f"        {victim} is killed with -9; its leases run out in"
        f" {CatalogueFiles.lock_timeout} s",
        flush=True,
    )


async def _ask(replicas: Sequence[Replica], message: str) -> list[int]:
    answers = await asyncio.gather(*(replica.ask(message) for replica in replicas))
    return [int(answer or 0) for answer in answers]


async def _insert(engine: AsyncEngine, paths: Sequence[str]) -> None:
    async with AsyncSession(engine) as session, session.begin():
        session.add_all(Document(path=path) for path in paths)


def _alive(replicas: Sequence[Replica]) -> list[Replica]:
    return [replica for replica in replicas if replica.is_alive]


async def _look(engine: AsyncEngine) -> BacklogProgress:
    is_new, is_leased = Document.status == NEW, Document.lock_token.is_not(None)
    columns = (~is_new, is_new & is_leased, is_new & ~is_leased)
    counted = select(*(func.count().filter(column) for column in columns))
    async with engine.connect() as connection:
        return BacklogProgress._make((await connection.execute(counted)).one())
