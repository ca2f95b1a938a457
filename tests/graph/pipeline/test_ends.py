"""Rows that end early in a graph: a replica that dies, a lease that is lost, a drain."""

from __future__ import annotations

import asyncio

import pytest

from rowlock import Outcome, PipelineItem, PipelineManager
from rowlock.errors import GraphInterrupted
from rowlock.testing import TemporaryDatabase, crash_everywhere

from .documents import Base, Document, Ingest, Outside, documents, put

pytestmark = pytest.mark.either_database

OTHERS = 20
MOMENTS_MIN = 5
"""A row's day has as many moments at least; fewer, and the sweep is no sweep."""


async def test_killed_at_every_await(rowlock_database_with_clock: TemporaryDatabase) -> None:
    """A replica that dies with a row in its graph would leave the row, or the world, in another
    state.
    """
    await rowlock_database_with_clock.create_tables(Base.metadata)
    moments = await crash_everywhere(
        rowlock_database_with_clock,
        row=lambda: Document(id=1, url="page"),
        world=Outside,
        build=Ingest,
        effects=lambda outside: outside.stored,
        until=lambda row: row.status == "indexed",
    )
    assert moments > MOMENTS_MIN


class Held(Outside):
    """Holds one document in one step until a test lets it go on."""

    def __init__(self, step: str, url: str = "held") -> None:
        super().__init__()
        self.has_begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.has_stored_others = asyncio.Event()
        self.was_cancelled = False
        self._held = step, url

    async def step(self, name: str, url: str) -> None:
        await super().step(name, url)
        if sum(one == "store" for one, _ in self.calls) == OTHERS:
            self.has_stored_others.set()
        if (name, url) == self._held:
            self.has_begun.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.was_cancelled = True
                raise


class Recording(Ingest):
    """Keeps its items, and how the work on them ended."""

    def __init__(self, outside: Outside) -> None:
        self.items: dict[str, PipelineItem[Document]] = {}
        self.errors: dict[str, BaseException] = {}
        self.has_failed = asyncio.Event()
        super().__init__(outside, fetch_delays=(0.05,))

    async def process(self, item: PipelineItem[Document]) -> Outcome | None:
        self.items[item.row.url] = item
        try:
            return await super().process(item)
        except BaseException as error:
            self.errors[item.row.url] = error
            self.has_failed.set()
            raise


async def test_a_lost_lease_stops_a_row_before_its_next_call(database: TemporaryDatabase) -> None:
    """Work would be done outside for a row that another replica works on, or its neighbours be
    lost with it.
    """
    await put(database, "held", *(f"page-{number}" for number in range(OTHERS)))
    outside = Held("download")
    ingest = Recording(outside)
    async with PipelineManager(database.session_factory, [ingest]):
        await outside.has_begun.wait()
        ingest.items["held"].lose()
        outside.go_on.set()
        await ingest.has_failed.wait()
        assert {url: type(one) for url, one in ingest.errors.items()} == {"held": GraphInterrupted}
        await outside.has_stored_others.wait()
        found = await documents(database)
    assert "held" not in outside.stored
    assert (found["held"].status, outside.calls["download", "held"]) == ("new", 1)


async def test_a_drain_interrupts_what_is_inside(database: TemporaryDatabase) -> None:
    """A shutdown would wait for ever for a row in the graph, or keep its lease."""
    await put(database, "held", "page")
    outside = Held("store")
    ingest = Ingest(outside, fetch_delays=(0.05,))
    manager = PipelineManager(database.session_factory, [ingest])
    manager.start()
    await outside.has_begun.wait()
    await manager.drain(0)
    found = await documents(database)
    assert found["held"].status == "new"
    assert found["held"].lock_token is None
    assert outside.was_cancelled
    assert "held" not in outside.stored
