"""How a page of a snapshot is found among many states, as the database plans it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table, event, text
from sqlalchemy.orm import DeclarativeBase

from rowlock.streams.key_states import PageBounds, read_snapshot
from rowlock.streams.tables import StreamTables
from rowlock.testing import TemporaryDatabase

STATES = 30_000
PAGE = PageBounds(1_000, 4_194_304)
# Keys in an order that has nothing to do with that of the rows.
KEYS = {
    "sqlite": f"WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {STATES})"
    " SELECT hex(randomblob(8)) || n AS key FROM n",
    "postgresql": f"SELECT md5(n::text) AS key FROM generate_series(1, {STATES}) AS n",
}
INDEXES = {"sqlite": "sqlite_autoindex", "postgresql": "_pkey"}
SORTS = ("SORT", "TEMP B-TREE")


async def test_a_page_is_read_from_the_index(database: TemporaryDatabase) -> None:
    """Each of a hundred pages would read and sort all states."""
    base: Any = type("Base", (DeclarativeBase,), {})
    table = StreamTables.of(base).state
    await database.create_tables(base.metadata)
    columns, keys = "flow_id, name, key, bucket, version, value", KEYS[database.dialect_name]
    async with database.engine.begin() as connection:
        for flow in (7, 8):
            values = f"SELECT {flow}, 'add', key, 0, 5, '1' FROM ({keys}) AS keys"
            await connection.execute(text(f"INSERT INTO {table.name} ({columns}) {values}"))
    for is_analyzed in (False, True):
        if is_analyzed:
            async with database.engine.begin() as connection:
                await connection.execute(text(f"ANALYZE {table.name}"))
        for after in (None, "8"):
            plan = await plan_of_a_page(database, table, after)
            assert INDEXES[database.dialect_name] in plan
            # What SQLite does with the page itself is no matter.
            of_states = plan.upper().split("SCAN ANON_1")[0]
            assert not any(sort in of_states for sort in SORTS), plan


async def plan_of_a_page(database: TemporaryDatabase, table: Table, after: str | None) -> str:
    sent: list[Any] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        sent.append((statement, parameters))

    async with database.engine.connect() as connection:
        event.listen(database.engine.sync_engine, "before_cursor_execute", note)
        page = await read_snapshot(
            connection, table, 7, name="add", version=9, after=after, most=PAGE
        )
        event.remove(database.engine.sync_engine, "before_cursor_execute", note)
        assert len(page) == PAGE.keys
        ((statement, parameters),) = sent
        explain = "EXPLAIN" + " QUERY PLAN" * (database.dialect_name == "sqlite")
        rows = (await connection.exec_driver_sql(f"{explain} {statement}", parameters)).all()
    return "\n".join(str(row[-1]) for row in rows)
