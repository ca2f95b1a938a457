"""The index and claims that resume: they read what they bring, however many rows before them are
leased.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from sqlalchemy import text

from rowlock import Fetcher, Pipeline
from rowlock.testing import TemporaryDatabase, stepping

from .conftest import Tree, WithOp
from .test_due_index import (
    CLAIM,
    INDEXES,
    READY,
    ROWS,
    DocumentPipeline,
    VolumePipeline,
    fill,
    sent,
)

LEASED = 20_000
CLAIMS = 15
READ_PER_CLAIM_MAX = 5 * CLAIM
"""Entries of the index that one claim reads: its rows, and some that other claims left behind."""
ORDERS = {VolumePipeline: "last_processed_at NULLS FIRST, id", DocumentPipeline: "due_at, id"}


async def lease(database: TemporaryDatabase, kind: type[Pipeline[Any]], count: int) -> None:
    """Lease the first `count` rows of the line for long."""
    table = kind.model.__table__.name  # type: ignore[attr-defined]
    ready = "submitted" if kind is VolumePipeline else "listed"
    async with database.engine.begin() as connection:
        await connection.execute(
            text(
                f"UPDATE {table} SET lock_owner = '{kind.__name__}', lock_expires_at = '2999-01-01"
                f" 00:00:00.000000' WHERE id IN (SELECT id FROM {table} WHERE status = '{ready}'"
                f" ORDER BY {ORDERS[kind]} LIMIT {count})"
            )
        )
    if database.dialect_name == "postgresql":
        # A snapshot of another connection might keep old versions from being pruned; these would be
        # read, too.
        async with database.create_engine(isolation_level="AUTOCOMMIT").connect() as connection:
            await connection.execute(text(f"VACUUM ANALYZE {table}"))


async def claim_in_a_row(fetcher: Fetcher[Any], times: int) -> None:
    """Claim as the fetcher's loop does while there is room."""
    for _ in range(times):
        claimed = fetcher.context.counters.claimed
        await fetcher._fetch(CLAIM)
        assert fetcher.context.counters.claimed == claimed + CLAIM


async def entries_read(database: TemporaryDatabase, index: str) -> int:
    """Return how many entries of the index have been read."""
    async with database.engine.connect() as connection:
        await connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
        await connection.commit()
        read = f"SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = '{index}'"
        return int((await connection.exec_driver_sql(read)).scalar_one())


@pytest.mark.parametrize("leased", [LEASED, ROWS // 2 + 1000])
@pytest.mark.parametrize("kind", INDEXES)
async def test_what_is_leased_is_walked_past_once(
    postgresql_database: TemporaryDatabase, kind: type[Pipeline[Any]], leased: int
) -> None:
    """Each claim would read all rows in flight, also once the server plans without its values."""
    database = postgresql_database
    await Tree(database).upgrade()
    await fill(database, READY["all are ready"])
    await lease(database, kind, leased)
    before = await entries_read(database, INDEXES[kind])
    async with stepping(
        database.session_factory, kind(workers_num=100, fetch_delays=[60])
    ) as steps:
        await claim_in_a_row(steps.run.fetcher, CLAIMS)
        read = await entries_read(database, INDEXES[kind]) - before
    assert leased < read <= leased + CLAIMS * READ_PER_CLAIM_MAX


@pytest.mark.parametrize("leased", [0, ROWS // 2 + 1000])
@pytest.mark.parametrize("kind", INDEXES)
async def test_a_resumed_claim_is_a_range_of_the_index(
    sqlite_database: TemporaryDatabase, kind: type[Pipeline[Any]], leased: int
) -> None:
    """Each claim would read all rows in flight."""
    database = sqlite_database
    await Tree(database).upgrade()
    await fill(database, READY["few are ready"])
    await lease(database, kind, min(leased, READY["few are ready"] // 2))
    with sent(database) as statements:
        async with stepping(database.session_factory, kind(fetch_delays=[60])) as steps:
            await claim_in_a_row(steps.run.fetcher, 2)
    claim, parameters = [pair for pair in statements if "ORDER BY" in pair[0]][1]
    async with database.engine.connect() as connection:
        rows = (await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {claim}", parameters)).all()
    plan = "\n".join(str(row[-1]) for row in rows)
    ranges = re.findall(rf"USING INDEX {INDEXES[kind]} \((.*)\)", plan)
    if kind is VolumePipeline and not leased:
        assert ranges == ["last_processed_at=? AND id>?"], plan
    else:
        assert [part.split(" AND due_at<")[0] for part in ranges] == [
            f"{ORDERS[kind].split()[0].strip(',')}=? AND id>?",
            f"{ORDERS[kind].split()[0].strip(',')}>?",
        ], plan
    assert not re.search(r"TEMP B-TREE|SCAN", plan), plan


@pytest.mark.parametrize("kind", INDEXES)
async def test_an_index_without_the_key_still_serves(
    database: TemporaryDatabase, tree: Tree, with_op: WithOp, kind: type[Pipeline[Any]]
) -> None:
    """A host that has not rebuilt its index would have its claims read the table, or bring other
    rows.
    """
    await tree.upgrade()
    table = kind.model.__table__.name  # type: ignore[attr-defined]
    place = ORDERS[kind].removesuffix(", id")
    place = place if database.dialect_name == "postgresql" else place.split()[0]
    async with database.engine.begin() as connection:
        await connection.execute(text(f"DROP INDEX {INDEXES[kind]}"))
        ready = "submitted" if kind is VolumePipeline else "listed"
        await connection.execute(
            text(f"CREATE INDEX {INDEXES[kind]} ON {table} ({place}) WHERE status = '{ready}'")
        )
    await fill(database, READY["few are ready"])
    with sent(database) as statements:
        async with stepping(
            database.session_factory, kind(workers_num=200, fetch_delays=[60])
        ) as steps:
            await claim_in_a_row(steps.run.fetcher, READY["few are ready"] // CLAIM // 2)
            assert len({item.id for item in steps.queued}) == READY["few are ready"] // 2
    for claim, parameters in [pair for pair in statements if "ORDER BY" in pair[0]][:2]:
        explain = "EXPLAIN" if database.dialect_name == "postgresql" else "EXPLAIN QUERY PLAN"
        async with database.engine.connect() as connection:
            rows = (await connection.exec_driver_sql(f"{explain} {claim}", parameters)).all()
        plan = "\n".join(str(row[-1]) for row in rows)
        # PostgreSQL may read a bitmap of it: rows of one place do not stand in the order of their
        # keys.
        assert re.search(
            rf"(?i)(?:using (?:index )?|bitmap index scan on ){INDEXES[kind]}\b", plan
        ), plan
