"""Transactions that were prepared, and so are of no connection: a person is told which one it is,
whose, since when, and how it ends.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

import pytest
from sqlalchemy import text

from rowlock.insight import Insight, dialects
from rowlock.insight.verdicts import TouchingTransaction, ended, transaction_text
from rowlock.testing import TemporaryDatabase

from .shop import Scene, Volume, VolumePipeline, at, furnish, insight_of

FORGOTTEN: Final = {
    "a row that it has written": "UPDATE volumes SET secret = 'x' WHERE id = 17",
    "a row that it has locked": "SELECT * FROM volumes WHERE id = 17 FOR UPDATE",
    "the whole table": "LOCK TABLE volumes",
}


def end_of(gid: str) -> str:
    """Return what is said of how a transaction ends."""
    return ended(TouchingTransaction(None, None, 0.0, gid), "")


@asynccontextmanager
async def prepared(database: TemporaryDatabase, *statements: str) -> AsyncIterator[str]:
    """Leave a transaction behind, and give its name, which has a quotation mark."""
    gid = f"order's {database.url.database}"
    async with database.engine.connect() as connection:
        for statement in statements:
            await connection.exec_driver_sql(statement)
        await connection.exec_driver_sql("PREPARE TRANSACTION '{}'".format(gid.replace("'", "''")))
    try:
        yield gid
    finally:
        # While there is one the database cannot be dropped.
        async with database.engine.connect() as connection:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            mine = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
            if await connection.scalar(text(mine)):
                await connection.exec_driver_sql(end_of(gid).partition(" or: ")[2])


async def do(database: TemporaryDatabase, to_do: str) -> None:
    command = to_do[to_do.rindex("ROLLBACK PREPARED") :]
    async with database.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.exec_driver_sql(command)


async def asked(database: TemporaryDatabase) -> tuple[Insight, str]:
    async with database.engine.connect() as connection:
        user = str(await connection.scalar(text("SELECT current_user")))
    return insight_of(database, pipelines=[VolumePipeline()]), user


@pytest.mark.parametrize("what", FORGOTTEN)
async def test_a_prepared_transaction_is_named(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A coordinator that died between two phases would keep rows from every claim, behind restarts
    of the server, too, and nobody could tell why.
    """
    monkeypatch.setattr(dialects, "LEFT_AFTER", timedelta(0))
    await furnish(postgresql_database, Scene({"due_at": at(-3600)}))
    insight, user = await asked(postgresql_database)
    async with prepared(postgresql_database, FORGOTTEN[what]) as gid:
        name = f"'{gid.replace(chr(39), chr(39) * 2)}', prepared by {user} "
        [one] = (await insight.explain(Volume, 17)).pipelines
        status, found = await insight.status(), await insight.check()
        told, lines = (one.headline, *one.also), status.text().split("\n")
        assert any(line.startswith(f"TOUCHED by an open transaction: {name}") for line in told)
        assert one.needs_person
        assert status.needs_person
        assert any(re.match(rf"! VolumePipeline: {name}[^,]+, has ", line) for line in lines)
        [left] = [finding for finding in found if name in finding.text]
        assert left.level == "BAD"
        await do(postgresql_database, left.text)
    [one] = (await insight.explain(Volume, 17)).pipelines
    assert "TOUCHED" not in str((one.headline, *one.also))
    assert "prepared" not in (await insight.status()).text()


async def test_a_prepared_transaction_among_those_that_share_a_row_is_named(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A row that such a transaction shares with another would look as if nothing kept it."""
    await furnish(postgresql_database, Scene({"due_at": at(-3600)}))
    insight, user = await asked(postgresql_database)
    share = "SELECT * FROM volumes WHERE id = 17 FOR SHARE"
    async with postgresql_database.engine.connect() as other:
        await other.exec_driver_sql(share)
        async with prepared(postgresql_database, share) as gid:
            await other.rollback()
            told = (await insight.explain(Volume, 17)).text(200)
            assert re.search(rf"TOUCHED by an open transaction: .*, prepared by {user} ", told)
            await do(postgresql_database, end_of(gid))
    assert "TOUCHED" not in str((await insight.explain(Volume, 17)).text())


async def test_what_is_about_to_be_committed_or_has_only_read_is_no_trouble(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that commits in two phases would be called for each transaction of its own."""
    await furnish(postgresql_database, Scene({"due_at": at(-1)}))
    insight, _ = await asked(postgresql_database)

    async def is_told() -> bool:
        texts = [finding.text for finding in await insight.check()]
        return "prepared by" in str([(await insight.status()).text(), *texts])

    async with prepared(postgresql_database, "UPDATE volumes SET secret = 'x'") as gid:
        assert not await is_told()
        monkeypatch.setattr(dialects, "LEFT_AFTER", timedelta(0))
        assert await is_told()
        await do(postgresql_database, end_of(gid))
    async with prepared(postgresql_database, "SELECT * FROM volumes"):
        assert not await is_told()


def test_a_name_that_moves_the_cursor_is_escaped() -> None:
    """The name of a transaction could write over the terminal of the person who reads it, and would
    name another transaction in the command beside it.
    """
    by = TouchingTransaction(None, None, 7.0, "a\\b'\x1b[2J\u202e", "alice\n")
    assert transaction_text(by) == (
        r"E'a\\b\'\U0000001b[2J\U0000202e', prepared by alice\x0a 7 s ago"
    )
    assert ended(by, "").endswith(r"ROLLBACK PREPARED E'a\\b\'\U0000001b[2J\U0000202e'")
