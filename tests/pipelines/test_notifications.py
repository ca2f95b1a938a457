"""Hints that reach other replicas: whom, when, how often, and what they never do."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from sqlalchemy import event, text

from rowlock import Apply, PipelineManager, events, hint_after_commit, pipeline_hinter
from rowlock import hints as notifier
from rowlock.database.notify_channel import (
    CHANNEL_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    channel_named,
    is_payload,
)
from rowlock.testing import TemporaryDatabase

from ..host import Base, Volume, VolumePipeline, heard_events
from .lines import Ear, Replica, eavesdropper, look_until, named_engine, replica
from .scenes import add

# ---------------------------------------------------------------- whom a hint reaches


async def test_a_hint_reaches_the_others_and_goes_no_further(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A replica would wait for its poll, or hints would go back and forth between replicas for
    ever.
    """
    async with replica(postgresql_database) as one, replica(postgresql_database) as other:
        one.hint(Volume)
        await other.ear.wait_for("Volume")
        # What the first said of volumes, or what the other passed on, would come before this.
        other.hint("Run")
        await one.ear.wait_for("Run")
        assert one.ear.heard == ["Volume", "Run"]
        assert other.ear.heard == ["Volume", "Run"]
        assert [one.line.sent, one.line.received, other.line.received] == [1, 1, 1]


async def test_a_row_is_found_in_another_replica(postgresql_database: TemporaryDatabase) -> None:
    """The row would wait for the next poll of the replica that runs its pipeline."""
    database, pipeline = postgresql_database, VolumePipeline(fetch_delays=[3600])
    await database.create_tables(Base.metadata)
    manager = PipelineManager(database.session_factory, [pipeline], notify=True)
    ear = Ear(manager.hinter, "Volume")
    with heard_events() as heard:
        async with replica(database) as service, manager:
            await ear.wait_for("Volume")
            # From now on it sleeps for an hour.
            await look_until(database, lambda: pipeline.statistics().counters["fetches_empty"] == 2)
            await add(database, Volume())
            service.hint(Volume)
            await heard.wait_for(events.ItemApplied)
            assert ear.heard == ["Volume", "Volume"]


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_the_process_wide_hinter_reaches_them_after_the_commit(
    postgresql_database: TemporaryDatabase, ends: str
) -> None:
    """Services hint by the process-wide hinter: nobody else would hear of it, or would hear of
    rows that never come.
    """
    async with replica(postgresql_database), eavesdropper(postgresql_database) as ear:
        async with postgresql_database.session_factory() as session:
            await session.execute(text("SELECT 1"))
            hint_after_commit(session, Volume)
            await (session.commit() if ends == "commit" else session.rollback())
        pipeline_hinter.hint_fetch("Run")
        await ear.wait_for("Run")
        assert ear.heard == (["Volume", "Run"] if ends == "commit" else ["Run"])


async def test_an_outcome_hints_other_replicas_until_the_last_is_drained(
    postgresql_database: TemporaryDatabase,
) -> None:
    """The next pipeline runs elsewhere, and would not hear of what was finished during a
    shutdown.
    """
    database, gate = postgresql_database, asyncio.Event()
    await add(database, Volume())

    async def answer(item: Any) -> Apply:
        await gate.wait()
        return Apply({"status": "active"}, hint=["Snapshot"])

    async with eavesdropper(database) as ear:
        with heard_events() as heard:
            manager = PipelineManager(
                database.session_factory, [VolumePipeline(answer=answer)], notify=True
            )
            manager.start()
            await heard.wait_for(events.ItemStarted)
            manager.shutdown()
            draining = asyncio.create_task(manager.drain())
            gate.set()
            await draining
        await ear.wait_for("Snapshot")
    assert not pipeline_hinter.reaches(Volume)
    assert not manager.hinter.reaches(Volume)


# ---------------------------------------------------------------- how often


async def test_hints_at_once_are_one_notification(postgresql_database: TemporaryDatabase) -> None:
    """A busy service would send a statement for each row that it adds."""
    async with eavesdropper(postgresql_database) as ear, replica(postgresql_database) as one:
        for _ in range(1000):
            one.hint(Volume)
        one.hint("Run")
        await ear.wait_for("Run")
        assert ear.heard == ["Volume", "Run"]
        await look_until(postgresql_database, lambda: one.line.sent == 2)


async def test_a_model_rests_between_notifications(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every commit of a busy service would wake every replica; or a hint in between would be
    forgotten.
    """
    monkeypatch.setattr(notifier, "RESEND_AFTER_S", 3600)
    async with eavesdropper(postgresql_database) as ear:
        async with replica(postgresql_database) as one:
            one.hint(Volume)
            await ear.wait_for("Volume")
            one.hint(Volume)
            one.hint("Run")
            await ear.wait_for("Run")
            assert ear.heard == ["Volume", "Run"]
        # The stop sends what still waits.
        await ear.wait_for("Volume", count=2)


# ---------------------------------------------------------------- what they never do


async def test_a_full_pool_and_an_open_transaction_are_in_nobodys_way(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A notification would wait for the host's transaction, take part in it, or take a
    connection from the pipelines.
    """
    async with (
        replica(postgresql_database) as other,
        replica(postgresql_database, pool_size=1, max_overflow=0) as one,
        one.engine.begin() as connection,
    ):
        await connection.execute(text("SELECT 1"))
        one.hint(Volume)
        await other.ear.wait_for("Volume")
        await connection.rollback()


async def test_what_the_hosts_own_set_up_began_is_ended(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A host that prepares each connection by a statement would have a line that never hears
    anything.
    """
    engine = named_engine(postgresql_database, "prepared")

    @event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: Any, _record: Any) -> None:
        connection.cursor().execute("SET search_path TO public")

    one = Replica(engine)
    # SQLAlchemy ends what was begun on the first connection of an engine by itself, so the line has
    # the second.
    async with replica(postgresql_database) as other, engine.connect(), one.manager:
        await one.ear.wait_for("Volume")
        other.hint("Run")
        await one.ear.wait_for("Run", count=2)
        # Not for a line that was found to be deaf and opened anew, which wakes everybody.
        assert one.line.reconnects == 0


async def test_junk_from_outside_harms_nobody(
    postgresql_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody with access to the database could break the line or fill the log."""
    async with replica(postgresql_database) as one, replica(postgresql_database) as other:
        with caplog.at_level(logging.WARNING, logger="rowlock"):
            async with postgresql_database.engine.begin() as connection:
                for payload in ("", "NoSuchModel", "x" * 7000, "Volume; DROP TABLE"):
                    await connection.execute(
                        text("SELECT pg_notify(:channel, :payload)"),
                        {"channel": one.line.channel, "payload": payload},
                    )
            other.hint(Volume)
            await one.ear.wait_for("Volume")
        assert one.ear.heard == ["Volume"]
        assert one.line.received == 5
    assert caplog.records == []


@pytest.mark.parametrize("junk", ["", "a\x00b", "\ud800", "x" * (PAYLOAD_BYTES_MAX + 1)])
async def test_a_name_that_cannot_be_sent_spoils_no_other(
    postgresql_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, junk: str
) -> None:
    """One such name would fail with each try, and no hint be sent any more."""
    async with replica(postgresql_database) as one, replica(postgresql_database) as other:
        with caplog.at_level(logging.WARNING, logger="rowlock"):
            for _ in range(3):
                one.hint(junk)
            one.hint(Volume)
            await other.ear.wait_for("Volume")
        assert [one.line.dropped, one.line.failures] == [3, 0]
    assert len(caplog.records) == 1


async def test_hints_that_wait_are_bounded(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During an outage the hints of a host that makes up names would fill the memory."""
    monkeypatch.setattr(notifier, "UNSENT_MAX", 3)
    async with eavesdropper(postgresql_database) as ear, replica(postgresql_database) as one:
        for number in range(10):
            one.hint(f"Model{number}")
        await ear.wait_for("Model2")
        assert one.line.dropped == 7
        one.hint("Run")
        await ear.wait_for("Run")


# ---------------------------------------------------------------- channels


@pytest.mark.parametrize("name", ["billing", "B i;l\"l'ing", "é" * 40, "x" * PAYLOAD_BYTES_MAX])
async def test_names_keep_hosts_apart(postgresql_database: TemporaryDatabase, name: str) -> None:
    """Hosts in one schema would wake each other for nothing; or a name that PostgreSQL cuts off
    would reach nobody.
    """
    async with (
        replica(postgresql_database, notify=name) as one,
        replica(postgresql_database, notify=name) as same,
        replica(postgresql_database, notify=name[:-1]) as other,
        replica(postgresql_database) as unnamed,
    ):
        one.hint(Volume)
        await same.ear.wait_for("Volume")
        for stranger in (other, unnamed):
            stranger.hint("Run")
        async with eavesdropper(postgresql_database, name[:-1]) as ear:
            other.hint("Last")
            await ear.wait_for("Last")
        assert other.ear.heard == unnamed.ear.heard == ["Run"]
        assert same.ear.heard == ["Volume"]


async def test_schemas_keep_hosts_apart(postgresql_database: TemporaryDatabase) -> None:
    """Hosts with a schema each would wake each other for models of the same name."""
    database = postgresql_database
    async with database.engine.begin() as connection:
        for schema in ("one", "two", "x" * CHANNEL_BYTES_MAX):
            await connection.execute(text(f'CREATE SCHEMA "{schema}"'))
    channels = []
    for schema in ("one", "one", "two", "x" * CHANNEL_BYTES_MAX):
        engine = database.create_engine(connect_args=database.connect_args(search_path=schema))
        one = Replica(engine)
        async with one.manager:
            await one.ear.wait_for("Volume")
            channels.append(one.line.channel)
    assert channels[:3] == ["rowlock_one", "rowlock_one", "rowlock_two"]
    assert channels[3] == channel_named("x" * CHANNEL_BYTES_MAX)


def test_channels_fit_and_differ() -> None:
    """PostgreSQL refuses a longer channel; cut off, two hosts would have the same."""
    names = ["", "public", "x" * 55, "x" * 56, "x" * 57, "é" * 40, "é" * 41]
    channels = [channel_named(name) for name in names]
    assert channels[:2] == ["rowlock_", "rowlock_public"]
    assert len(set(channels)) == len(names)
    assert max(len(channel.encode()) for channel in channels) <= CHANNEL_BYTES_MAX


def test_payloads_fit() -> None:
    """PostgreSQL would refuse the statement, and with it all other hints."""
    assert is_payload("Volume")
    assert is_payload("é" * (PAYLOAD_BYTES_MAX // 2))
    assert not is_payload("é" * (PAYLOAD_BYTES_MAX // 2 + 1))
