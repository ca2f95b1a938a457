"""Starts, watches and ends replicas that are real processes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text

from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX
from .replica import Letter


@dataclass
class Replica:
    process: asyncio.subprocess.Process
    told: list[dict[str, Any]]

    @property
    def pid(self) -> int:
        return self.process.pid

    async def wait_for(self, event: str, *, times: int = 1) -> list[Any]:
        """Wait until it has told `event` so often, and return the ids of the rows; fails if it
        ends before.
        """
        while (
            len(rows := [line.get("row_id") for line in self.told if line["event"] == event])
            < times
        ):
            assert await self._hear(), (
                f"replica {self.pid} ended before {times} x {event}; it told {self.told[-5:]}"
            )
        return rows

    async def wait_for_lines(self, count: int) -> None:
        while len(self.told) < count and await self._hear():
            pass

    def say_go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n" * 10)

    async def _hear(self) -> bool:
        assert self.process.stdout is not None
        async with asyncio.timeout(HANG_S_MAX):
            line = await self.process.stdout.readline()
        if line:
            self.told.append(json.loads(line))
        return bool(line)

    async def end(self) -> None:
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        # The pipes' transports close a step after the end of the process.
        transport = self.process._transport  # type: ignore[attr-defined]
        transport.close()
        await asyncio.sleep(0)


@asynccontextmanager
async def replicas(
    database: TemporaryDatabase, replicas: int, *, count: int
) -> AsyncIterator[list[Replica]]:
    """Give so many replicas, all ready; they are killed at the end, on every path."""
    started: list[Replica] = []
    try:
        for _ in range(replicas):
            started.append(await _start(database, count))  # noqa: PERF401 - those started before a failure are ended
        for replica in started:
            await replica.wait_for("Ready")
        yield started
    finally:
        for replica in started:
            await replica.end()


async def _start(database: TemporaryDatabase, count: int) -> Replica:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("replica.py")),
        database.url.render_as_string(hide_password=False),
        str(count),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    return Replica(process, [])


async def post_letters(database: TemporaryDatabase, count: int) -> None:
    async with database.session_factory.begin() as session:
        session.add_all([Letter() for _ in range(count)])


async def locked(database: TemporaryDatabase) -> int:
    async with database.engine.connect() as connection:
        found = await connection.scalar(
            text(
                "SELECT count(*) FROM letters WHERE lock_token IS NOT NULL OR lock_owner IS NOT"
                " NULL OR lock_expires_at IS NOT NULL"
            )
        )
        return int(found or 0)
