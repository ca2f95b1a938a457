"""What a host writes: its own table, and a pipeline that works on the rows.

One row is one file. `process` reads it in a worker thread, in chunks and outside of any transaction, and returns what to write.

Not here: anything about locks. They are the library's business.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import BigInteger, Index, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Pipeline, PipelineItem, ScheduleColumns

CHUNK_BYTES = 256 * 1024
"""How much of a file is in memory at once."""
SHA256_CHARS = 64
NEW, DONE, UNREADABLE = "new", "done", "unreadable"


class Base(DeclarativeBase):
    """The demo's tables."""


class Document(LockColumns, ScheduleColumns, Base):
    """One file of the catalogue."""

    __tablename__ = "documents"

    id: Mapped[int] = mapped_column(primary_key=True)
    path: Mapped[str] = mapped_column(Text, unique=True)
    status: Mapped[str] = mapped_column(String(16), default=NEW)
    sha256: Mapped[str | None] = mapped_column(String(SHA256_CHARS))
    size: Mapped[int | None] = mapped_column(BigInteger)
    lines: Mapped[int | None] = mapped_column(BigInteger)
    words: Mapped[int | None] = mapped_column(BigInteger)


_is_new = Document.status == NEW
Index("documents_new", Document.due_at, sqlite_where=_is_new, postgresql_where=_is_new)


class WorkJournal(Protocol):
    """Where a pipeline notes what it begins."""

    def started(self, item: PipelineItem[Any]) -> None:
        """Note that work on the item starts now."""
        ...


class CatalogueFiles(Pipeline[Document]):
    """Reads, hashes and counts each new document.

    The lease is short, so that the rows of a killed replica are taken over while somebody watches.
    """

    model = Document
    workers_num = 20
    lock_timeout = 3
    heartbeat_trigger = 1.5
    fetch_delays = (0.1, 0.2, 0.5)

    def __init__(self, folder: Path, journal: WorkJournal, **settings: Any) -> None:  # noqa: ANN401 - as Pipeline
        super().__init__(**settings)
        self.folder = folder
        self.journal = journal

    def ready(self) -> Any:  # noqa: ANN401 - one SQL expression
        """Return which documents want work: the new ones."""
        return Document.status == NEW

    def process(self, item: PipelineItem[Document]) -> Apply:
        """Read one file. A plain function: it runs in a worker thread, so the event loop goes on renewing leases."""
        self.journal.started(item)
        try:
            counts = read_and_count(self.folder / item.row.path)
        except OSError:
            return Apply({"status": UNREADABLE})
        return Apply(
            {
                "status": DONE,
                "sha256": counts.sha256,
                "size": counts.size,
                "lines": counts.lines,
                "words": counts.words,
            }
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """What is in a file. `size` in bytes; `words` as ``bytes.split()`` finds them."""

    sha256: str
    size: int
    lines: int
    words: int


def read_and_count(path: Path) -> Counts:
    """Read a file chunk by chunk, so that its size does not matter."""
    digest, size, lines, words = hashlib.sha256(), 0, 0, 0
    in_word = False
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
            lines += chunk.count(b"\n")
            words += len(chunk.split())
            if in_word and not chunk[:1].isspace():
                words -= 1  # the word went on across the border of the chunks
            in_word = not chunk[-1:].isspace()
    return Counts(digest.hexdigest(), size, lines, words)
