"""A question that hangs costs its own part of a page, and no more time than a page has."""

from __future__ import annotations

import html
from datetime import timedelta
from typing import Any

import pytest
from httpx import AsyncClient
from sqlalchemy import ColumnElement, func, text
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import PipelineManager
from rowlock.dashboard import Dashboard, pages
from rowlock.insight import Insight, InsightLimits
from rowlock.testing import TemporaryDatabase

from ..insight.shop import TOKEN, Volume, VolumePipeline
from .shop_window import TABLES, browser, everything, furnished
from .test_wings import STREAMS
from .test_wings import Base as StreamsBase

LOCKED = "canceling statement due to lock timeout"


class HangingPipeline(VolumePipeline):
    """Asks of each row what takes an hour."""

    def ready(self) -> ColumnElement[bool]:
        return (Volume.status == "submitted") & func.pg_sleep(3600).is_not(None)


def app_of(database: TemporaryDatabase, *pipelines: Any) -> Dashboard:
    given = pipelines or [VolumePipeline()]
    limits = InsightLimits(statement_timeout=timedelta(seconds=0.5))
    insight = Insight(database.session_factory, given, tables=TABLES, limits=limits)
    return Dashboard(insight, authorize=everything)


async def said(client: AsyncClient, path: str) -> str:
    """Return the text of a page that is there."""
    answer = await client.get(path)
    assert answer.status_code == 200, path
    return html.unescape(answer.text)


async def are_waiting(connection: AsyncConnection) -> int:
    """Return how many statements of others wait or run."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND state = 'active'"
    )
    return int(await connection.scalar(text(waiting)) or 0)


@pytest.mark.parametrize("locked", ["volumes", "rowlock_history", "rowlock_replicas"])
async def test_a_table_that_is_locked_costs_what_stands_in_it(
    postgresql_database: TemporaryDatabase, locked: str
) -> None:
    """During a migration a person would see no page at all, or one that leaves out what it could
    not ask, as if there were none.
    """
    database = postgresql_database
    await furnished(database)
    async with database.engine.connect() as other, other.begin():
        await other.execute(text(f"LOCK TABLE {locked}"))
        async with browser(database, app=app_of(database)) as client:
            row = await said(client, "/rows/Volume/17")
            pipeline = await said(client, "/pipelines/VolumePipeline")
            rows = await said(client, "/pipelines/VolumePipeline/rows?state=ended")
            await said(client, "/")
            timeline = (await client.get("/api/timelines/Volume?id=17")).json()
        assert await are_waiting(other) == 0
    assert "<h1>Volume 17</h1>" in row
    assert (f"? the history: {LOCKED}" in row) == (locked == "rowlock_history")
    assert (f"? the row: {LOCKED}" in row) == (locked == "volumes")
    assert [one.partition(":")[0] for one in timeline["unknown"]] == {
        "volumes": ["the row"],
        "rowlock_history": ["the history"],
        "rowlock_replicas": [],
    }[locked]
    assert "<h2>Settings</h2>" in pipeline
    if locked == "volumes":
        assert "which has locked volumes" in row
        assert f"the database gave no rows: {LOCKED}" in rows
    else:
        assert "What happened" in row
        assert str(TOKEN)[-8:] in rows


async def test_a_host_s_question_that_hangs_costs_its_pipeline(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slow `ready` would take the page of all pipelines with it."""
    database = postgresql_database
    await furnished(database)
    app = app_of(database, VolumePipeline(), HangingPipeline())
    async with browser(database, app=app) as client:
        told = (await client.get("/api/status")).json()["pipelines"]
        assert [one["due"] for one in told] == [1, None]
        assert "<h1>HangingPipeline</h1>" in await said(client, "/pipelines/HangingPipeline")
        row = await said(client, "/rows/Volume/17")
        assert row.count("<article") == 2
        assert "statement timeout" in row
        # What takes too long altogether: many such pipelines, each within its own bound.
        monkeypatch.setattr(pages, "STATUS_WITHIN", timedelta(0))
        app._recent.forget()
        await said(client, "/")
    status = await Insight(database.session_factory, [VolumePipeline()]).status(within=timedelta(0))
    [line] = status.pipelines
    assert (line.counts.due, line.needs_person) == (None, False)
    assert "? pipelines without counts: those before them took all the time" in status.text()


async def test_a_flow_that_cannot_be_asked_costs_its_own_place(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of flows would wait for a lock for as long as somebody holds it, and leave a
    transaction open for each viewer.
    """
    database = postgresql_database
    await database.create_tables(StreamsBase.metadata)
    manager = PipelineManager(database.session_factory, STREAMS.pipelines())
    app = Dashboard(manager, authorize=everything, streams=[STREAMS])
    async with browser(database, app=app) as client, database.engine.connect() as other:
        async with other.begin():
            await other.execute(text("LOCK TABLE rowlock_stream_flows"))
            page = await said(client, "/streams")
            assert "<h2>balances</h2>" in page
            assert 'class="alert"' in page
            assert await are_waiting(other) == 0
        monkeypatch.setattr(pages, "FLOWS_S_MAX", -1.0)
        app._recent.forget()
        assert pages.NOT_ASKED in await said(client, "/streams")
