"""The one index: the real claim uses it, no lock column gets into it, and an interrupted build
is repaired.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hosting.tables import Document, Volume
from sqlalchemy import ColumnElement, event
from sqlalchemy.exc import DBAPIError

from rowlock import Apply, ModelError, Pipeline, PipelineItem, due_index
from rowlock.migrations import add_due_index, drop_due_index
from rowlock.testing import TemporaryDatabase, stepping

from .conftest import Tree, WithOp, picture

ROWS = 50_000
CLAIM = 10
READY = {"few are ready": 200, "all are ready": ROWS}


class VolumePipeline(Pipeline[Volume]):
    model = Volume

    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Any]) -> Apply:
        return Apply()


class DocumentPipeline(Pipeline[Document]):
    model = Document

    def ready(self) -> ColumnElement[bool]:
        return Document.status == "listed"

    async def process(self, item: PipelineItem[Any]) -> Apply:
        return Apply()


INDEXES = {VolumePipeline: "ix_volumes_last_processed_at", DocumentPipeline: "ix_documents_due_at"}


async def fill(database: TemporaryDatabase, ready: int) -> None:
    """Insert `ROWS` volumes and documents; the last `ready` of each want work, half of them
    processed long ago.
    """
    if database.dialect_name == "postgresql":
        numbers, past = (
            "generate_series(1, :rows) AS numbers (n)",
            "now() - n * interval '1 minute'",
        )
        key = "lpad(n::text, 32, '0')::uuid"
    else:
        numbers = (
            "(WITH RECURSIVE up (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM up WHERE n < :rows)"
            " SELECT n FROM up)"
        )
        past, key = (
            "strftime('%Y-%m-%d %H:%M:%f000', 'now', -n || ' minutes')",
            "printf('%032d', n)",
        )
    processed = f"CASE WHEN (n & 1) = 0 THEN {past} END"
    statements = (
        (
            f"INSERT INTO volumes (id, status, size_gb, last_processed_at) SELECT {key}, CASE WHEN"
            f" n > :rows - :ready THEN 'submitted' ELSE 'active' END, 1, {processed} FROM {numbers}"
        ),
        (
            f"INSERT INTO documents (volume_id, path, status, due_at) SELECT {key}, '/' || n, CASE"
            f" WHEN n > :rows - :ready THEN 'listed' ELSE 'read' END, {past} FROM {numbers}"
        ),
    )
    async with database.engine.begin() as connection:
        for statement in statements:
            await connection.exec_driver_sql(
                statement.replace(":rows", str(ROWS)).replace(":ready", str(ready))
            )
        await connection.exec_driver_sql("ANALYZE")


@contextmanager
def sent(database: TemporaryDatabase) -> Iterator[list[tuple[str, Any]]]:
    statements: list[tuple[str, Any]] = []

    def note(
        connection: object, cursor: object, statement: str, parameters: Any, *rest: object
    ) -> None:
        statements.append((statement, parameters))

    engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", note)


async def plan_of_claim(database: TemporaryDatabase, pipeline: Pipeline[Any]) -> str:
    """Claim rows as the pipeline does, and return the plan of the statement that found them."""
    with sent(database) as statements:
        async with stepping(database.session_factory, pipeline) as steps:
            assert len(await steps.fetch_once(CLAIM)) == CLAIM
    claim, parameters = next(pair for pair in statements if "ORDER BY" in pair[0])
    explain = "EXPLAIN" if database.dialect_name == "postgresql" else "EXPLAIN QUERY PLAN"
    async with database.engine.connect() as connection:
        rows = (await connection.exec_driver_sql(f"{explain} {claim}", parameters)).all()
    return "\n".join(str(row[-1]) for row in rows)


@pytest.mark.parametrize("ready", READY)
@pytest.mark.parametrize("kind", INDEXES)
async def test_the_claim_reads_the_index_in_its_order(
    database: TemporaryDatabase, tree: Tree, kind: type[Pipeline[Any]], ready: str
) -> None:
    """Each claim would read all rows of the table, or all that are ready, and sort them."""
    await tree.upgrade()
    await fill(database, READY[ready])
    plan = await plan_of_claim(database, kind())
    assert re.search(rf"(?i)using (?:index )?{INDEXES[kind]}\b", plan), plan
    assert not re.search(r"Sort|Seq Scan on (?:volumes|documents)|TEMP B-TREE|SCAN \w+$", plan), (
        plan
    )


async def test_the_measure_would_notice(database: TemporaryDatabase, tree: Tree) -> None:
    """The test above would pass without any index."""
    await tree.upgrade("0002")
    await fill(database, ROWS)
    plan = await plan_of_claim(database, VolumePipeline())
    assert re.search(r"Sort|TEMP B-TREE", plan), plan


async def test_claims_go_on_using_it(postgresql_database: TemporaryDatabase) -> None:
    """After some claims the server might plan without their values, and so without the index."""
    database = postgresql_database
    await Tree(database).upgrade()
    await fill(database, READY["few are ready"])
    used = (
        "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname ="
        " 'ix_volumes_last_processed_at'"
    )
    read = "SELECT seq_scan FROM pg_stat_user_tables WHERE relname = 'volumes'"

    async def figures() -> tuple[int, int]:
        async with database.engine.connect() as connection:
            await connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
            await connection.commit()
            return tuple([(await connection.exec_driver_sql(sql)).scalar() for sql in (used, read)])

    before = await figures()
    async with stepping(database.session_factory, VolumePipeline(workers_num=100)) as steps:
        for _ in range(15):
            assert len(await steps.fetch_once(CLAIM)) == CLAIM
        after = await figures()
    assert after[0] - before[0] == 15
    assert after[1] == before[1]


@pytest.mark.parametrize("name", ["lock_token", "lock_owner", "lock_expires_at"])
@pytest.mark.parametrize(
    "ready", ["status = 'submitted' AND {} IS NULL", 'status = 1 OR "{}" = 2', "({}) IS NOT NULL"]
)
def test_a_lock_column_is_refused(name: str, ready: str) -> None:
    """Every heartbeat would write every index of the table, and no update could be heap-only."""
    with pytest.raises(ModelError, match=f"(?i){name}") as refused:
        due_index("volumes", ready=ready.format(name.upper() if "status =" in ready else name))
    assert (refused.value.model, refused.value.column) == ("volumes", name)
    with pytest.raises(ModelError, match=name):
        add_due_index(object(), "volumes", ready=getattr(Volume, name).is_(None))


@pytest.mark.parametrize(
    "ready",
    ["status = 'lock_token'", "note = 'it''s lock_owner'", "unlock_token", "lock_tokens = 1"],
)
def test_other_words_are_free(ready: str) -> None:
    """A host would be told off for a value, or for a column of its own."""
    assert due_index("volumes", ready=ready).name == "ix_volumes_last_processed_at"
    assert due_index("volumes", ready=Volume.status == "lock_token", name="mine").name == "mine"


def test_another_column_is_refused() -> None:
    """An index would be kept up to date that serves no claim."""
    with pytest.raises(ModelError, match="created_at"):
        due_index("volumes", ready="true", column="created_at")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ready", ["status = 'a :b %s'", Volume.status == "a :b %s"], ids=["text", "expression"]
)
async def test_the_condition_arrives_as_written(
    database: TemporaryDatabase, tree: Tree, with_op: WithOp, ready: str | ColumnElement[bool]
) -> None:
    """A colon or a percent sign would be taken for a parameter, and the index would hold other
    rows.
    """
    await tree.upgrade("0002")
    before = await picture(database)
    await with_op(lambda op: add_due_index(op, "volumes", ready=ready, name="mine"))
    (index,) = (await picture(database))["volumes"]["indexes"]
    assert "'a :b %s'" in str(index["dialect_options"][f"{database.dialect_name}_where"])
    await with_op(lambda op: drop_due_index(op, "volumes", name="mine"))
    assert await picture(database) == before


async def test_an_index_in_another_schema(
    postgresql_database: TemporaryDatabase, with_postgresql_op: WithOp
) -> None:
    """The index of a namesake would be built, or dropped."""
    async with postgresql_database.engine.begin() as connection:
        await connection.exec_driver_sql('CREATE SCHEMA "Other One"')
        for schema in ("public", '"Other One"'):
            await connection.exec_driver_sql(
                f"CREATE TABLE {schema}.jobs (id INTEGER PRIMARY KEY, due_at TIMESTAMPTZ, parked_at"
                " TIMESTAMPTZ)"
            )
    where: Any = {"column": "due_at", "schema": "Other One", "concurrently": True}
    listed = "SELECT schemaname FROM pg_indexes WHERE indexname = 'ix_jobs_due_at'"
    for step, found in (
        (lambda op: add_due_index(op, "jobs", ready="id > 0", **where), ["Other One"]),
        (lambda op: drop_due_index(op, "jobs", **where), []),
    ):
        await with_postgresql_op(step)
        async with postgresql_database.engine.connect() as connection:
            assert (await connection.exec_driver_sql(listed)).scalars().all() == found


async def test_the_service_goes_on_meanwhile(
    postgresql_database: TemporaryDatabase, with_postgresql_op: WithOp
) -> None:
    """Building the index would hold off all writes, while reading a big table takes minutes."""
    await Tree(postgresql_database).upgrade("0002")
    with sent(postgresql_database) as statements:
        await with_postgresql_op(
            lambda op: add_due_index(op, "volumes", ready="status = 'a'", concurrently=True)
        )
        await with_postgresql_op(lambda op: drop_due_index(op, "volumes", concurrently=True))
    words = [
        statement.split(" ix_")[0].strip() for statement, _ in statements if " ix_" in statement
    ]
    assert words[-2:] == ["CREATE INDEX CONCURRENTLY", "DROP INDEX CONCURRENTLY IF EXISTS"]


async def test_an_interrupted_build_is_repaired(
    postgresql_database: TemporaryDatabase, with_postgresql_op: WithOp
) -> None:
    """What an interrupted build leaves is never used, yet written at every insert, and its name
    is taken.
    """
    database = postgresql_database
    await Tree(database).upgrade("0002")
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql(
            "INSERT INTO volumes (id, status, size_gb) SELECT gen_random_uuid(), 'a', 0"
        )
    with pytest.raises(DBAPIError, match="division by zero"):
        await with_postgresql_op(
            lambda op: add_due_index(
                op, "volumes", ready="1 / size_gb > 0", name="half", concurrently=True
            )
        )
    valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = 'half'::regclass"
    async with database.engine.connect() as connection:
        assert (await connection.exec_driver_sql(valid)).scalar() is False
    await with_postgresql_op(
        lambda op: add_due_index(
            op, "volumes", ready="status = 'a'", name="half", concurrently=True
        )
    )
    async with database.engine.connect() as connection:
        assert (await connection.exec_driver_sql(valid)).scalar() is True


# ---------------------------------------------------------------- parked rows

FORMER = "CREATE INDEX ix_documents_due_at ON documents (due_at, id) WHERE status = 'listed'"
PARKED = 20_000
ENTRIES_MAX = 500
"""Most entries of the index that one claim may read, far below the number of parked rows."""


async def give_former_index(database: TemporaryDatabase) -> None:
    """Give the table the index that former releases advised."""
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql("DROP INDEX ix_documents_due_at")
        await connection.exec_driver_sql(FORMER)


async def park_oldest(database: TemporaryDatabase, count: int) -> None:
    oldest = f"SELECT id FROM documents ORDER BY due_at LIMIT {count}"
    async with database.engine.begin() as connection:
        await connection.exec_driver_sql(
            f"UPDATE documents SET parked_at = due_at WHERE id IN ({oldest})"
        )
    if database.dialect_name == "postgresql":
        # What the update left of the old index would be read once more, and is swept by autovacuum
        # in the end.
        async with database.engine.connect() as connection:
            outside = await connection.execution_options(isolation_level="AUTOCOMMIT")
            await outside.exec_driver_sql("VACUUM ANALYZE documents")


async def entries_of_claim(database: TemporaryDatabase) -> int:
    """Claim documents and return how many entries of the index that read."""
    read = (
        "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'ix_documents_due_at'"
    )

    async def figure() -> int:
        async with database.engine.connect() as connection:
            await connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
            await connection.commit()
            return int((await connection.exec_driver_sql(read)).scalar_one())

    async with stepping(database.session_factory, DocumentPipeline()) as steps:
        before = await figure()
        assert len(await steps.fetch_once(CLAIM)) == CLAIM
        return await figure() - before


@pytest.mark.parametrize("mended", [False, True], ids=["former", "mended"])
async def test_parked_rows_cost_no_claim(
    postgresql_database: TemporaryDatabase, with_postgresql_op: WithOp, *, mended: bool
) -> None:
    """Each claim would read all parked rows before the first that it can lease; the former index
    shows that the test notices.
    """
    database = postgresql_database
    await Tree(database).upgrade()
    await give_former_index(database)
    await fill(database, ROWS)
    if mended:
        await with_postgresql_op(
            lambda op: add_due_index(
                op, "documents", ready="status = 'listed'", column="due_at", concurrently=True
            )
        )
    await park_oldest(database, PARKED)
    read = await entries_of_claim(database)
    assert read <= ENTRIES_MAX if mended else read >= PARKED


async def test_parked_rows_are_not_in_the_index(database: TemporaryDatabase, tree: Tree) -> None:
    """The claim would not use the index, since its condition does not imply that of the index;
    or read all parked rows.
    """
    await tree.upgrade()
    await fill(database, READY["all are ready"])
    await park_oldest(database, PARKED)
    plan = await plan_of_claim(database, DocumentPipeline())
    assert re.search(r"(?i)using (?:index )?ix_documents_due_at\b", plan), plan
    assert not re.search(r"Sort|Seq Scan on documents|TEMP B-TREE|SCAN \w+$", plan), plan
    for index in (await picture(database))["documents"]["indexes"]:
        if index["name"] == "ix_documents_due_at":
            assert "parked_at IS NULL" in str(index["dialect_options"])
