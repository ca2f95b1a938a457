"""`Insight.status` and `Insight.replicas`: whether anything waits too long, within bounds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import ColumnElement, func, insert

from rowlock import parked_index
from rowlock.insight import Insight, Verdict, insight_tables, status
from rowlock.testing import TemporaryDatabase

from .shop import (
    DEAD_TOKEN,
    TOKEN,
    UNTIMED,
    Base,
    Scene,
    Volume,
    VolumePipeline,
    at,
    furnish,
    insight_of,
)

pytestmark = pytest.mark.either_database(
    but=[
        "test_what_waits_is_counted",
        "test_a_condition_that_is_refused_needs_a_person",
        "test_a_migration_that_was_not_run_costs_the_names_alone",
        "test_counts_end_at_their_bound",
        "test_parked_rows_are_counted_where_an_index_finds_them",
        "test_what_one_user_may_not_count_is_no_trouble_of_the_claims",
    ]
)

TABLES = insight_tables(Base.metadata)
HEALTHY = {"settled_s": 7.1, "p95_s": 1.8, "fetch_failures": 0, "last_error": None}


def replica(mark: str, name: str, **changes: Any) -> dict[str, Any]:
    """Return the row of a replica that lives and runs the pipeline of volumes."""
    row = {
        "mark": mark,
        "name": name,
        "host": "host-1",
        "pid": 1,
        "version": "1",
        "started_at": at(-3600),
        "seen_at": at(-2),
        "draining": False,
        "report": {"pipelines": {"VolumePipeline": HEALTHY}},
    }
    return row | changes


async def filled(database: TemporaryDatabase, *replicas: dict[str, Any]) -> Insight:
    """Return questions to a shop with a volume in each state, and with replicas."""
    await furnish(database, Scene({"due_at": at(-120)}))
    owned = {"lock_owner": "VolumePipeline"}
    due = {"due_at": at(-60)}
    states: list[dict[str, Any]] = [
        due | owned | {"lock_token": TOKEN, "lock_expires_at": at(9), "attempts": 1},
        due | owned | {"lock_token": DEAD_TOKEN, "lock_expires_at": at(-9)},
        due | {"status": "active"},
        due | {"parked_at": at(-5), "attempts": 2},
        {"due_at": at(500)},
    ]
    async with database.engine.begin() as connection:
        for number, state in enumerate(states):
            values = {"id": 100 + number, "status": "submitted"} | state
            await connection.execute(insert(Volume).values(values))
        for row in replicas:
            assert TABLES.replicas is not None
            await connection.execute(insert(TABLES.replicas).values(row))
    return insight_of(database, pipelines=[VolumePipeline()], tables=TABLES)


async def test_what_waits_is_counted(database_with_clock: TemporaryDatabase) -> None:
    """A person would not see that rows wait, or that replicas died over them."""
    insight = await filled(database_with_clock, replica("3fa2c1d0", "web-7"))
    status = await insight.status()
    [one] = status.pipelines
    assert (one.counts.due, one.counts.oldest_s) == (2, 120.0)
    assert (one.counts.leased, one.counts.ended, one.counts.failing) == (1, 1, 1)
    assert one.counts.resting == 1
    assert not status.needs_person
    first, *table = status.text().split("\n")
    assert first.endswith("   03:14:05 UTC   1 replica: web-7")
    assert table == [
        "PIPELINE        DUE  OLDEST  LEASED  ENDED  PARKED  ROWS/S    P95  STATE",
        "VolumePipeline  2    2 min        1      1       \N{EN DASH}     7.1  1.8 s  runs on 1",
    ]


async def test_rows_that_nobody_works_on_need_a_person(
    database_with_clock: TemporaryDatabase,
) -> None:
    """Nobody would hear that the pipeline is registered nowhere."""
    dead = replica("91be04aa", "web-8", seen_at=at(-16))
    other = replica("00000001", "web-9", report={"pipelines": {}})
    insight = await filled(database_with_clock, dead, other)
    status = await insight.status()
    assert status.needs_person
    assert status.text().endswith(
        "\n! VolumePipeline: due for 2 min, and no replica runs it: register VolumePipeline() with"
        " the manager of a replica"
    )
    assert "NOBODY RUNS IT" in status.text()
    [one] = (await insight.explain(Volume, 17)).pipelines
    assert one.verdict is Verdict.NOBODY_RUNS
    assert one.headline == "NOBODY RUNS VolumePipeline: due for 2 min"
    assert one.why == "1 replica lives, and none has it registered."


@pytest.mark.parametrize("state", ["new", "stopping", "stopped"])
async def test_what_is_registered_and_not_started_is_run_by_nobody(
    sqlite_database_with_clock: TemporaryDatabase, state: str
) -> None:
    """A manager that nobody has started would seem to work, for days."""
    report = {"pipelines": {"VolumePipeline": HEALTHY | {"state": state}}}
    insight = await filled(sqlite_database_with_clock, replica("3fa2c1d0", "web-7", report=report))
    [one] = (await insight.explain(Volume, 17)).pipelines
    assert one.headline == "NOBODY RUNS VolumePipeline: due for 2 min"
    assert one.why == (
        "1 replica lives, and 1 has it registered: that manager is not started, or stops."
    )
    assert one.do == "start the manager of VolumePipeline() in a replica"
    assert (
        (await insight.status())
        .text()
        .endswith("no replica runs it: start the manager of VolumePipeline() in a replica")
    )


async def test_what_a_report_has_no_room_for_is_not_said_to_run_nowhere(
    sqlite_database_with_clock: TemporaryDatabase,
) -> None:
    """A person would be woken for a pipeline that runs, in a replica that has very many."""
    report = {"pipelines": {"AnotherPipeline": HEALTHY}, "pipelines_left_out": 1}
    insight = await filled(sqlite_database_with_clock, replica("3fa2c1d0", "web-7", report=report))
    [one] = (await insight.explain(Volume, 17)).pipelines
    assert one.verdict is not Verdict.NOBODY_RUNS
    status = await insight.status()
    assert not status.needs_person
    assert "? replicas: a replica has more pipelines than its report has room for" in status.text()


class Raising(VolumePipeline):
    calls = 0

    def ready(self) -> ColumnElement[bool]:
        self.calls += 1
        if self.calls > 1:
            raise LookupError("no settings")
        return super().ready()


class Refused(VolumePipeline):
    def ready(self) -> ColumnElement[bool]:
        return func.no_such_function(Volume.status) == "submitted"


@pytest.mark.parametrize(
    ("pipeline", "why"),
    [(Raising, "ready() raises LookupError: no settings"), (Refused, "no_such_function")],
)
async def test_a_condition_that_is_refused_needs_a_person(
    database_with_clock: TemporaryDatabase, pipeline: type[VolumePipeline], why: str
) -> None:
    """Of a pipeline that claims nothing a status would say that all is well."""
    await furnish(database_with_clock, Scene({"due_at": at(-120)}))
    insight = insight_of(database_with_clock, pipelines=[pipeline()])
    status = await insight.status()
    [told] = status.pipelines
    assert told.counts.due is None
    assert status.needs_person
    [trouble] = told.troubles
    assert trouble.startswith("the condition of its claims is refused: ")
    assert why in trouble
    assert status.to_dict()["pipelines"][0]["needs_person"]


async def test_what_one_user_may_not_count_is_no_trouble_of_the_claims(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A person who may not read a table would be told that nothing is claimed from it."""
    await filled(database_with_clock, replica("3fa2c1d0", "web-7"))
    running = {"pipelines": {"Refused": HEALTHY}}
    async with database_with_clock.engine.begin() as connection:
        assert TABLES.replicas is not None
        await connection.execute(TABLES.replicas.update().values(report=running))
    insight = insight_of(database_with_clock, pipelines=[Refused()], tables=TABLES)
    status = await insight.status()
    assert not status.needs_person
    assert "\n? Refused: " in status.text()


async def test_replicas_whose_claims_all_fail(database_with_clock: TemporaryDatabase) -> None:
    """A row would seem to be in line behind claims that never come."""
    failing = HEALTHY | {"fetch_failures": 3, "last_error": "TransactionTimeout: no answer"}
    report = {"pipelines": {"VolumePipeline": failing}}
    insight = await filled(database_with_clock, replica("3fa2c1d0", "web-7", report=report))
    [one] = (await insight.explain(Volume, 17)).pipelines
    assert one.headline == "CLAIMS FAIL on 1 of 1 replicas: TransactionTimeout: no answer"


async def test_replicas_are_listed(database_with_clock: TemporaryDatabase) -> None:
    """A person could not tell which process has a row, or that one is gone."""
    dead = replica("91be04aa", "web\x1b8", seen_at=at(-40))
    drains = replica("00000001", "web-9", draining=True)
    insight = await filled(database_with_clock, replica("3fa2c1d0", "web-7"), dead, drains)
    replicas = await insight.replicas()
    assert {one.mark: one.state for one in replicas.known or ()} == {
        "3fa2c1d0": "live",
        "00000001": "draining",
        "91be04aa": "silent for 40 s",
    }
    assert r"web\x1b8" in replicas.text()
    held = await insight.explain(Volume, 100)
    assert held.pipelines[0].headline == "LEASED by web-7, ends in 9 s unless renewed"


async def test_without_the_tables_nobody_knows(database_with_clock: TemporaryDatabase) -> None:
    """A host that lends no table would get an error in place of its counts."""
    await furnish(database_with_clock, Scene({"due_at": at(-120)}))
    insight = insight_of(database_with_clock, pipelines=[VolumePipeline()])
    assert (await insight.replicas()).text().startswith("? no table of replicas")
    status = await insight.status()
    assert "? replicas" in status.text()
    assert "NOBODY SEEMS TO RUN IT" in status.text()


async def test_a_migration_that_was_not_run_costs_the_names_alone(
    database_with_clock: TemporaryDatabase,
) -> None:
    """An optional table that is missing would take the explanation with it."""
    insight = await filled(database_with_clock)
    async with database_with_clock.engine.begin() as connection:
        assert TABLES.replicas is not None
        await connection.run_sync(TABLES.replicas.drop)
    assert (await insight.replicas()).known is None
    assert (await insight.explain(Volume, 17)).is_there
    assert (await insight.status()).pipelines[0].counts.due == 2


async def test_counts_end_at_their_bound(
    database_with_clock: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A status of a large table would read all of it."""
    monkeypatch.setattr(status, "COUNTED_MAX", 3)
    await furnish(database_with_clock, Scene(before=20))
    insight = insight_of(database_with_clock, pipelines=[VolumePipeline()])
    assert (await insight.status()).pipelines[0].counts.due == 4


async def test_a_count_that_takes_too_long_is_an_answer(
    postgresql_database: TemporaryDatabase,
) -> None:
    """A status would wait for the slowest condition of all pipelines."""

    class Slow(VolumePipeline):
        def ready(self) -> ColumnElement[bool]:
            return (Volume.status == "submitted") & func.pg_sleep(3600).is_not(None)

    class Other(VolumePipeline):
        pass

    await furnish(postgresql_database, Scene())
    limits = replace(UNTIMED, count_timeout=timedelta(seconds=3))
    pipelines = [Slow(), Other()]
    status = await insight_of(postgresql_database, pipelines=pipelines, limits=limits).status()
    assert [one.counts.due for one in status.pipelines] == [None, 1]
    assert status.pipelines[0].troubles == ()


async def test_parked_rows_are_counted_where_an_index_finds_them(
    database_with_clock: TemporaryDatabase,
) -> None:
    """A count of parked rows would read the whole table; or `status` would name other ones than the
    list begins with.
    """
    insight = await filled(database_with_clock)
    assert (await insight.status()).pipelines[0].counts.parked is None
    index = parked_index(Volume)
    try:
        async with database_with_clock.engine.begin() as connection:
            for key, since in ((300, -9), (200, -30)):
                values = {"id": key, "status": "submitted", "parked_at": at(since)}
                await connection.execute(insert(Volume).values(values))
        status = await insight.status()
        counts_, listed = status.pipelines[0].counts, await insight.rows("VolumePipeline", "parked")
        assert (counts_.parked, counts_.parked_keys) == (3, ("200", "300", "103"))
        assert counts_.parked_keys == tuple(row.row_id for row in listed.rows)
        assert status.to_dict()["pipelines"][0]["parked_key"] == "200"
        assert "3 rows are parked, such as Volume 200: " in status.text()
    finally:
        Volume.__table__.indexes.discard(index)  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [40, 59, 60, 89, 90])
async def test_a_narrow_terminal_gets_fewer_columns(
    database_with_clock: TemporaryDatabase, width: int
) -> None:
    """A table would be broken in the middle of its lines."""
    insight = await filled(database_with_clock, replica("3fa2c1d0", "web-7"))
    _, *table = (await insight.status()).text(width).split("\n")
    assert all(len(line) <= width for line in table)
    assert ("P95" in table[0]) == (width >= 90)
    assert ("LEASED" in table[0]) == (width >= 60)
    assert "STATE" in table[0]
