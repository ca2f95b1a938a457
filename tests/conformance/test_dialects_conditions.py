"""Conditions on keys and tokens, and limits of rows: alike on every database."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import null, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.dialects.contract import LEASES
from rowlock.leases.item import leases_of
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase

from .kinds import ByNumber, ByUuid
from .test_dialects import claimed, columns_of, each_kind, insert_rows, transact


@pytest.mark.databases_in_turn
@each_kind
async def test_both_key_and_token_must_match(database: TemporaryDatabase, model: type[Any]) -> None:
    """A lease would be renewed or released under another row's token."""
    leased = LeasedTable.of(model)
    await insert_rows(database, model(), model(), model())
    one, two, three = await claimed(database, leased)

    async def found(*leases: tuple[Any, Any]) -> set[Any]:
        return set(await transact(database, leased, lambda c: _keys(c, leased, leases)))

    pairs = [(item.id, item.lock_token) for item in (one, two, three)]
    assert await found(*pairs) == {one.id, two.id, three.id}
    assert await found(*pairs[:2]) == {one.id, two.id}
    assert (
        await found(
            (one.id, two.lock_token), (two.id, one.lock_token), (three.id, leased.new_token())
        )
        == set()
    )
    assert await found((one.id, two.lock_token), pairs[1]) == {two.id}
    assert await found() == set()


async def _keys(connection: AsyncConnection, leased: LeasedTable, leases: Any) -> list[Any]:
    dialect = LEASES.of(connection)
    found = select(leased.key).where(dialect.matches_leases(leased))
    return list((await connection.scalars(found, dialect.lease_parameters(leased, leases))).all())


async def test_many_leases_in_one_condition(database: TemporaryDatabase) -> None:
    """A heartbeat of many leases would fail for the number of its parameters or the depth of its
    expression.
    """
    leased = LeasedTable.of(ByNumber)
    keys = await insert_rows(database, *(ByNumber() for _ in range(1200)))
    items = await claimed(database, leased, limit=1100)
    assert (
        len(await transact(database, leased, lambda c: _keys(c, leased, leases_of(items)))) == 1100
    )
    assert len(keys) == 1200


@pytest.mark.databases_in_turn(first=1)
@each_kind
async def test_at_most_so_many_rows(database: TemporaryDatabase, model: type[Any]) -> None:
    """One statement would write all rows of a large table."""
    leased = LeasedTable.of(model)
    await insert_rows(database, *(model() for _ in range(6)))
    dialect = LEASES.on(database.dialect_name)

    async def write(connection: AsyncConnection, limit: int | None) -> int:
        condition = dialect.skip_locked(
            leased, leased.column("lock_owner").is_(null()), limit=limit
        )
        result = await connection.execute(
            update(leased.table).where(condition).values({leased.column("lock_owner"): "x"})
        )
        return result.rowcount

    assert await transact(database, leased, lambda c: write(c, 2)) == 2
    assert await transact(database, leased, lambda c: write(c, None)) == 4
    owners = await columns_of(database, leased, "lock_owner")
    assert list(owners.values()) == [("x",)] * 6


async def test_at_most_so_many_rows_under_any_plan(postgresql_database: TemporaryDatabase) -> None:
    """A sweep of a table that grew since it was analyzed would write all of it: the limit would
    be applied once per row.
    """
    database, leased = postgresql_database, LeasedTable.of(ByUuid)
    await insert_rows(database, ByUuid())
    async with database.create_engine(isolation_level="AUTOCOMMIT").connect() as connection:
        await connection.exec_driver_sql("ALTER TABLE by_uuid SET (autovacuum_enabled = off)")
        await connection.exec_driver_sql("VACUUM ANALYZE by_uuid")
    await insert_rows(database, *(ByUuid() for _ in range(40)))
    condition = LEASES.on("postgresql").skip_locked(
        leased, leased.column("lock_owner").is_(null()), limit=3
    )
    async with database.engine.begin() as connection:
        for name in ("hashjoin", "mergejoin", "material", "memoize"):
            await connection.exec_driver_sql(f"SET LOCAL enable_{name} = off")
        result = await connection.execute(
            update(leased.table).where(condition).values({leased.column("lock_owner"): "x"})
        )
    assert result.rowcount == 3


async def test_a_locked_row_is_not_waited_for(postgresql_database: TemporaryDatabase) -> None:
    """One long transaction of the host would hold up every heartbeat and every sweep."""
    leased = LeasedTable.of(ByUuid)
    busy, free = await insert_rows(postgresql_database, ByUuid(), ByUuid())
    condition = LEASES.on("postgresql").skip_locked(leased, leased.column("status") == "new")
    statement = (
        update(leased.table)
        .where(condition)
        .values({leased.column("status"): "x"})
        .returning(leased.key)
    )
    async with (
        postgresql_database.engine.begin() as holder,
        postgresql_database.engine.begin() as other,
    ):
        await holder.execute(
            select(leased.key).where(leased.key == busy).with_for_update(key_share=True)
        )
        await other.execute(text("SET LOCAL lock_timeout = '1ms'"))
        assert list((await other.scalars(statement)).all()) == [free]
