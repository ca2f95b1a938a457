"""``docs/reference/mistakes.md`` lists usual mistakes of those who declare flows; each is said as
the table has it.
"""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.exc import StatementError

from rowlock.errors import RowlockError
from rowlock.streams import Streams
from rowlock.testing import TemporaryDatabase, run_until_settled

from .mistaken_hosts import Base, Payment
from .pages import DOCS
from .stream_mistakes import AT_CALL, AT_DECLARATION, IN_HANDLER, Mistake

PAGE = DOCS / "reference" / "mistakes.md"


def test_the_table_has_all_of_them() -> None:
    """A reader would look for a mistake that is not listed, or be promised what is not said."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## Of streams")
    section, _, _ = section.partition("| symptom")
    rows = [
        tuple(line.strip("| ").split(" | "))
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith("| mistake")
    ]
    expected = [
        (one.what, found, one.text, one.instead)
        for found, mistakes in (
            ("declaration", AT_DECLARATION),
            ("the step", IN_HANDLER),
            ("the call", AT_CALL),
        )
        for one in mistakes
    ]
    assert rows == expected


@pytest.mark.parametrize("mistake", AT_DECLARATION, ids=lambda one: one.what)
def test_it_is_said_at_declaration(mistake: Mistake) -> None:
    """A slip in a declaration would be found in production, or never."""
    with pytest.raises((RowlockError, TypeError, ValueError)) as caught:
        mistake.make()
    assert mistake.text in str(caught.value)


@pytest.mark.parametrize("mistake", IN_HANDLER, ids=lambda one: one.what)
async def test_it_is_said_by_the_step(sqlite_database: TemporaryDatabase, mistake: Mistake) -> None:
    """A slip in a handler would count as done."""
    streams = Streams(Base)
    await sqlite_database.create_tables(Base.metadata)
    flow = streams.flow("balances", Payment, shards=1, failures_max=1)
    state = None if "without `state=`" in mistake.what else int
    flow.by_key(state=state)(mistake.make)  # type: ignore[call-overload]
    async with sqlite_database.session_factory.begin() as session:
        session.add(Payment(account="a", cents=1))
    await run_until_settled(sqlite_database.session_factory, streams.pipelines())
    shards = streams.tables.shards.c
    async with sqlite_database.session_factory() as session:
        row = (await session.execute(select(shards.last_error, shards.parked_at))).one()
        status = await flow.status(session)
    assert mistake.text in row.last_error
    assert mistake.text in status.text
    assert row.parked_at is not None


@pytest.mark.parametrize("mistake", AT_CALL, ids=lambda one: one.what)
async def test_it_is_said_by_the_call(sqlite_database: TemporaryDatabase, mistake: Mistake) -> None:
    """A service would be answered as if all were well."""
    streams = Streams(Base)
    await sqlite_database.create_tables(Base.metadata)
    streams.log("words", str, key=str)
    streams.flow("balances", Payment)
    async with sqlite_database.session_factory() as session:
        with pytest.raises((RowlockError, TypeError, StatementError)) as caught:
            await mistake.make(streams, session)  # type: ignore[misc]
    assert mistake.text in str(caught.value)
