"""Rebuilding a table on SQLite: what would get lost is found before anything is done, and what is kept is not complained about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import CheckConstraint

from rowlock import ConfigurationError
from rowlock.dispatch.migrations import add_dispatch_columns
from rowlock.rows.migrations import add_lock_columns, add_schedule_columns, schedule_columns
from rowlock.rows.sqlite_rebuild import SchemaEntry, lost_by_rebuild
from rowlock.testing import TemporaryDatabase

from .conftest import WithOp, picture

PLAIN = "CREATE TABLE runs (id INTEGER PRIMARY KEY, name TEXT)"
CHILD = "CREATE TABLE lines (id INTEGER PRIMARY KEY, run_id INTEGER REFERENCES runs (id) ON DELETE CASCADE)"


async def script(database: TemporaryDatabase, statements: Sequence[str]) -> None:
    """Run statements, each in a transaction of its own."""
    async with database.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        for statement in statements:
            await connection.exec_driver_sql(statement)


async def schema(database: TemporaryDatabase) -> list[Any]:
    """Return the whole schema as SQLite keeps it."""
    async with database.engine.connect() as connection:
        return [tuple(row) for row in await connection.exec_driver_sql("SELECT type, name, sql FROM sqlite_master")]


LOSSES = {
    "a trigger of the table": (
        [PLAIN, "CREATE TRIGGER watch AFTER UPDATE ON runs BEGIN SELECT 1; END"],
        "the trigger watch",
    ),
    "a trigger that mentions the table": (
        [PLAIN, CHILD, "CREATE TRIGGER watch AFTER UPDATE ON lines BEGIN DELETE FROM Runs; END"],
        "the trigger watch",
    ),
    "a view of the table": ([PLAIN, "CREATE VIEW names AS SELECT name FROM runs"], "the view names"),
    "an index of an expression": ([PLAIN, "CREATE INDEX lowered ON runs (lower(name))"], "the index lowered"),
    "an index with a collation": ([PLAIN, "CREATE INDEX folded ON runs (name COLLATE NOCASE)"], "the index folded"),
    "a check without a name": (["CREATE TABLE runs (id INTEGER PRIMARY KEY, name TEXT CHECK (name > ''))"], "a CHECK"),
    "a collation": (["CREATE TABLE runs (id INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE)"], "COLLATE"),
    "a counter": (["CREATE TABLE runs (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT)"], "AUTOINCREMENT"),
    "a column of the same name": (["CREATE TABLE runs (id INTEGER PRIMARY KEY, Attempts INTEGER)"], "column attempts"),
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_lossy_rebuild_is_refused(
    sqlite_database: TemporaryDatabase, with_sqlite_op: WithOp, loss: str
) -> None:
    """A host would lose a part of its schema, or its data, and hear of it much later."""
    statements, said = LOSSES[loss]
    await script(sqlite_database, statements)
    before = await schema(sqlite_database)
    with pytest.raises(ConfigurationError, match=said):
        await with_sqlite_op(lambda op: add_schedule_columns(op, "runs"))
    assert await schema(sqlite_database) == before


async def test_the_table_of_another_schema_is_looked_at(
    sqlite_database: TemporaryDatabase, with_sqlite_op: WithOp
) -> None:
    """A table of the same name in the main schema would be looked at instead, and the other lose what it has."""

    def add(op: Any) -> None:
        connection = op.get_bind()
        for statement in (PLAIN, "ATTACH ':memory:' AS side", f"{PLAIN.replace('runs', 'side.runs')}"):
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql("CREATE TRIGGER side.watch AFTER UPDATE ON runs BEGIN SELECT 1; END")
        add_dispatch_columns(op, "runs", schema="side")

    with pytest.raises(ConfigurationError, match="the trigger watch"):
        await with_sqlite_op(add)


async def test_children_are_not_deleted(sqlite_database: TemporaryDatabase, with_sqlite_op: WithOp) -> None:
    """With foreign keys enforced, dropping the old table would delete all rows that refer to it."""
    await script(
        sqlite_database,
        [PLAIN, CHILD, "INSERT INTO runs (id) VALUES (1)", "INSERT INTO lines VALUES (1, 1)", "PRAGMA foreign_keys=ON"],
    )
    with pytest.raises(ConfigurationError, match="foreign_keys=OFF"):
        await with_sqlite_op(lambda op: add_schedule_columns(op, "runs"))
    async with sqlite_database.engine.connect() as connection:
        # The pool has one idle connection, so this is the one that enforces them.
        assert (await connection.exec_driver_sql("PRAGMA foreign_keys")).scalar() == 1
        assert (await connection.exec_driver_sql("SELECT count(*) FROM lines")).scalar() == 1


async def test_what_is_kept_is_kept(sqlite_database: TemporaryDatabase, with_sqlite_op: WithOp) -> None:
    """A plain table would be refused, or come back with less than it had."""
    await script(
        sqlite_database,
        [
            "CREATE TABLE runs (id INTEGER NOT NULL PRIMARY KEY, name TEXT DEFAULT 'STRICT COLLATE' NOT NULL, size INTEGER,"
            " parent_id INTEGER, CONSTRAINT positive CHECK (size > 0), CONSTRAINT one_name UNIQUE (name),"
            " CONSTRAINT parent FOREIGN KEY (parent_id) REFERENCES runs (id) ON DELETE CASCADE ON UPDATE SET NULL"
            " DEFERRABLE INITIALLY DEFERRED) WITHOUT ROWID",
            CHILD,
            "CREATE INDEX big ON runs (size) WHERE (size > 10)",
            "CREATE TABLE other (id INTEGER PRIMARY KEY AUTOINCREMENT, runs_name TEXT CHECK (runs_name > ''))",
            "CREATE VIEW elsewhere AS SELECT runs_name FROM other",
        ],
    )
    before = await picture(sqlite_database)
    await with_sqlite_op(lambda op: [add_lock_columns(op, "runs"), add_schedule_columns(op, "runs")])
    after = await picture(sqlite_database)
    assert [column["name"] for column in after["runs"]["columns"][-5:]] == [new.name for new in schedule_columns()]
    after["runs"]["columns"] = after["runs"]["columns"][:4]
    assert after == before


async def test_a_batch_of_the_hosts_own(sqlite_database: TemporaryDatabase, with_sqlite_op: WithOp) -> None:
    """A host whose table is refused would have no way to adopt it."""
    statements, _ = LOSSES["a check without a name"]
    await script(sqlite_database, statements)

    def steps(op: Any) -> None:
        with op.batch_alter_table("runs", table_args=(CheckConstraint("name > ''", name="named"),)) as batch:
            for new in schedule_columns():
                batch.add_column(new)

    await with_sqlite_op(steps)
    after = (await picture(sqlite_database))["runs"]
    assert len(after["columns"]) == 7
    assert [check["name"] for check in after["checks"]] == ["named"]


@pytest.mark.parametrize(
    ("body", "options", "lost"),
    [
        ("name TEXT", "STRICT", "STRICT"),
        ("name TEXT", "WITHOUT ROWID, STRICT", "STRICT"),
        ("name TEXT UNIQUE ON CONFLICT REPLACE", "", "ON CONFLICT"),
        ("twice INTEGER GENERATED ALWAYS AS (id * 2)", "", "GENERATED"),
        ("twice INTEGER AS (id * 2)", "", "AS"),
        ("other_id INTEGER REFERENCES other ON DELETE CASCADE", "", "REFERENCES"),
        ('other_id INTEGER REFERENCES "o t" ("i d") DEFERRABLE', "", "REFERENCES"),
        (
            "a INTEGER REFERENCES other (id) ON UPDATE CASCADE, FOREIGN KEY (a) REFERENCES b ON DELETE SET NULL",
            "",
            "REF",
        ),
        ("name TEXT, CONSTRAINT long CHECK (name > 'a') CHECK (name < 'b')", "", "CHECK"),
    ],
)
def test_what_is_not_read_back_is_found(body: str, options: str, lost: str) -> None:
    """The rebuilt table would accept what the old one refused, keep what it deleted, or fail in the middle."""
    entry = SchemaEntry("table", "runs", "runs", f"CREATE TABLE runs (id INTEGER PRIMARY KEY, {body}) {options}")
    assert any(lost in found for found in lost_by_rebuild("RUNS", [entry]))


@pytest.mark.parametrize(
    ("body", "options"),
    [
        ("name TEXT", "WITHOUT ROWID"),
        ("other_id INTEGER REFERENCES other (id)", ""),
        ("other_id INTEGER, CONSTRAINT it FOREIGN KEY (other_id) REFERENCES other (id) ON DELETE CASCADE", ""),
        ('other_id INTEGER, FOREIGN KEY ("other_id") REFERENCES "o t" DEFERRABLE INITIALLY DEFERRED', ""),
        ('name TEXT CONSTRAINT "a b" CHECK (CAST(name AS INTEGER) > 1)', ""),
        ("name TEXT DEFAULT 'COLLATE' /* STRICT */ UNIQUE -- CHECK (name)\n", ""),
        ("stricter TEXT, has_generated TEXT", ""),
    ],
)
def test_what_is_read_back_is_free(body: str, options: str) -> None:
    """A table that would come through unharmed would be refused."""
    entry = SchemaEntry("table", "runs", "runs", f"CREATE TABLE runs (id INTEGER PRIMARY KEY, {body}) {options}")
    assert list(lost_by_rebuild("runs", [entry])) == []
