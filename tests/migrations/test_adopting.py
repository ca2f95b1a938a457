"""A table with rows in it is adopted and given up again: nothing of the host's is touched, and
pipelines find their work.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from hosting.tables import Document, Volume
from sqlalchemy import ColumnElement, delete, select, text
from sqlalchemy.exc import DBAPIError

from rowlock import Apply, ConfigurationError, Pipeline, PipelineItem
from rowlock.migrations import (
    add_lock_columns,
    add_schedule_columns,
    drop_lock_columns,
    drop_schedule_columns,
    set_fillfactor,
)
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..host import HANG_S_MAX
from .conftest import Tree, WithOp, picture

ODD_NAME = 'Odd "Name"; %s :x'

VOLUMES = [
    (uuid.UUID(int=number), "submitted" if number % 2 else "active", number)
    for number in range(1, 21)
]
DOCUMENTS = [
    (number, uuid.UUID(int=number), f"/a/{number}", "listed" if number % 2 else "read")
    for number in range(1, 21)
]


class VolumePipeline(Pipeline[Volume]):
    model = Volume

    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Volume]) -> Apply:
        return Apply({"status": "active", "disk_id": "disk"})


class DocumentPipeline(Pipeline[Document]):
    model = Document

    def ready(self) -> ColumnElement[bool]:
        return Document.status == "listed"

    async def process(self, item: PipelineItem[Document]) -> Apply:
        return Apply({"status": "read", "sha256": "0" * 64})


async def fill(database: TemporaryDatabase) -> None:
    """Insert rows as they were before adopting, past the models."""
    async with database.engine.begin() as connection:
        for key, status, size_gb in VOLUMES:
            await connection.execute(
                text("INSERT INTO volumes (id, status, size_gb) VALUES (:id, :status, :size_gb)"),
                {"id": bare(database, key), "status": status, "size_gb": size_gb},
            )
        for key, volume_id, path, status in DOCUMENTS:
            await connection.execute(
                text(
                    "INSERT INTO documents (id, volume_id, path, status) VALUES (:id, :volume_id,"
                    " :path, :status)"
                ),
                {"id": key, "volume_id": bare(database, volume_id), "path": path, "status": status},
            )


def bare(database: TemporaryDatabase, key: uuid.UUID) -> object:
    return key.hex if database.dialect_name == "sqlite" else key


async def rows_of(database: TemporaryDatabase, sql: str) -> list[Any]:
    async with database.engine.connect() as connection:
        return [tuple(row) for row in (await connection.exec_driver_sql(sql)).all()]


HOST_COLUMNS = {
    "volumes": "SELECT id, status, size_gb, disk_id, active_at FROM volumes ORDER BY id",
    "documents": "SELECT id, volume_id, path, status, sha256 FROM documents ORDER BY id",
}


async def host_rows(database: TemporaryDatabase) -> dict[str, list[Any]]:
    """Return what the host itself has in its tables."""
    return {name: await rows_of(database, sql) for name, sql in HOST_COLUMNS.items()}


async def test_rows_survive_the_way_up_and_down(database: TemporaryDatabase, tree: Tree) -> None:
    """A host would lose rows, columns, constraints or settings by trying rowlock, or by leaving
    it.
    """
    await tree.upgrade("0001")
    await fill(database)
    before, rows = await picture(database), await host_rows(database)
    assert len(rows["volumes"]) == len(rows["documents"]) == 20
    await tree.upgrade()
    assert await host_rows(database) == rows
    assert await picture(database) != before
    await tree.downgrade("0001")
    assert await host_rows(database) == rows
    assert await picture(database) == before


async def test_adopted_rows_are_processed(database: TemporaryDatabase, tree: Tree) -> None:
    """Rows from before the migration would never be claimed, or settled ones would be."""
    await tree.upgrade("0001")
    await fill(database)
    await tree.upgrade()
    assert (
        await run_until_settled(database.session_factory, [VolumePipeline(), DocumentPipeline()])
        == 20
    )
    async with database.session_factory() as session:
        volumes = (await session.scalars(select(Volume))).all()
        documents = (await session.scalars(select(Document))).all()
    assert {volume.status for volume in volumes} == {"active"}
    assert {document.status for document in documents} == {"read"}
    assert sum(volume.disk_id == "disk" for volume in volumes) == 10
    assert sum(document.last_processed_at is not None for document in documents) == 10


async def test_adopted_rows_are_free_and_due_now(database_with_clock: TemporaryDatabase) -> None:
    """An adopted row would be leased by nobody, parked, counted as failed, or due at a time that
    nobody chose.
    """
    database, tree = database_with_clock, Tree(database_with_clock)
    await tree.upgrade("0001")
    await fill(database)
    await tree.upgrade()
    async with database.session_factory() as session:
        row = (await session.scalars(select(Document).limit(1))).one()
        due = {document.due_at for document in await session.scalars(select(Document))}
    assert (row.lock_token, row.lock_owner, row.lock_expires_at, row.last_processed_at) == (
        None,
    ) * 4
    assert (row.attempts, row.last_error, row.parked_at, row.deadline_at) == (0, None, None, None)
    assert len(due) == 1  # one moment for all: the migration's


async def test_a_row_inserted_past_the_model_is_due_now(
    database: TemporaryDatabase, tree: Tree
) -> None:
    """A service that inserts by plain SQL would have to know of our columns; on PostgreSQL its
    rows would also jump the queue.
    """
    await tree.upgrade()
    await fill(database)
    late = "SELECT count(*) FROM documents WHERE due_at {} AND attempts = 0"
    now = (
        "now()"
        if database.dialect_name == "postgresql"
        else "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
    )
    hour = (
        "now() - interval '1 hour'"
        if database.dialect_name == "postgresql"
        else "datetime('now', '-1 hour')"
    )
    assert await rows_of(database, late.format(f"<= {now}")) == [(20,)]
    jumped = 0 if database.dialect_name == "postgresql" else 20
    assert await rows_of(database, late.format(f"< {hour}")) == [(jumped,)]


async def test_children_keep_their_parents(database: TemporaryDatabase, tree: Tree) -> None:
    """A step that rebuilt the table on SQLite would cut the references to and from it."""
    await tree.upgrade("0001")
    await fill(database)
    await tree.upgrade()
    async with database.engine.connect() as connection:
        if database.dialect_name == "sqlite":
            await connection.exec_driver_sql("PRAGMA foreign_keys=ON")
        await connection.execute(delete(Volume).where(Volume.id == uuid.UUID(int=1)))
        await connection.commit()
    assert len(await rows_of(database, "SELECT id FROM documents")) == 19


async def test_a_failing_migration_leaves_nothing_behind(
    database: TemporaryDatabase, tree: Tree
) -> None:
    """A migration that fails half-way could be neither repeated nor taken back."""
    await tree.upgrade("0001")
    await fill(database)
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql("ALTER TABLE documents ADD COLUMN deadline_at INTEGER")
    before, rows = await picture(database), await host_rows(database)
    with pytest.raises((DBAPIError, ConfigurationError), match="deadline_at"):
        await tree.upgrade()
    assert await picture(database) == before
    assert await host_rows(database) == rows


async def test_a_big_table_is_not_rewritten(postgresql_database: TemporaryDatabase) -> None:
    """Adopting a big table would lock everybody out for as long as copying it takes."""
    database, tree = postgresql_database, Tree(postgresql_database)
    await tree.upgrade("0001")
    await fill(database)
    files = (
        "SELECT relname, relfilenode FROM pg_class WHERE relname IN ('volumes', 'documents') ORDER"
        " BY 1"
    )
    before = await rows_of(database, files)
    await tree.upgrade("0002")
    assert await rows_of(database, files) == before
    await tree.downgrade("0001")
    assert await rows_of(database, files) == before
    # The measure would have noticed: a default that is not the same for all rows rewrites the
    # table.
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql(
            "ALTER TABLE documents ADD COLUMN x timestamptz NOT NULL DEFAULT clock_timestamp()"
        )
    assert await rows_of(database, files) != before


async def test_the_migration_gives_up_rather_than_queue(
    postgresql_database: TemporaryDatabase,
) -> None:
    """One long transaction and the migration behind it would stop the whole service."""
    tree = Tree(postgresql_database)
    await tree.upgrade("0001")
    async with postgresql_database.engine.begin() as connection:
        await connection.exec_driver_sql("SELECT * FROM volumes")
        with pytest.raises(DBAPIError, match="lock timeout"):
            async with asyncio.timeout(HANG_S_MAX):
                await tree.upgrade("0002")


async def test_odd_names_are_quoted(database: TemporaryDatabase, with_op: WithOp) -> None:
    """A table whose name is not a plain word could not be adopted, or another statement would be
    run.
    """
    quoted = '"' + ODD_NAME.replace('"', '""') + '"'
    async with database.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        await connection.exec_driver_sql(f"CREATE TABLE {quoted} (id INTEGER PRIMARY KEY)")
    before = await picture(database)
    await with_op(
        lambda op: [
            add(op, ODD_NAME) for add in (add_lock_columns, add_schedule_columns, set_fillfactor)
        ]
    )
    assert len((await picture(database))[ODD_NAME]["columns"]) == 10
    await with_op(lambda op: set_fillfactor(op, ODD_NAME, None))
    await with_op(
        lambda op: [drop(op, ODD_NAME) for drop in (drop_schedule_columns, drop_lock_columns)]
    )
    assert await picture(database) == before


async def test_a_table_in_another_schema(
    postgresql_database: TemporaryDatabase, with_postgresql_op: WithOp
) -> None:
    """Only tables on the search path could be adopted, or a namesake there would be instead."""
    async with postgresql_database.engine.begin() as connection:
        await connection.exec_driver_sql('CREATE SCHEMA "Other One"')
        await connection.exec_driver_sql('CREATE TABLE "Other One".jobs (id INTEGER PRIMARY KEY)')
        await connection.exec_driver_sql("CREATE TABLE jobs (id INTEGER PRIMARY KEY)")
    steps = (add_lock_columns, add_schedule_columns, set_fillfactor)
    await with_postgresql_op(lambda op: [step(op, "jobs", schema="Other One") for step in steps])
    counted = (
        "SELECT table_schema, count(*) FROM information_schema.columns WHERE table_name = 'jobs'"
        " GROUP BY 1 ORDER BY 1"
    )
    assert await rows_of(postgresql_database, counted) == [("Other One", 10), ("public", 1)]
    await with_postgresql_op(lambda op: drop_schedule_columns(op, "jobs", schema="Other One"))
    await with_postgresql_op(lambda op: drop_lock_columns(op, "jobs", schema="Other One"))
    assert await rows_of(postgresql_database, counted) == [("Other One", 1), ("public", 1)]
