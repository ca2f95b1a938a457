"""The database is the historian: a trigger writes down each time that a document's status is set.

The one idea: the library cannot forget, repeat or embellish what the database notes by itself. The trigger fires when an UPDATE
names the column, even if the value stays the same, so a result that was written twice leaves two notes.
"""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Mapped, mapped_column

from rowlock.demo.documents import Base

_NOTE = "INSERT INTO history (document_id, status) VALUES (NEW.id, NEW.status);"
_TRIGGERS = {
    "sqlite": (f"CREATE TRIGGER note_status AFTER UPDATE OF status ON documents BEGIN {_NOTE} END",),
    "postgresql": (
        f"CREATE FUNCTION note_status() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {_NOTE} RETURN NULL; END $$",
        "CREATE TRIGGER note_status AFTER UPDATE OF status ON documents FOR EACH ROW EXECUTE FUNCTION note_status()",
    ),
}


class History(Base):
    """A document's status was set. Written by the trigger alone."""

    __tablename__ = "history"

    id: Mapped[int] = mapped_column(primary_key=True)
    document_id: Mapped[int]
    status: Mapped[str]


async def begin_history(connection: AsyncConnection) -> None:
    """Create the trigger; the tables exist already. Joins the caller's transaction."""
    for statement in _TRIGGERS[connection.dialect.name]:
        await connection.exec_driver_sql(statement)


async def times_applied(connection: AsyncConnection) -> dict[int, int]:
    """Return how often a result was written, by document. Joins the caller's transaction."""
    counts = select(History.document_id, func.count()).group_by(History.document_id)
    return {row[0]: row[1] for row in await connection.execute(counts)}
