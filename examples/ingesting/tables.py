"""The tables of a search: documents, and the vectors of their chunks."""

from __future__ import annotations

from loopback.database import Sessions
from sqlalchemy import JSON, delete, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import LockColumns, ScheduleColumns

from .texts import Vector


class Base(DeclarativeBase):
    """All tables of the search."""


class Document(LockColumns, ScheduleColumns, Base):
    """A document somewhere, and how far it is."""

    __tablename__ = "documents"

    id: Mapped[int] = mapped_column(primary_key=True)
    url: Mapped[str]
    status: Mapped[str] = mapped_column(default="new")
    sha256: Mapped[str | None]
    chunks: Mapped[int | None]
    replica: Mapped[str | None]


class StoredVector(Base):
    """The vector of one chunk."""

    __tablename__ = "vectors"

    document_id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    values: Mapped[list[float]] = mapped_column(JSON)


async def count(sessions: Sessions, status: str) -> int:
    """Return how many documents are that far; parked ones do not count."""
    which = select(func.count()).where(Document.status == status, Document.parked_at.is_(None))
    async with sessions() as session:
        return await session.scalar(which) or 0


async def put_vectors(sessions: Sessions, document_id: int, vectors: list[Vector]) -> None:
    """Store the vectors of a document in place of those that are there: safe to repeat."""
    async with sessions.begin() as session:
        await session.execute(delete(StoredVector).where(StoredVector.document_id == document_id))
        session.add_all(
            StoredVector(document_id=document_id, number=number, values=list(vector))
            for number, vector in enumerate(vectors)
        )
