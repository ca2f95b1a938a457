"""`Insight.check` where the database refuses, is large, or has rows that were left behind."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import ColumnElement, event, insert, literal_column, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock.database.faults import is_outage
from rowlock.insight import Insight, Level
from rowlock.insight.checking import checkup, claim_plan
from rowlock.rows.database_time import database_time_after
from rowlock.testing import TemporaryDatabase

from .checking import (
    DEFECTS,
    TABLES,
    FleetPipeline,
    Volume,
    VolumePipeline,
    be_well,
    insight_of,
    run_migration,
    spoil,
)
from .shop import DEAD_TOKEN, TOKEN
from .test_refused import statements
from .test_status import replica


async def texts(insight: Insight) -> list[str]:
    return [f"{one.about} {one.level} {one.text}" for one in await insight.check()]


async def add_rows(database: TemporaryDatabase, *rows: dict[str, Any]) -> None:
    async with database.engine.begin() as connection:
        for number, row in enumerate(rows):
            await connection.execute(insert(Volume).values({"id": number + 1} | row))


async def test_a_table_that_a_migration_has_to_itself(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A check beside a migration would wait for it, and say nothing of all other tables."""
    await be_well(postgresql_database)
    await spoil(postgresql_database, DEFECTS["no index of processing"].sql)
    async with postgresql_database.engine.connect() as other, other.begin():
        pid = await other.scalar(text("SELECT pg_backend_pid()"))
        await other.execute(text("LOCK TABLE volumes IN ACCESS EXCLUSIVE MODE"))
        volumes, fleets = await texts(insight_of(postgresql_database))
    assert volumes.startswith(f"volumes BAD not looked at: pid {pid} (idle ")
    assert volumes.endswith(
        f"has locked the table for itself; wait for it, or: SELECT pg_terminate_backend({pid})"
    )
    assert fleets.startswith("fleets BAD no index serves the claim of FleetPipeline")


async def test_a_right_that_is_lacking_is_a_finding(postgresql_database: TemporaryDatabase) -> None:
    """A role that may not read one table would be told nothing at all."""
    await be_well(postgresql_database)
    role = f"reader_{postgresql_database.url.database}"
    async with postgresql_database.engine.begin() as connection:
        await connection.execute(text(f'CREATE ROLE "{role}"'))
        await connection.execute(text(f'GRANT SELECT ON ALL TABLES IN SCHEMA public TO "{role}"'))
        await connection.execute(text(f'REVOKE SELECT ON volumes FROM "{role}"'))
    engine = postgresql_database.create_engine()

    @event.listens_for(engine.sync_engine, "begin")
    def be_reader(connection: Any) -> None:
        connection.exec_driver_sql(f'SET ROLE "{role}"')

    pipelines = [VolumePipeline(), FleetPipeline()]
    found = await texts(Insight(async_sessionmaker(engine), pipelines, tables=TABLES))
    await engine.dispose()
    async with postgresql_database.engine.begin() as connection:
        await connection.execute(text(f'DROP OWNED BY "{role}"'))
        await connection.execute(text(f'DROP ROLE "{role}"'))
    assert found == [
        "VolumePipeline BAD its claim is refused: permission denied for table volumes",
        "volumes BAD what was left behind could not be looked at: permission denied for table"
        " volumes",
    ]


async def test_an_index_that_was_never_finished(postgresql_database: TemporaryDatabase) -> None:
    """Each write would keep up an index that nobody reads."""
    await be_well(postgresql_database)
    await spoil(postgresql_database, ("DROP INDEX ux_volumes_name",))
    await add_rows(postgresql_database, {"name": "same"}, {"name": "same"})
    async with postgresql_database.engine.connect() as connection:
        await connection.execution_options(isolation_level="AUTOCOMMIT")
        build = "CREATE UNIQUE INDEX CONCURRENTLY ux_volumes_name ON volumes (name)"
        with pytest.raises(Exception, match="could not create unique index") as failed:
            await connection.exec_driver_sql(build)
        assert not is_outage(failed.value)
        await connection.exec_driver_sql("DELETE FROM volumes WHERE id = 2")
    insight = insight_of(postgresql_database)
    found = await insight.check()
    assert [one.text for one in found] == [
        "index ux_volumes_name is invalid: its CREATE INDEX CONCURRENTLY failed, so each write"
        " keeps it up and no claim reads it; build it again, or drop it"
    ]
    await run_migration(postgresql_database, found)
    assert await insight.check() == ()


async def test_what_was_left_behind_is_told(database: TemporaryDatabase) -> None:
    """A pipeline that was renamed would leave rows behind of which nobody hears."""
    await be_well(database)
    long_ago = database_time_after(timedelta(hours=-3))
    ended = {"lock_token": DEAD_TOKEN, "lock_expires_at": long_ago}
    await add_rows(
        database,
        {"lock_owner": "OldPipeline"},
        {"lock_owner": "OldPipeline:3"},
        {"lock_owner": "BackupPipeline"},
        ended | {"lock_owner": "VolumePipeline"},
        ended | {"lock_owner": "billing:7c1f02aa"},
        {
            "lock_owner": "billing:7c1f02aa",
            "lock_token": TOKEN,
            "lock_expires_at": database_time_after(timedelta(seconds=30)),
        },
    )
    kept, left = await texts(insight_of(database))
    assert kept == (
        "volumes warn 2 rows are kept for OldPipeline, OldPipeline:3, which this app does not"
        ' have; the next sweep frees them, or: rowlock release MODEL ID --reason "..."'
    )
    assert left == (
        "volumes warn 2 rows are left with a lease that ended up to 3 h ago: a replica that runs"
        " takes them over or sweeps them: rowlock status"
    )


async def test_no_more_than_so_many_rows_are_looked_at(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check would read the whole of a large table."""
    await be_well(database)
    rows = [{"lock_owner": "OldPipeline"}] * 4
    await add_rows(database, *rows)
    monkeypatch.setattr(checkup, "LOOKED_MAX", 3)
    with statements(database) as sent:
        [told] = await texts(insight_of(database))
    assert told.startswith("volumes warn 3 rows are kept for OldPipeline, which")
    begun = {statement.split()[0].upper() for statement in sent}
    assert begun <= {"SELECT", "EXPLAIN", "SET", "SAVEPOINT", "RELEASE", "PRAGMA", "SHOW"}, begun
    assert not any("FOR UPDATE" in statement for statement in sent)


async def test_what_replicas_say_is_told(database_with_clock: TemporaryDatabase) -> None:
    """A loop that is late would be seen only on the replica itself."""
    await be_well(database_with_clock)
    late = {"late_s": {"fetcher": 12.5, "heartbeater": 1.5}}
    report = {"pipelines": {"VolumePipeline": late, "X": 7}, "lag_s": 0.8, "skew_s": -3600}
    quiet = {"pipelines": {"VolumePipeline": {}}, "lag_s": 0.01, "skew_s": None}
    assert TABLES.replicas is not None
    now = database_time_after(timedelta(seconds=-1))
    async with database_with_clock.engine.begin() as connection:
        for mark, name, told in (("3fa2c1d0", "web-7", report), ("91be04aa", "web-8", quiet)):
            row = replica(mark, name, report=told, seen_at=now, started_at=now)
            await connection.execute(insert(TABLES.replicas).values(row))
    assert sorted(await texts(insight_of(database_with_clock))) == [
        "VolumePipeline warn the fetcher of web-7 is 12 s late: look for host code that blocks"
        " the event loop, and for a pool that is too small",
        "web-7 warn the clock is 60 min behind the database's: no lease goes by it, but times in"
        " logs do: synchronise it",
        "web-7 warn the event loop stands still for 0.8 s: run what blocks it in a thread: a plain"
        " def process",
    ]


async def test_a_host_without_the_optional_tables(database: TemporaryDatabase) -> None:
    """It would be told that its database is bad, or never hear what it could know."""
    await be_well(database)
    insight = insight_of(database, tables=None)
    found = await insight.check()
    assert [(one.about, one.level) for one in found] == [
        ("rowlock_replicas", Level.NOTE),
        ("rowlock_controls", Level.NOTE),
    ]


class Failing(VolumePipeline):
    def ready(self) -> ColumnElement[bool]:
        return literal_column("nowhere") == 1


class Raising(VolumePipeline):
    """Fails before the database is asked, once it was made."""

    is_broken = False

    def ready(self) -> ColumnElement[bool]:
        if self.is_broken:
            raise RuntimeError("no settings")
        return super().ready()


@pytest.mark.parametrize(
    ("pipeline", "why"), [(Failing, "nowhere"), (Raising, "ready() fails: no settings")]
)
async def test_a_claim_that_is_refused(
    database: TemporaryDatabase,
    monkeypatch: pytest.MonkeyPatch,
    pipeline: type[VolumePipeline],
    why: str,
) -> None:
    """The pipeline would claim nothing, and its table would look well."""
    await be_well(database)
    insight = insight_of(database, pipelines=[pipeline])
    monkeypatch.setattr(Raising, "is_broken", True)
    [told] = await texts(insight)
    assert told.startswith(f"{pipeline.__name__} BAD its claim is refused: ")
    assert why in told
    plan = await insight.explain_claim(pipeline.__name__)
    assert plan.headline.startswith(f"CLAIMS OF {pipeline.__name__} ARE REFUSED by the database: ")
    # The planner gave no answer, and there is an index.
    view = await insight.explain_pipeline(pipeline.__name__)
    assert "  index     ?" in view.text().split("\n")


class OutOfTime(Exception):
    """What a driver raises of a statement that the server has ended."""

    sqlstate = "57014"


@pytest.mark.parametrize("question", ["pg_get_indexdef", "EXPLAIN"])
async def test_a_question_that_is_out_of_time_says_nothing_of_the_claim(
    postgresql_database: TemporaryDatabase, question: str
) -> None:
    """An index about which a starved database gives no answer in time is not missing, and the claim
    is not refused: the next look may find it.
    """
    database = postgresql_database
    await be_well(database)

    def on_execute(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if question in statement:
            raise DBAPIError(statement, {}, OutOfTime("canceling statement due to timeout"))

    insight = insight_of(database, pipelines=[VolumePipeline])
    event.listen(database.engine.sync_engine, "before_cursor_execute", on_execute)
    plan = await insight.explain_claim("VolumePipeline")
    event.remove(database.engine.sync_engine, "before_cursor_execute", on_execute)
    assert plan.headline == (
        "NO ANSWER ABOUT CLAIMS OF VolumePipeline: canceling statement due to timeout"
    )
    assert plan.wanted == ""


async def test_the_plan_of_a_claim(database: TemporaryDatabase) -> None:
    """A person could not see how the database reads a claim."""
    await be_well(database)
    insight = insight_of(database)
    for pipeline in insight.pipelines.values():
        plan = await insight.explain_claim(pipeline)
        assert plan.served_by is not None
        assert any(plan.served_by in line for line in plan.lines)
        assert not plan.needs_person
    await spoil(database, DEFECTS["no index"].sql)
    plan = await insight.explain_claim("VolumePipeline")
    assert plan.needs_person
    assert plan.headline.startswith("NO INDEX SERVES VolumePipeline: every claim reads the whole")
    assert plan.wanted.startswith("ix_volumes_due_at ON volumes (due_at, id) WHERE")
    assert plan.lines
    view = await insight.explain_pipeline("VolumePipeline")
    assert view.headline == plan.headline
    assert "  index     none serves the claim" in view.text().split("\n")


async def test_a_large_table_without_an_index_is_told_below_an_explanation(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row would wait behind claims that read a million rows each, and nobody would say so."""
    await be_well(database)
    await add_rows(database, *[{}] * 8)
    monkeypatch.setattr(claim_plan, "LARGE_ROWS", 7)
    insight = insight_of(database, pipelines=[VolumePipeline])
    [one] = (await insight.explain(Volume, 1)).pipelines
    assert one.remarks == ()
    await spoil(database, DEFECTS["no index"].sql)
    text_ = (await insight.explain(Volume, 1)).text(200)
    assert text_.endswith(
        "\n! every claim reads the whole table (more than 7 rows): no index serves it; see rowlock"
        " check"
    )
    if database.dialect_name == "postgresql":
        async with database.engine.begin() as connection:
            await connection.exec_driver_sql("ANALYZE volumes")
        assert "(about 8 rows)" in (await insight.explain(Volume, 1)).text(200)
    monkeypatch.setattr(claim_plan, "LARGE_ROWS", 8)
    assert (await insight.explain(Volume, 1)).pipelines[0].remarks == ()


@pytest.mark.parametrize("name", ["schedule lacks", "due at null"])
async def test_older_code_writes_while_the_migration_runs(
    database: TemporaryDatabase, database_name: str, name: str
) -> None:
    """Its rows would be refused while both versions run, or never be claimed."""
    defect = DEFECTS[name]
    if defect.only not in {"", database_name}:
        pytest.skip("the other database alone can have it")
    await be_well(database)
    await spoil(database, defect.sql)
    older = "INSERT INTO volumes (id, status) VALUES ({}, 'submitted')"
    await spoil(database, (older.format(11),))
    insight = insight_of(database)
    await run_migration(database, await insight.check())
    await spoil(database, (older.format(12),))
    assert await insight.check() == ()
    [volumes, *_] = (await insight.status()).pipelines
    assert volumes.counts.due == 2


@pytest.mark.parametrize(
    ("rows", "told"), [(1_234_567, "1,200,000"), (99, "99"), (7, "7"), (100_000, "100,000")]
)
def test_estimates_are_rounded(rows: int, told: str) -> None:
    """An estimate would look like a count."""
    size = f"every claim reads the whole table (about {told} rows)"
    assert claim_plan.whole_table(rows) == size
