"""The pipeline: all rows pass through one graph, whose lanes and shared calls belong to all of
them.
"""

from __future__ import annotations

from functools import partial

from httpx import AsyncClient
from loopback.database import Sessions
from sqlalchemy import ColumnElement

from rowlock import Apply, Outcome, Park, PipelineItem
from rowlock.graph import Flow, GraphPipeline, Items, Outcomes

from .tables import Document, put_vectors
from .texts import Body, Chunk, Page, Vector, chunks_of, embedded, parsed


class Ingest(GraphPipeline[Document]):
    """Downloads, parses, embeds and stores documents."""

    model = Document
    # Short, so that this example is; a real host leaves these out.
    lock_timeout = 6
    heartbeat_trigger = 4
    retry_delay = 0.2
    fetch_delays = (0.1,)

    def __init__(
        self, replica: str, http: AsyncClient, sessions: Sessions, *, journal: str
    ) -> None:
        self.replica = replica
        self.http = http
        self.sessions = sessions
        self.journal = journal
        super().__init__()  # calls build(), so mistakes are found here

    def ready(self) -> ColumnElement[bool]:
        """New documents want to be ingested."""
        return Document.status == "new"

    def build(self, items: Items[Document]) -> Outcomes:
        """Each operator has as many lanes as its nature allows."""
        return (
            items.amap(self.download, lanes=16, timeout=30)
            .map(parsed, lanes=1, on="process")
            .fan_out(chunks_of, self.vectors_of)
            .amap(self.store, lanes=4)
        )

    def vectors_of(self, chunks: Flow[Chunk, Outcome]) -> Flow[Vector, Outcome]:
        """One call for up to 32 chunks, of whichever documents they are."""
        embed = partial(embedded, self.journal)
        return chunks.map_batch(embed, size=32, within=0.02, on="process")

    async def download(self, item: PipelineItem[Document]) -> Body | Park:
        """Return the body; an outcome leaves the graph at once, an error is retried."""
        answer = await self.http.get(item.row.url)
        if answer.status_code == 410:
            return Park("gone for good")
        return Body(item.row.id, answer.raise_for_status().content)

    async def store(self, found: tuple[Page, list[Vector]]) -> Apply:
        """Store the vectors, then have the row written under its lease."""
        page, vectors = found
        await put_vectors(self.sessions, page.document_id, vectors)
        written = {"sha256": page.sha256, "chunks": len(vectors), "replica": self.replica}
        return Apply({"status": "indexed", **written})
