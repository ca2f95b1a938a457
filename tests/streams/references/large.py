"""One reference in its large form: real processes share the shards, one of them is killed half-way,
and the answer is compared with the recount.

The flow is paused while the events are added, so that the rate is that of the flow alone.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock.streams import Checkpoint, Streams, StreamStatus

from .declared import DECLARED
from .nexmark import Base
from .reference import Reference, Sessions, chunks
from .windows import TUMBLE_MS

ROOT: Final = Path(__file__).resolve().parents[3]
ROWS_PER_COMMIT: Final = 1_000
POLL_S: Final = 0.1
SETTLES_S: Final = 3 * TUMBLE_MS / 1_000
"""After so long at most all windows by the time of the steps are closed."""
FAST: Final[dict[str, Any]] = {"lock_timeout": 6, "fetch_delays": (0.1,), "poll_interval": 0.05}
NOTHING: Final = "nothing"
"""What a flow waits for that has done all rows."""


@dataclass(frozen=True)
class Layout:
    """How a reference is run.

    Attributes:
        shards: of the flow.
        steps: after how many states are written.
        step_rows: most rows of a step.
    """

    shards: int
    steps: int
    step_rows: int

    def declared(self, name: str) -> tuple[Streams, Reference]:
        streams = Streams(Base)
        checkpoint = Checkpoint(steps=self.steps)
        options = {**FAST, "shards": self.shards, "step_rows_max": self.step_rows}
        return streams, DECLARED[name](streams, checkpoint=checkpoint, **options)


@dataclass(frozen=True)
class Answer:
    """What came of a run.

    Attributes:
        rows: that the flow has read.
        seconds: from the first step to the last one.
        steps: how many there were.
        killed: how many shards the killed process held; None: none was killed.
        missing: how many results are missing.
        surplus: how many there are that should not be.
        results: how many there should be.
    """

    rows: int
    seconds: float
    steps: int
    killed: int | None
    missing: int
    surplus: int
    results: int


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Sessions]:
    engine = create_async_engine(url)
    try:
        yield async_sessionmaker(engine, expire_on_commit=False)
    finally:
        await engine.dispose()


@asynccontextmanager
async def replica(url: str, name: str, layout: Layout) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a replica in a process of its own; it is killed at the end if it still runs."""
    settings = [f"{each}={value}" for each, value in asdict(layout).items()]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.streams.references.replica", url, name, *settings),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def run(
    url: str, name: str, layout: Layout, *, events: int, processes: int, kill: bool
) -> Answer:
    _, reference = layout.declared(name)
    async with opened(url) as sessions, AsyncExitStack() as stack:
        async with sessions.begin() as session:
            await (await session.connection()).run_sync(Base.metadata.create_all)
        replicas = [
            await stack.enter_async_context(replica(url, name, layout)) for _ in range(processes)
        ]
        await _until_all_hold(sessions, reference, replicas[: layout.shards])
        async with sessions.begin() as session:
            await reference.flow.pause(session)
        supply = reference.supply
        for number, some in enumerate(chunks(list(supply.events(events)), ROWS_PER_COMMIT)):
            await supply.add(sessions, some, number)
        async with sessions.begin() as session:
            await reference.flow.resume(session)
            reference.flow.hint_after_commit(session)
        started = time.monotonic()
        killed = None
        rows = (await _status(sessions, reference)).lag_rows
        while not _is_done(status := await _status(sessions, reference)):
            if kill and killed is None and status.lag_rows <= rows // 2:
                killed = _held(status, replicas[0])
                replicas[0].kill()
            await asyncio.sleep(POLL_S)
        seconds = time.monotonic() - started
        missing, surplus, results = await _settled_difference(sessions, reference)
        return Answer(rows, seconds, status.next_step, killed, missing, surplus, results)


async def _until_all_hold(
    sessions: Sessions, reference: Reference, replicas: Sequence[asyncio.subprocess.Process]
) -> None:
    while True:
        status = await _status(sessions, reference)
        if all(_held(status, one) for one in replicas):
            return
        await asyncio.sleep(POLL_S)


def _held(status: StreamStatus, process: asyncio.subprocess.Process) -> int:
    """Return how many shards a process has; a replica's name ends with its pid."""
    return sum((one.replica or "").endswith(f":{process.pid}") for one in status.shards)


async def _status(sessions: Sessions, reference: Reference) -> StreamStatus:
    async with sessions() as session:
        return await reference.flow.status(session)


def _is_done(status: StreamStatus) -> bool:
    return status.text == NOTHING and status.lag_rows == 0 and status.frontier == status.next_step


async def _settled_difference(sessions: Sessions, reference: Reference) -> tuple[int, int, int]:
    """Compare, again and again as long as windows may be open."""
    ends = time.monotonic() + (SETTLES_S if reference.has_timers else 0)
    while True:
        missing, surplus, results = await reference.difference(sessions)
        if not (missing or surplus) or time.monotonic() >= ends:
            return missing.total(), surplus.total(), results
        await asyncio.sleep(1)
