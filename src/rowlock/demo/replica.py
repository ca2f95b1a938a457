"""One replica of the demo's host, as a process: ``python -m rowlock.demo.replica``. Started by ``processes.py``.

The first line on its standard input says where the database is; every further line is a file that has arrived, taken in as a
service takes a request and answered when it is committed. The end of the input is the end of the replica, so it outlives nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

import anyio.to_thread
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import PipelineManager, pipeline_hinter
from rowlock.demo.database import Address, open_engine
from rowlock.demo.documents import CatalogueFiles, Document
from rowlock.demo.journal import JournalWriter


async def take_in(session_factory: async_sessionmaker[AsyncSession], path: str, journal: JournalWriter) -> None:
    """A service of the host: commit a new document, then hint. Asked twice for one path, it does nothing the second time."""
    try:
        async with session_factory() as session:
            document = Document(path=path)
            session.add(document)
            await session.flush()
            document_id = document.id
            await session.commit()
    except IntegrityError:
        return
    journal.hinted(document_id)
    pipeline_hinter.hint_fetch(Document)


async def live(setup: dict[str, str | None]) -> None:
    """Work until the input ends."""
    address = Address(str(setup["url"]), setup["schema"])
    engine = open_engine(address)
    session_factory = async_sessionmaker(engine)
    with JournalWriter(Path(str(setup["journal"]))) as journal:
        async with PipelineManager(session_factory, [CatalogueFiles(Path(str(setup["folder"])), journal)]):
            print("ready", flush=True)
            while line := await anyio.to_thread.run_sync(sys.stdin.readline):
                await take_in(session_factory, json.loads(line), journal)
                print("committed", flush=True)
    await engine.dispose()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(live(json.loads(sys.stdin.readline())))
