"""The trigger, on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, update

from rowlock.demo.documents import DONE, Base, Document
from rowlock.demo.history import begin_history, times_applied
from rowlock.testing import TemporaryDatabase


@pytest.mark.parametrize(
    ("writes", "noted"),
    [
        ([{"status": DONE}], 1),
        ([{"status": DONE}, {"status": DONE}], 2),
        ([{"sha256": "of something"}], None),
    ],
)
async def test_each_write_of_a_result_is_noted(
    database: TemporaryDatabase, writes: list[dict[str, str]], noted: int | None
) -> None:
    """A result that was written twice would look like one, or a row that was only leased like a result."""
    await database.create_tables(Base.metadata)
    async with database.engine.begin() as connection:
        await begin_history(connection)
        await connection.execute(insert(Document).values(id=7, path="a"))
        for values in writes:
            await connection.execute(update(Document).values(values))
        assert (await times_applied(connection)).get(7) == noted
