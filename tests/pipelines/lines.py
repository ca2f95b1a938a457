"""Replicas that exchange hints, in one process: each has an engine of its own, and an ear instead
of pipelines.

A line that begins to listen wakes everybody once; an ear knows by that when its replica listens, or
listens again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker

from rowlock import NotificationStatistics, PipelineHinter, PipelineManager
from rowlock.database.notify_channel import listening
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX


class Ear:
    def __init__(self, hinter: PipelineHinter, *models: str) -> None:
        self.heard: list[str] = []
        self._more = asyncio.Event()
        for model in models:
            hinter.attach(model, lambda model=model: self.note(model))

    def note(self, model: str) -> None:
        self.heard.append(model)
        self._more.set()

    async def wait_for(self, model: str, *, count: int = 1) -> None:
        async with asyncio.timeout(HANG_S_MAX):
            while self.heard.count(model) < count:
                self._more.clear()
                await self._more.wait()


class Replica:
    """A manager without pipelines that notifies, and an ear at its hinter for volumes and runs."""

    def __init__(self, engine: AsyncEngine, *, notify: bool | str = True) -> None:
        self.engine = engine
        self.manager = PipelineManager(async_sessionmaker(engine), notify=notify)
        self.ear = Ear(self.manager.hinter, "Volume", "Run")

    def hint(self, model: str | type) -> None:
        self.manager.hinter.hint_fetch(model)

    @property
    def line(self) -> NotificationStatistics:
        line = self.manager.health().notifications
        assert line is not None
        return line


@asynccontextmanager
async def replica(
    database: TemporaryDatabase, name: str = "a", *, notify: bool | str = True, **options: Any
) -> AsyncIterator[Replica]:
    """Give a replica that listens; the server knows its connections by `name`."""
    async with running(Replica(named_engine(database, name, **options), notify=notify)) as started:
        yield started


@asynccontextmanager
async def running(started: Replica) -> AsyncIterator[Replica]:
    """Start a replica and wait until it listens, and has forgotten that it was woken for this."""
    async with started.manager:
        await started.ear.wait_for("Volume")
        started.ear.heard.clear()
        yield started


@asynccontextmanager
async def eavesdropper(database: TemporaryDatabase, name: str | None = None) -> AsyncIterator[Ear]:
    """Give an ear on the bare channel: it hears every notification, one by one."""
    ear = Ear(PipelineHinter())
    async with listening(database.create_engine(), name, heard=ear.note, lost=lambda: None):
        yield ear


def named_engine(database: TemporaryDatabase, name: str, **options: Any) -> AsyncEngine:
    """Return an engine whose connections the server knows by `name`."""
    return database.create_engine(
        connect_args=database.connect_args(application_name=name), **options
    )


async def connections(database: TemporaryDatabase, name: str) -> list[int]:
    """Return the server processes of the connections known by `name`."""
    async with database.engine.connect() as connection:
        found = await connection.scalars(
            text(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND"
                " application_name = :name"
            ),
            {"name": name},
        )
        return list(found.all())


async def kill(database: TemporaryDatabase, name: str) -> None:
    """End the connections known by `name`, as an administrator would; returns when they are
    gone.
    """
    async with database.engine.connect() as connection:
        await connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = :name"
            ),
            {"name": name},
        )


async def look_until(database: TemporaryDatabase, condition: Callable[[], bool]) -> None:
    """Ask the server something again and again until `condition()` is true."""
    async with asyncio.timeout(HANG_S_MAX):
        while not condition():
            await connections(database, "nobody")


async def until_gone(database: TemporaryDatabase, name: str) -> None:
    """Wait until the server has no connection known by `name`."""
    async with asyncio.timeout(HANG_S_MAX):
        while await connections(database, name):
            pass


class BlackHole:
    """A way to the server through which nothing comes while it is `dark`: connections stay open and
    silent.

    Attributes:
        dark: whether what is sent is swallowed, in both directions, for good.
        entered: how many connections were made.
    """

    def __init__(self, socket: str) -> None:
        self.dark = False
        self.entered = 0
        self._socket = socket
        self._more = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    @classmethod
    @asynccontextmanager
    async def before(
        cls, database: TemporaryDatabase
    ) -> AsyncIterator[tuple[BlackHole, AsyncEngine]]:
        host = str(database.url.query["host"])
        hole = cls(f"{host}/.s.PGSQL.{database.url.port or 5432}")
        server = await asyncio.start_server(hole._enter, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        engine = TemporaryDatabase(database.url.set(host="127.0.0.1", port=port, query={})).engine
        try:
            yield hole, engine
        finally:
            await engine.dispose()
            server.close()
            for writer in hole._writers:
                writer.close()
            await hole._until_closed()

    async def wait_for_entry(self, number: int) -> None:
        async with asyncio.timeout(HANG_S_MAX):
            while self.entered < number:
                self._more.clear()
                await self._more.wait()

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.entered += 1
        self._more.set()
        server_reader, server_writer = await asyncio.open_unix_connection(self._socket)
        self._writers += [writer, server_writer]
        await asyncio.gather(self._carry(reader, server_writer), self._carry(server_reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        swallows = False
        with suppress(ConnectionError):
            while chunk := await reader.read(65536):
                swallows = swallows or self.dark
                if not swallows:
                    writer.write(chunk)
        if not swallows and not self.dark:
            writer.close()

    async def _until_closed(self) -> None:
        for writer in self._writers:
            with suppress(ConnectionError):
                await writer.wait_closed()
