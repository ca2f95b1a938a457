"""Rows that pass through a graph: documents, downloaded, parsed, embedded and stored."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Outcome, Park, PipelineItem, ScheduleColumns
from rowlock.graph import Flow, GraphPipeline, Items, Outcomes
from rowlock.testing import TemporaryDatabase


class Base(DeclarativeBase):
    """The mapped classes of this host."""


class Document(LockColumns, ScheduleColumns, Base):
    __tablename__ = "documents"
    id: Mapped[int] = mapped_column(primary_key=True)
    url: Mapped[str]
    status: Mapped[str] = mapped_column(default="new")
    text: Mapped[str | None]


class Page(NamedTuple):
    url: str
    text: str


class Outside:
    """The web and the store of vectors; to store a page twice is to store it once.

    Attributes:
        stored: vectors by the address of a page.
        calls: how often each step was done for an address.
        batches: the sizes of shared calls.
    """

    def __init__(self) -> None:
        self.stored: dict[str, list[int]] = {}
        self.calls: Counter[tuple[str, str]] = Counter()
        self.batches: list[int] = []

    async def step(self, name: str, url: str) -> None:
        """Be asked for something; a test may be slow here, or fail."""
        await asyncio.sleep(0)
        self.calls[name, url] += 1


class Ingest(GraphPipeline[Document]):
    model = Document
    min_processing_interval = 0

    def __init__(self, outside: Outside | None = None, **settings: Any) -> None:
        self.outside = outside or Outside()
        super().__init__(**settings)

    def ready(self) -> ColumnElement[bool]:
        return Document.status == "new"

    def build(self, items: Items[Document]) -> Outcomes:
        return (
            items.amap(self.download, lanes=4, timeout=60)
            .map(self.parse, lanes=2)
            .fan_out(chunks_of, self.embedded, groups=3)
            .amap(self.store, lanes=2)
        )

    def embedded(self, chunks: Flow[str, Outcome]) -> Flow[int, Outcome]:
        return chunks.amap_batch(self.embed, size=8, within=0.02, lanes=2)

    async def download(self, item: PipelineItem[Document]) -> str | Park:
        url = item.row.url
        await self.outside.step("download", url)
        return Park("gone") if "gone" in url else url

    def parse(self, url: str) -> Page:
        if "broken" in url:
            raise ValueError(url)
        return Page(url, f"text of {url}")

    async def embed(self, chunks: Sequence[str]) -> list[int]:
        self.outside.batches.append(len(chunks))
        await self.outside.step("embed", "shared")
        return [len(chunk) for chunk in chunks]

    async def store(self, found: tuple[Page, list[int]]) -> Apply:
        page, vectors = found
        await self.outside.step("store", page.url)
        self.outside.stored[page.url] = vectors
        return Apply({"status": "indexed", "text": page.text})


def chunks_of(page: Page) -> list[str]:
    return page.text.split()


async def put(database: TemporaryDatabase, *urls: str) -> None:
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add_all([Document(url=url) for url in urls])


async def documents(database: TemporaryDatabase) -> dict[str, Document]:
    async with database.session_factory() as session:
        return {row.url: row for row in await session.scalars(select(Document))}
