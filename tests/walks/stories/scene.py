"""Runs the host of the stories in processes of its own, asks by the command line, and makes what it
prints the same each time.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import update

from rowlock.rows.database_time import database_time_after
from rowlock.testing import TemporaryDatabase

from ...cli.forked import command
from ...host import HANG_S_MAX
from ...insight.shop import Base, Volume
from .host import TABLES

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[2]
_SAME: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "2026-11-22 03:14:05"),
    (re.compile(r"(?<![\d-] )\b\d\d:\d\d:\d\d\b"), "03:14:05"),
    # Soon after midnight it was yesterday.
    (re.compile(r"2026-11-22 (?=03:14:05, \d+ h ago)|(?<=since )2026-11-22 (?=03:14:05)"), ""),
    (re.compile(r"\((?=[0-9a-f]*\d)[0-9a-f]{8}\)|\([a-f]{8}\)"), "(91be04aa)"),
    (re.compile(r"replica [0-9a-f]{8}"), "replica 91be04aa"),
    (re.compile(r"billing:[0-9a-f]{8}"), "billing:7c1f02aa"),
    (re.compile(r"--seen [0-9a-f-]{36}"), "--seen 00000000-0000-4000-8000-000091be04aa"),
    (re.compile(r"\bpid \d+"), "pid 4711"),
    (re.compile(r"terminate_backend\(\d+\)"), "terminate_backend(4711)"),
    (re.compile(r"\b(in|for) \d+ s\b"), r"\1 21 s"),
    (re.compile(r"\b(ends|idle|ended|stepped back|processed|applied) now\b"), r"\1 21 s ago"),
    (re.compile(r"\b\d+ s ago\b"), "21 s ago"),
    (re.compile(r"\bidle 21 s ago"), "idle for 21 s"),
    (re.compile(r"^(sqlite|postgresql) \S+", re.MULTILINE), r"\1 shop"),
)
"""What differs from one run to the next, and what stands for it."""


def normalised(printed: str) -> str:
    """Return what a command printed, as it would be at 03:14:05."""
    for pattern, same in _SAME:
        printed = pattern.sub(same, printed)
    # The time stands at the right of a line whose length it does not change.
    return re.sub(r" {2,}(?=2026-11-22 03:14:05 UTC, by)", "    ", printed)


@dataclass
class Shop:
    """The database of the host, its replicas, and the command line beside it."""

    database: TemporaryDatabase
    replicas: list[asyncio.subprocess.Process] = field(default_factory=list)
    told: dict[int, list[str]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.database.url.render_as_string(hide_password=False)

    async def add(self, *rows: Any) -> None:
        async with self.database.session_factory.begin() as session:
            session.add_all(rows)

    async def write(self, key: int, **values: Any) -> None:
        """Write columns of a volume; numbers are times, in seconds from now."""
        written = {
            name: database_time_after(timedelta(seconds=value)) if name.endswith("_at") else value
            for name, value in values.items()
        }
        async with self.database.engine.begin() as connection:
            await connection.execute(update(Volume).where(Volume.id == key).values(written))

    async def silence(self, name: str) -> None:
        replicas = TABLES.replicas
        assert replicas is not None
        then = database_time_after(timedelta(minutes=-1))
        async with self.database.engine.begin() as connection:
            await connection.execute(
                update(replicas).where(replicas.c.name == name).values(seen_at=then)
            )

    async def start(
        self, name: str, *pipelines: str, skew_s: int = 0
    ) -> asyncio.subprocess.Process:
        program = ("host.py",) if not skew_s else ("skewed.py", str(skew_s), "host.py")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(HERE / program[0]), *program[1:], self.url, name, *pipelines),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=self._environment(),
        )
        self.replicas.append(process)
        await self.hears(process, "ready")
        return process

    async def hears(self, process: asyncio.subprocess.Process, line: str) -> None:
        assert process.stdout is not None
        told = self.told.setdefault(process.pid, [])
        async with asyncio.timeout(HANG_S_MAX):
            while line not in told:
                heard = await process.stdout.readline()
                assert heard, f"the replica ended before it told {line!r}; it told {told}"
                told.append(heard.decode().strip())

    async def kill(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.kill()
            await process.wait()
        process._transport.close()  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    async def rowlock(self, *words: str) -> tuple[int, str]:
        words = (*words, "--app", "host:manager")
        ended = await asyncio.to_thread(command, words, HERE, self._environment())
        return ended.returncode, ended.stdout + ended.stderr

    async def printed_by(self, *program: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *program,
            cwd=HERE,
            env=self._environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(HANG_S_MAX):
            printed, _ = await process.communicate()
        return printed.decode()

    def _environment(self) -> dict[str, str]:
        """Return the environment in which the host finds the shop, and its database."""
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        return os.environ | {"PYTHONPATH": path, "SHOP_DATABASE": self.url}


@asynccontextmanager
async def shop(database: TemporaryDatabase) -> AsyncIterator[Shop]:
    """Give a shop with its tables; its replicas are killed at the end."""
    await database.create_tables(Base.metadata)
    scene = Shop(database)
    try:
        yield scene
    finally:
        for process in scene.replicas:
            await scene.kill(process)
