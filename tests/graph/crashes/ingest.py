"""What a replica does in these tests: it indexes documents, whose rows share one graph and whose
chunks share calls; and what it does outside is noted in a file, which outlives it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement

from rowlock import Apply, Outcome, PipelineItem
from rowlock.graph import Flow, GraphPipeline, Items, Outcomes
from rowlock.testing import stepping

from ...failpoints.stories import Scene, Story
from ..pipeline.documents import Base, Document, Page

__all__ = ["STORIES", "Base", "Call", "Ingest", "Outside", "chunks_of", "work_on_all"]

URLS = ("red", "green", "blue")
CHUNKS = 2

Call = dict[str, Any]
"""One call outside: by which process, what it was, for which documents and chunks."""


class Outside:
    """The web, the model and the store of vectors, as one file to which each call is added."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "outside.jsonl"

    def note(self, call: str, **fields: object) -> None:
        """Add a call, which survives the death of this process."""
        line = json.dumps({"by": os.getpid(), "call": call, **fields}) + "\n"
        file = os.open(self._path, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def calls(self) -> Iterator[Call]:
        if self._path.exists():
            yield from map(json.loads, self._path.read_text().splitlines())

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)


class Ingest(GraphPipeline[Document]):
    """Indexes documents; `in_the_middle` is awaited in the first shared call."""

    model = Document
    lock_timeout = 30
    heartbeat_trigger = 29.999
    database_timeout = 5
    retry_delay = 1
    queue_lower_limit_factor = queue_upper_limit_factor = 1

    def __init__(
        self, outside: Outside, in_the_middle: Callable[[], Awaitable[Any]] | None = None
    ) -> None:
        self.outside = outside
        self.in_the_middle = in_the_middle
        super().__init__(workers_num=len(URLS))

    def ready(self) -> ColumnElement[bool]:
        return Document.status == "new"

    def build(self, items: Items[Document]) -> Outcomes:
        return (
            items.amap(self.download, lanes=2)
            .map(self.parse, lanes=2)
            .fan_out(chunks_of, self.embedded, groups=3)
            .amap(self.store, lanes=2)
        )

    def embedded(self, chunks: Flow[str, Outcome]) -> Flow[str, Outcome]:
        return chunks.amap_batch(self.embed, size=4, within=0.02, lanes=2)

    async def download(self, item: PipelineItem[Document]) -> str:
        self.outside.note("download", url=item.row.url)
        await asyncio.sleep(0)
        return item.row.url

    def parse(self, url: str) -> Page:
        self.outside.note("parse", url=url)
        return Page(url, f"text of {url}")

    async def embed(self, chunks: Sequence[str]) -> list[str]:
        self.outside.note("embed", chunks=list(chunks))
        act, self.in_the_middle = self.in_the_middle, None
        if act is not None:
            await act()
        return [f"vector of {chunk}" for chunk in chunks]

    async def store(self, found: tuple[Page, list[str]]) -> Apply:
        page, vectors = found
        self.outside.note("store", url=page.url, vectors=vectors)
        await asyncio.sleep(0)
        return Apply({"status": "indexed", "text": page.text})


def chunks_of(page: Page) -> list[str]:
    return [f"{page.url} {number}" for number in range(CHUNKS)]


async def work_on_all(steps: Any) -> None:
    await steps.fetch_once()
    items = [steps.run.context.queue.get() for _ in steps.queued]
    workers = zip(steps.run.workers, items, strict=False)
    await asyncio.gather(*(worker.work(item) for worker, item in workers))
    await steps.run.settler.wait_until_idle()


async def ingest(scene: Scene) -> None:
    """Die anywhere in an ingest, from the claim to the outcomes."""
    beat: list[Callable[[], Awaitable[Any]]] = []

    async def renew() -> None:
        await asyncio.sleep(0.002)  # a renewal is due a millisecond after the claim
        await beat[0]()

    outside = Outside(scene.folder)
    async with stepping(scene.sessions, Ingest(outside, renew)) as steps:
        beat.append(steps.beat_once)
        with scene.armed():
            await work_on_all(steps)
        outside.note("end", boundaries=len(scene.points.passed))


STORIES = {"ingest": Story("ingest", ingest, rows=lambda: [Document(url=url) for url in URLS])}
