"""Rows pass through a graph: taken step by step, and by whole managers, on each database."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import PipelineManager
from rowlock.testing import PipelineContract, TemporaryDatabase, stepping

from .documents import Base, Document, Ingest, Outside, documents, put

pytestmark = pytest.mark.either_database

URLS = [f"page-{number}" for number in range(30)]


class TestIngest(PipelineContract[Document]):
    """A pipeline with a graph would break what every pipeline keeps."""

    pipeline_class = Ingest

    @pytest.fixture
    async def session_factory(
        self, database: TemporaryDatabase
    ) -> async_sessionmaker[AsyncSession]:
        await database.create_tables(Base.metadata)
        return database.session_factory

    def ready_row(self) -> Document:
        return Document(url="page")

    def unready_row(self) -> Document:
        return Document(url="page", status="indexed")


async def indexed(database: TemporaryDatabase, *, every_s: float) -> dict[str, Document]:
    """Wait until no document is new, and return all of them."""
    while True:
        found = await documents(database)
        if all(row.status == "indexed" for row in found.values()):
            return found
        await asyncio.sleep(every_s)


async def test_step_by_step(database: TemporaryDatabase) -> None:
    """A test could not look at a row between two steps."""
    await put(database, "page", "gone", "broken")
    ingest = Ingest(retry_delay=60)
    async with stepping(database.session_factory, ingest) as steps:
        assert len(await steps.fetch_once()) == 3
        assert await steps.work_all() == 3
        assert await steps.fetch_once() == []
    found = await documents(database)
    assert (found["page"].status, found["page"].attempts) == ("indexed", 0)
    assert found["gone"].parked_at is not None
    assert (found["broken"].status, found["broken"].attempts) == ("new", 1)
    assert "ValueError" in (found["broken"].last_error or "")
    assert ingest.outside.calls["store", "gone"] == 0


async def test_one_outcome_and_no_more_rows_than_places(database: TemporaryDatabase) -> None:
    """Rows would be lost in the graph, or get the text of another; or more of them be inside than
    workers, and their leases be kept for nothing.
    """
    await put(database, *URLS)

    class Counting(Outside):
        inside = most = 0

        async def step(self, name: str, url: str) -> None:
            self.inside += name == "download"
            self.most = max(self.most, self.inside)
            await super().step(name, url)
            self.inside -= name == "store"

    outside = Counting()
    ingest: Any = Ingest(outside, workers_num=3, fetch_delays=(0.05,))
    async with PipelineManager(database.session_factory, [ingest]):
        found = await indexed(database, every_s=0.02)
        counters = ingest.statistics().counters
    assert {url: row.text for url, row in found.items()} == {url: f"text of {url}" for url in URLS}
    assert outside.stored == {url: [4, 2, len(url)] for url in URLS}
    assert set(outside.calls.values()) <= {1, outside.calls["embed", "shared"]}
    assert 1 < outside.most <= 3
    assert (counters["applied"], counters["retried"], counters["stale"]) == (30, 0, 0)
