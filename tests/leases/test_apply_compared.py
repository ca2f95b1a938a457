"""Values that must be as they were read: what counts as the same, where a column may hold it in
more than one shape.
"""

from __future__ import annotations

from typing import Any

import pytest

from rowlock.leases.apply import RowWrite, Written, apply
from rowlock.testing import TemporaryDatabase

from ..host import Run
from .ground import RUNS, add, claimed, row_of, transact

RESULT, STATUS = RUNS.column("result"), RUNS.column("status")


@pytest.mark.parametrize(
    ("read", "found", "written"),
    [
        (None, None, Written.APPLIED),
        (None, "null", Written.APPLIED),
        (None, '{"a": 1}', Written.CHANGED),
        (None, "0", Written.CHANGED),
        ({"a": 1}, '{"a":1}', Written.APPLIED),
        ({"a": 1}, '{"a": 2}', Written.CHANGED),
        ({"a": 1}, "null", Written.CHANGED),
        ({"a": 1}, None, Written.CHANGED),
        ([1, 2], "[2, 1]", Written.CHANGED),
    ],
)
async def test_a_document_is_compared_by_what_it_says(
    sqlite_database: TemporaryDatabase, read: Any, found: str | None, written: Written
) -> None:
    """What a service has written meanwhile would be overwritten; or a row that nobody touched be
    worked on for ever.
    """
    database = sqlite_database
    await add(database, Run(id=1))
    (item,) = await claimed(database, RUNS)
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql("UPDATE runs SET result = ?", (found,))
    write = RowWrite(
        {STATUS: "written"}, unless_changed={RESULT: read}, when_changed={STATUS: "overtaken"}
    )
    assert await transact(database, lambda c: apply(c, RUNS, item, write=write), RUNS) is written
    after = await row_of(database, RUNS, 1)
    assert after.status == {Written.APPLIED: "written", Written.CHANGED: "overtaken"}[written]
