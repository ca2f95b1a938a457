"""Lines to other replicas that are lost, that cannot be had, and that end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock import ConfigurationError, PipelineManager
from rowlock import hints as notifier
from rowlock.database import notify_channel as notifications
from rowlock.dialects.contract import ChannelConnection
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX, Attachment, AttachmentPipeline, Base, Volume, VolumePipeline
from .lines import (
    BlackHole,
    Ear,
    Replica,
    connections,
    kill,
    look_until,
    named_engine,
    replica,
    running,
    until_gone,
)

SOON_S = 0.05
NEVER_S = 3600.0


# ---------------------------------------------------------------- a line that is lost


async def test_a_line_that_was_killed_is_opened_again(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first lost connection on a replica would poll until its host restarts, or until
    the next check.
    """
    database = postgresql_database
    monkeypatch.setattr(notifier, "CHECK_EVERY_S", NEVER_S)
    async with replica(database, "one") as one, replica(database, "other") as other:
        for count in range(1, 3):
            await kill(database, "one")
            # What was said meanwhile nobody heard, so everybody is woken once.
            await one.ear.wait_for("Volume", count=2 * count - 1)
            assert [one.line.reconnects, one.line.listening, one.line.last_error] == [
                count,
                True,
                None,
            ]
            other.hint(Volume)
            await one.ear.wait_for("Volume", count=2 * count)
            one.hint("Run")
            await other.ear.wait_for("Run", count=count)
        # Until a check has found it well, the next loss is answered more slowly.
        assert one.line.failures == 2
        assert await connections(database, "one") != []
        assert other.line.reconnects == 0


async def test_a_line_that_holds_is_trusted_again(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that lost its line a few times in a month would take ever longer to open it
    again.
    """
    monkeypatch.setattr(notifier, "CHECK_EVERY_S", SOON_S)
    async with replica(postgresql_database, "one") as one:
        await kill(postgresql_database, "one")
        await one.ear.wait_for("Volume")
        await look_until(postgresql_database, lambda: one.line.failures == 0)


async def test_losing_the_line_makes_nobody_unhealthy(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe would restart hosts that work; or nobody could see why rows are found late."""
    database = postgresql_database
    await database.create_tables(Base.metadata)
    monkeypatch.setattr(notifier, "RECONNECT_DELAY_S", NEVER_S)
    monkeypatch.setattr(notifier, "RECONNECT_DELAY_S_MAX", NEVER_S)
    monkeypatch.setattr(notifier, "STOP_S_MAX", NEVER_S)
    manager = PipelineManager(
        async_sessionmaker(named_engine(database, "one")), [VolumePipeline()], notify=True
    )
    ear = Ear(manager.hinter, "Volume")
    manager.start()
    await ear.wait_for("Volume")
    line = manager.health().notifications
    assert line is not None
    assert [line.channel, line.listening, line.last_error] == ["rowlock_public", True, None]
    # Idle connections of the pool are replaced by the pool, the line by nobody for an hour.
    await kill(database, "one")
    await look_until(database, lambda: manager.health().notifications.failures == 1)  # type: ignore[union-attr]
    await look_until(database, lambda: manager.health().healthy)
    line = manager.health().notifications
    assert line is not None
    assert [line.channel, line.listening, line.reconnects] == [None, False, 0]
    assert "closed" in (line.last_error or "")
    # The next try is an hour away, and no shutdown waits for it.
    async with asyncio.timeout(HANG_S_MAX):
        await manager.drain()


async def test_a_hint_that_could_not_be_sent_is_sent_later(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint that was under way when the line was lost would be forgotten."""
    monkeypatch.setattr(ChannelConnection, "answer_s_max", SOON_S)
    async with (
        BlackHole.before(postgresql_database) as (hole, engine),
        replica(postgresql_database) as other,
        running(Replica(engine)) as one,
    ):
        hole.dark = True
        one.hint("Run")
        await hole.wait_for_entry(2)
        hole.dark = False
        await other.ear.wait_for("Run")
        await look_until(postgresql_database, lambda: one.line.sent == 1)


async def test_a_silent_line_is_noticed(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall that forgets a quiet connection would leave a replica deaf, and it would not
    know.
    """
    monkeypatch.setattr(ChannelConnection, "answer_s_max", SOON_S)
    monkeypatch.setattr(notifications, "CLOSE_S_MAX", SOON_S)
    monkeypatch.setattr(notifier, "CHECK_EVERY_S", SOON_S)
    async with (
        BlackHole.before(postgresql_database) as (hole, engine),
        running(Replica(engine)) as one,
    ):
        hole.dark = True
        await hole.wait_for_entry(2)
        hole.dark = False
        await one.ear.wait_for("Volume")


async def test_a_server_that_never_answers_is_not_waited_for(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One connection that is accepted and then forgotten would be waited for until the host
    restarts.
    """
    monkeypatch.setattr(notifications, "CONNECT_S_MAX", SOON_S)
    async with BlackHole.before(postgresql_database) as (hole, engine):
        hole.dark = True
        one = Replica(engine)
        async with one.manager:
            await hole.wait_for_entry(2)
            monkeypatch.setattr(notifications, "CONNECT_S_MAX", 10.0)
            hole.dark = False
            await one.ear.wait_for("Volume")


async def test_a_line_that_listens_no_more_is_noticed(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that answers but was made to forget its channel would look well for ever."""
    monkeypatch.setattr(notifier, "CHECK_EVERY_S", SOON_S)
    engine, drivers = named_engine(postgresql_database, "one"), list[Any]()
    event.listen(
        engine.sync_engine,
        "connect",
        lambda connection, _: drivers.append(connection.driver_connection),
    )
    async with running(Replica(engine)) as one:
        with suppress(Exception):  # a check may be under way
            await drivers[0].execute("UNLISTEN *")
        await one.ear.wait_for("Volume")
        assert len(drivers) == 2


async def test_a_full_pool_delays_the_line_only(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that uses all its connections at the start would never have a line."""
    database = postgresql_database
    one = Replica(database.create_engine(pool_size=1, max_overflow=0, pool_timeout=SOON_S))
    async with one.engine.connect():
        one.manager.start()
        await look_until(database, lambda: one.line.failures >= 1)
    await one.ear.wait_for("Volume")
    await one.manager.drain()


# ---------------------------------------------------------------- the end of a line


@pytest.mark.parametrize("dark_from", ["the start", "later"])
async def test_a_shutdown_does_not_wait_for_a_server_that_is_silent(
    postgresql_database: TemporaryDatabase, dark_from: str
) -> None:
    """The host's shutdown would hang on a connection, or leave it and a task behind."""
    async with BlackHole.before(postgresql_database) as (hole, engine):
        one = Replica(engine)
        hole.dark = dark_from == "the start"
        one.manager.start()
        await (hole.wait_for_entry(1) if hole.dark else one.ear.wait_for("Volume"))
        hole.dark = True
        one.hint("Run")
        async with asyncio.timeout(notifier.STOP_S_MAX + notifications.CLOSE_S_MAX + HANG_S_MAX):
            await one.manager.drain()


async def test_a_shutdown_at_any_moment_leaves_nothing(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A manager that is ended while its line is being opened would leave a connection behind."""
    for turns in range(0, 60, 3):
        one = Replica(named_engine(postgresql_database, "one"))
        one.manager.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        await one.manager.drain()
    await until_gone(postgresql_database, "one")


# ---------------------------------------------------------------- who may have one


async def test_sqlite_is_refused(sqlite_database: TemporaryDatabase) -> None:
    """A host would believe that its processes hear each other."""
    with pytest.raises(ConfigurationError, match=r"needs PostgreSQL.*Leave it out"):
        PipelineManager(sqlite_database.session_factory, [VolumePipeline()], notify=True)


async def test_another_driver_is_refused(postgresql_database: TemporaryDatabase) -> None:
    """The line would be opened and lost for ever, with an error about attributes."""
    engine = postgresql_database.create_engine()
    engine.sync_engine.dialect.driver = "pg8000"
    with pytest.raises(ConfigurationError, match="asyncpg"):
        PipelineManager(async_sessionmaker(engine), notify=True)


@pytest.mark.parametrize("name", ["", "a\x00b", "x" * 1001, 1, None, b"billing"])
async def test_a_name_that_is_none_is_refused(
    postgresql_database: TemporaryDatabase, name: Any
) -> None:
    """The mistake would show as a line that is lost again and again."""
    with pytest.raises(ConfigurationError, match="billing"):
        PipelineManager(postgresql_database.session_factory, notify=name)


def test_a_factory_without_an_engine_is_refused() -> None:
    """The mistake would show when the manager starts."""
    with pytest.raises(ConfigurationError, match="bind the session factory"):
        PipelineManager(async_sessionmaker(), notify=True)


async def test_pipelines_in_two_databases_are_refused(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Half of the replicas would speak where the other half does not listen."""
    engines = [create_async_engine(postgresql_database.url) for _ in range(2)]
    sessions = async_sessionmaker(binds=dict(zip((Volume, Attachment), engines, strict=True)))
    with pytest.raises(ConfigurationError, match="one PipelineManager for each"):
        PipelineManager(sessions, [VolumePipeline(), AttachmentPipeline()], notify=True)
    manager = PipelineManager(sessions, [VolumePipeline()], notify=True)
    with pytest.raises(ConfigurationError, match="one PipelineManager for each"):
        manager.register(AttachmentPipeline())
