"""Alembic writes the migrations of a host with streams, and they run as they are, up and down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import String
from sqlalchemy import text as text_of
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock.streams import EventColumns, StepContext, Streams
from rowlock.testing import TemporaryDatabase, run_until_settled

from .autogenerating import WrittenTree
from .conftest import picture


def host_with_streams() -> tuple[Streams, Any]:
    """Return a host's streams with a table of events, and its payments."""

    class Base(DeclarativeBase):
        pass

    class Payment(EventColumns, Base):
        __tablename__ = "payments"
        __stream_key__ = "account"
        account: Mapped[str] = mapped_column(String(50))
        cents: Mapped[int]

    streams = Streams(Base)
    flow = streams.flow("balances", Payment, shards=2)

    @flow.by_key(state=int)
    def add(step: StepContext, key: str, cents: int | None, events: list[Payment]) -> int:
        return (cents or 0) + sum(event.cents for event in events)

    return streams, Payment


@pytest.mark.databases_in_turn
@pytest.mark.parametrize("batch", [False, True])
async def test_what_is_written_for_streams_runs(
    database: TemporaryDatabase, tmp_path: Path, batch: bool
) -> None:
    """A host would find that its migration is no Python, also one whose flows have run in the
    process that writes it; or that it is written anew each time.
    """
    streams, payment = host_with_streams()
    empty = await picture(database)
    for attempt in ("before", "behind"):
        tree = WrittenTree(tmp_path / attempt, database)
        tree.config.attributes["batch"] = batch
        (text,) = await tree.write(payment.metadata, "streams")
        compile(text, "migration", "exec")
        assert "info=" not in text
        await tree.upgrade()
        await tree.check()
        async with database.session_factory.begin() as session:
            session.add(payment(account="ann", cents=5))
        await run_until_settled(database.session_factory, streams.pipelines())
        async with database.session_factory() as session:
            status = await streams.flows["balances"].status(session)
        assert (status.next_step, status.text) == (1, "nothing")
        await tree.downgrade("base")
        async with database.engine.begin() as connection:
            await connection.execute(text_of("DROP TABLE alembic_version"))
        assert await picture(database) == empty
