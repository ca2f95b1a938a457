"""What a host writes: its own table, a pipeline over the rows, and a program that runs it. One row
is one file.

``python -m rowlock.demo.host`` is one replica. The first line on its standard input says where the
database and the files are; each further line is answered with the number of rows that the replica
has in hand: "hold" has it finish none of them until "go on". It ends when its input ends, so it
never outlives the command that started it.

Not here: anything about leases. They are the library's business.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sys
import threading
from pathlib import Path

from sqlalchemy import URL, BigInteger, ColumnElement, String, Text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Pipeline, PipelineItem, PipelineManager, due_index

NEW, DONE, UNREADABLE = "new", "done", "unreadable"
SHA256_CHARS = 64
CONNECTION_S_MAX = 15  # longest wait for the writers before: there is one at a time


class Base(DeclarativeBase):
    pass


class Document(LockColumns, Base):
    """One file of the catalogue."""

    __tablename__ = "documents"
    __table_args__ = (due_index("documents", ready=f"status = '{NEW}'"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    path: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(16), default=NEW)
    sha256: Mapped[str | None] = mapped_column(String(SHA256_CHARS))
    lines: Mapped[int | None] = mapped_column(BigInteger)


class CatalogueFiles(Pipeline[Document]):
    """Reads, hashes and counts each new document.

    The lease is short, so that the rows of a killed replica are taken over while the reader
    watches.
    """

    model = Document
    workers_num = 20
    lock_timeout = 3
    heartbeat_trigger = 1.5
    fetch_delays = (0.1, 0.2, 0.5)

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.may_finish = threading.Event()
        self.may_finish.set()

    def ready(self) -> ColumnElement[bool]:
        return Document.status == NEW

    def process(self, item: PipelineItem[Document]) -> Apply:
        """Read one file, in a worker thread: the event loop goes on renewing leases."""
        self.may_finish.wait()
        try:
            content = (self.folder / item.row.path).read_bytes()
        except OSError:
            return Apply({"status": UNREADABLE})
        return Apply(
            {
                "status": DONE,
                "sha256": hashlib.sha256(content).hexdigest(),
                "lines": content.count(b"\n"),
            }
        )


def open_engine(database: Path) -> AsyncEngine:
    url = URL.create("sqlite+aiosqlite", database=str(database))
    return create_async_engine(url, connect_args={"timeout": CONNECTION_S_MAX})


async def serve(database: Path, folder: Path) -> None:
    """Work until the standard input ends."""
    engine, pipeline = open_engine(database), CatalogueFiles(folder)
    async with PipelineManager(async_sessionmaker(engine), [pipeline]) as manager:
        print("ready", flush=True)
        while message := await asyncio.to_thread(sys.stdin.readline):
            (pipeline.may_finish.clear if message == "hold\n" else pipeline.may_finish.set)()
            now = manager.statistics()[pipeline.name]
            print(now.queued + now.running, flush=True)
        pipeline.may_finish.set()
    await engine.dispose()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(serve(*map(Path, json.loads(sys.stdin.readline()))))
