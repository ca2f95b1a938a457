"""``rowlock rows``: what it prints, and its exit codes."""

from __future__ import annotations

import json

from rowlock.testing import TemporaryDatabase

from ..insight.shop import Base, Volume
from .conftest import Command


async def test_rows_are_printed_a_page_at_a_time(
    rowlock: Command, sqlite_database: TemporaryDatabase
) -> None:
    """A person would see the first rows and no way to the others, or an escape sequence."""
    await sqlite_database.create_tables(Base.metadata)
    async with sqlite_database.session_factory.begin() as session:
        error = "no \x1b[31m"
        session.add_all([Volume(id=number, attempts=1, last_error=error) for number in (1, 2)])
    words = ("rows", "VolumePipeline", "--state", "failing", "--app=app:pair")
    first = rowlock(*words, "--limit=1")
    assert (first.returncode, first.stderr) == (0, "")
    assert r"no \x1b[31m" in first.stdout
    *_, older = first.stdout.splitlines()
    command = older.removeprefix("older  rowlock ").split()
    second = rowlock(*command, "--json", "--app=app:pair")
    document = json.loads(second.stdout)
    assert document["schema"] == "rowlock.rows/1"
    assert [row["row_id"] for row in document["rows"]] == ["2"]
    assert rowlock("rows", "Nobody", "--app=app:pair").returncode == 2
    assert rowlock("rows", "VolumePipeline", "--state=lost", "--app=app:pair").returncode == 2
