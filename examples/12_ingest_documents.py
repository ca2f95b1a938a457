"""Some hundred documents are downloaded, parsed, embedded and stored by two replicas, through one
graph in each; one replica is killed half-way, and everything is counted again.

The one idea: the rows of a pipeline pass through one graph that stays open, so that lanes, limits
and calls belong to all rows together: 16 downloads, one call for 32 chunks of whichever documents.
A row is still one lease and one guarded outcome. What a killed replica held is done again by
another one; of the rest nothing is.

Run it: ``python examples/12_ingest_documents.py`` (needs ``pip install httpx``, and for PostgreSQL
``pip install "rowlock[testing]"``). The documents are real, and served on loopback: this
repository's docs, and docstrings of the standard library. It runs on SQLite, then on PostgreSQL.
It ends by itself and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from ingesting.tables import Base, Document, StoredVector, count
from ingesting.texts import Body, chunks_of, parsed, vector_of
from loopback.child import EXAMPLES, Child
from loopback.database import Sessions, opened
from loopback.site import GONE, Site, serving_site
from sqlalchemy import select

from rowlock.testing import PostgresqlServer

POLL_S = 0.05
WAIT_S_MAX = 120.0
"""After so long the example gives up."""


class Place(NamedTuple):
    """What a replica needs to know: a database, and a folder for the journals of its calls."""

    url: str
    folder: Path


# Replicas are processes ---------------------------------------------------------------------------


async def start(name: str, place: Place) -> Child:
    """Start a replica, and wait until it could begin."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        # No file is the main module, so its own children have none to import.
        *("-c", "from ingesting import replica; replica.main()"),
        *(name, place.url, str(place.folder)),
        cwd=EXAMPLES,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    child = Child(process)
    assert await child.line() == "ready"
    return child


# What has become of the documents -----------------------------------------------------------------


def embedded_by(name: str, place: Place) -> Counter[str]:
    """Return which chunks a replica has embedded, by its journal."""
    journal = place.folder / f"{name}.journal"
    return Counter(journal.read_text().split()) if journal.exists() else Counter()


async def recount(sessions: Sessions, site: Site) -> None:
    """Compare each document and each vector with what is computed here, one after the other."""
    async with sessions() as session:
        documents = (await session.scalars(select(Document).order_by(Document.id))).all()
        vectors = (await session.scalars(select(StoredVector))).all()
    stored = {(one.document_id, one.number): tuple(one.values) for one in vectors}
    expected = {
        (chunk.document_id, chunk.number): vector_of(chunk.text)
        for number, html in enumerate(site.pages)
        if number != GONE
        for chunk in chunks_of(parsed(Body(number, html)))
    }
    parked = [one.id for one in documents if one.parked_at is not None]
    by_replica = Counter(one.replica for one in documents if one.status == "indexed")
    print(f"indexed once each: {by_replica.total()} of {len(site.pages)}; parked: {len(parked)}")
    print(f"answered 404 at first: {site.missing}")
    print(f"by replica: one {by_replica['one']}, two {by_replica['two']}")
    print(f"vectors: {len(stored)} stored, {len(expected.keys() - stored.keys())} missing")
    print(f"as computed again: {'equal' if stored == expected else 'OTHERS'}")


async def recount_calls(sessions: Sessions, place: Place) -> None:
    """Find the chunks that were embedded twice, and whose they were."""
    one, two = (embedded_by(name, place) for name in ("one", "two"))
    again = (one + two) - Counter(set(one + two))
    documents = {int(chunk.split(":")[0]) for chunk in again}
    async with sessions() as session:
        kept = select(Document.id).where(Document.replica == "one")
        stored_by_one = set(await session.scalars(kept))
    print(f"embedded again: {again.total()} chunks of {len(documents)} documents")
    of_stored = documents & stored_by_one
    print(f"of documents that were stored by then: {len(of_stored)}")


async def ingest(url: str, folder: Path, site: Site) -> None:
    """Have two replicas ingest the site, and kill one of them half-way."""
    place = Place(url, folder)
    async with asyncio.timeout(WAIT_S_MAX), opened(url) as sessions:
        async with sessions.begin() as session:
            connection = await session.connection()
            await connection.run_sync(Base.metadata.create_all)
            numbers = range(len(site.pages))
            session.add_all(Document(id=each, url=f"{site.url}/{each}") for each in numbers)
        one, two = await asyncio.gather(*(start(name, place) for name in ("one", "two")))
        for each in (one, two):
            each.tell("go")
        while await count(sessions, "indexed") < len(numbers) // 2:  # noqa: ASYNC110  # processes
            await asyncio.sleep(POLL_S)
        await one.kill()
        print(f"replica one: killed after {await count(sessions, 'indexed')} documents", flush=True)
        print(*await two.end(), sep="\n")
        await recount(sessions, site)
        await recount_calls(sessions, place)


async def main(folder: Path) -> None:
    """Ingest on each database."""
    with serving_site() as site:
        print(f"{len(site.pages)} documents on SQLite", flush=True)
        await ingest(f"sqlite+aiosqlite:///{folder / 'app.db'}", folder, site)
    (folder / "postgresql").mkdir()
    server = PostgresqlServer(folder / "postgresql")
    try:
        url = server.start().render_as_string(hide_password=False)
        with serving_site() as site, tempfile.TemporaryDirectory(dir=folder) as journals:
            print(f"{len(site.pages)} documents on PostgreSQL", flush=True)
            await ingest(url, Path(journals), site)
    finally:
        server.stop()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
