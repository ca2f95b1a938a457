"""Notifications that no replica sent."""

from __future__ import annotations

import logging

import pytest
from sqlalchemy import text

from rowlock import PipelineManager, events
from rowlock import hints as notifier
from rowlock.testing import TemporaryDatabase

from ..host import Base, Volume, VolumePipeline, heard_events
from .lines import Ear, Replica, look_until, replica
from .scenes import add

FLOOD = 300


async def forge(database: TemporaryDatabase, one: Replica, *payloads: str) -> None:
    """Say `payloads` on the channel of `one`, each by a transaction of its own: PostgreSQL
    merges what is equal in one.
    """
    async with database.engine.connect() as connection:
        said = await connection.execution_options(isolation_level="AUTOCOMMIT")
        for payload in payloads:
            values = {"channel": one.line.channel, "payload": payload}
            await said.execute(text("SELECT pg_notify(:channel, :payload)"), values)


async def test_a_flood_wakes_a_model_once_in_a_while_and_fills_nothing(
    postgresql_database: TemporaryDatabase,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Fetch would follow fetch, the memory fill with names, or the log with lines, as somebody
    else likes.
    """
    monkeypatch.setattr(notifier, "WAKE_EVERY_S", 3600)
    async with replica(postgresql_database) as one, replica(postgresql_database) as other:
        with caplog.at_level(logging.DEBUG, logger="rowlock"):
            junk = (
                payload
                for number in range(FLOOD)
                for payload in ("Volume", f"nothing {number} " + "x" * 7000)
            )
            await forge(postgresql_database, one, *junk)
            other.hint("Run")
            await one.ear.wait_for("Run")
        assert one.ear.heard == ["Volume", "Run"]
        assert one.line.received == 2 * FLOOD + 1
        assert one.manager._notifier is not None
        assert set(one.manager._notifier._received_again) == {"Volume", "Run"}
        assert one.line.reconnects == 0
    assert caplog.records == []


async def test_what_comes_while_a_model_rests_wakes_it_afterwards(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row of a second service, hinted right after the first one's, would wait for a poll."""
    monkeypatch.setattr(notifier, "WAKE_EVERY_S", 1)
    async with replica(postgresql_database) as one:
        await forge(postgresql_database, one, *["Volume"] * 3)
        await one.ear.wait_for("Volume", count=2)
        await forge(postgresql_database, one, "Volume")
        await one.ear.wait_for("Volume", count=3)
        assert one.line.received == 4


async def test_a_forged_hint_has_a_pipeline_look_and_do_nothing_else(
    postgresql_database: TemporaryDatabase,
) -> None:
    """Whoever may connect could have rows worked on that are not due, or done twice."""
    database, pipeline = postgresql_database, VolumePipeline(fetch_delays=[3600])
    await database.create_tables(Base.metadata)
    await add(database, Volume())
    manager = PipelineManager(database.session_factory, [pipeline], notify=True)
    ear = Ear(manager.hinter, "Volume")
    with heard_events() as heard:
        async with replica(database) as one, manager:
            await heard.wait_for(events.ItemApplied)
            await ear.wait_for("Volume")
            fetches = pipeline.statistics().counters["fetches"]
            await forge(database, one, "Volume")
            await ear.wait_for("Volume", count=2)
            await look_until(database, lambda: pipeline.statistics().counters["fetches"] > fetches)
    assert len(heard.of(events.ItemStarted)) == 1
