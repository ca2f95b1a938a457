"""A pause: committed, for all replicas, with a name and a reason, and refused where it would not
hold.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import MetaData, event, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker

from rowlock import PipelineError, pipeline_hinter
from rowlock.errors import AppError
from rowlock.insight import InsightTables, insight_tables
from rowlock.insight.actions import Actions
from rowlock.insight.asking import PipelineHost
from rowlock.insight.steering import AlreadyPaused, NotPausable
from rowlock.pipelines.attempt import Seams
from rowlock.testing import TemporaryDatabase, stepping

from ..host import HANG_S_MAX, Run, RunPipeline
from ..pipelines.scenes import add
from .test_actions import AUDIT, BY, Seen, told

pytestmark = pytest.mark.either_database(
    but=[
        "test_a_pause_holds_until_it_is_ended",
        "test_a_second_pause_does_not_end_the_first_one_silently",
        "test_a_pause_ends_by_itself",
    ]
)

TABLES = insight_tables(MetaData())
LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


def actions_on(database: TemporaryDatabase, **given: Any) -> Actions:
    """Return the actions of an app that has the tables."""
    gates = given.pop("gates", None)
    actions = Actions(database.session_factory, (), **{"tables": TABLES, **given})
    actions.add(PipelineHost(database.session_factory, gates), [RunPipeline()])
    return actions


async def add_run(database: TemporaryDatabase) -> None:
    assert TABLES.controls is not None
    await database.create_tables(TABLES.controls.metadata)
    await add(database, Run(id=1))


async def pauses(database: TemporaryDatabase) -> list[Any]:
    assert TABLES.controls is not None
    async with database.engine.connect() as connection:
        return [tuple(row) for row in await connection.execute(select(TABLES.controls))]


ON_ROWS = ("park", "unpark", "make_due", "release")


@pytest.mark.parametrize("action", ["pause", "resume", *ON_ROWS])
async def test_an_action_queues_for_the_file(
    sqlite_database: TemporaryDatabase, action: str
) -> None:
    """`pause` on SQLite would meet `database is locked` while a service writes."""
    database, refused = sqlite_database, asyncio.Event()
    await add_run(database)
    engine = database.create_engine(connect_args={"timeout": 0})
    event.listen(engine.sync_engine, "handle_error", lambda _context: refused.set())
    actions = Actions(async_sessionmaker(engine), [RunPipeline()], tables=TABLES)
    arguments: dict[str, Any] = {**BY}
    if action == "release":
        token = uuid.uuid4()
        async with database.session_factory.begin() as session:
            run = await session.get_one(Run, 1)
            run.lock_token, run.lock_owner, run.lock_expires_at = token, "RunPipeline", LONG_AGO
        arguments["seen"] = Seen("RunPipeline", str(token))
    of = (Run, 1) if action in ON_ROWS else ("RunPipeline",)
    async with database.session_factory.begin() as service:
        await service.execute(text("UPDATE runs SET status = status"))
        acting = asyncio.create_task(getattr(actions, action)(*of, **arguments))
        async with asyncio.timeout(HANG_S_MAX):
            await refused.wait()
    assert (await acting).act.action == action


async def test_a_pause_holds_until_it_is_ended(
    database_with_clock: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows would be claimed although a person has stopped their pipeline, or never again."""
    database = database_with_clock
    assert database.clock is not None
    caplog.set_level(logging.INFO, AUDIT)
    await add_run(database)
    actions = actions_on(database)
    async with stepping(database.session_factory, RunPipeline()) as steps:
        steps.run.context.seams = Seams(gates=(TABLES.pause_gate,))
        done = await actions.pause("RunPipeline", **BY)
        assert (done.text(), done.until) == ("RunPipeline paused", None)
        assert await pauses(database) == [
            ("RunPipeline", database.clock.now, "alice", "provider down", None)
        ]
        assert await steps.fetch_once() == []
        assert (await actions.resume("RunPipeline", **BY)).outcome == "resumed"
        assert len(await steps.fetch_once()) == 1
    assert (await actions.resume("RunPipeline", **BY)).outcome == "was not paused"
    assert [(action, result) for _, action, result in told(caplog)] == [
        ("pause", "done"),
        ("resume", "done"),
        ("resume", "was not paused"),
    ]


@pytest.mark.parametrize("kind", ["duration", "time"])
async def test_a_pause_ends_by_itself(database_with_clock: TemporaryDatabase, kind: str) -> None:
    """A pause for two hours would last for ever, or two hours by a clock that is wrong."""
    database = database_with_clock
    assert database.clock is not None
    await add_run(database)
    lasts = timedelta(hours=2)
    until: Any = lasts if kind == "duration" else database.clock.now + lasts
    done = await actions_on(database).pause("RunPipeline", until=until, **BY)
    assert done.until == database.clock.now + lasts
    assert done.text().endswith("Z")
    async with stepping(database.session_factory, RunPipeline()) as steps:
        steps.run.context.seams = Seams(gates=(TABLES.pause_gate,))
        assert await steps.fetch_once() == []
        database.clock.advance(2 * 3600)
        assert len(await steps.fetch_once()) == 1


async def test_a_second_pause_does_not_end_the_first_one_silently(
    database_with_clock: TemporaryDatabase,
) -> None:
    """It is refused; or it replaces the first one, as `resume` ends it, and says whose that was."""
    database = database_with_clock
    assert database.clock is not None
    await add_run(database)
    actions = actions_on(database)
    bob: Any = {"by": "bob", "reason": "still down"}
    await actions.pause("RunPipeline", until=timedelta(minutes=1), **BY)
    with pytest.raises(AlreadyPaused, match="alice has paused RunPipeline already: provider down"):
        await actions.pause("RunPipeline", **bob)
    [(_, since, by, reason, until)] = await pauses(database)
    assert (by, reason, until) == ("alice", "provider down", since + timedelta(minutes=1))
    done = await actions.pause("RunPipeline", replace=True, **bob)
    ended = "this ends the pause by alice since 20"
    assert done.text().startswith(f"RunPipeline paused; {ended}")
    assert [row[2:] for row in await pauses(database)] == [("bob", "still down", None)]
    done = await actions.resume("RunPipeline", **BY)
    assert done.ended is not None
    assert done.ended.by == "bob"
    assert done.text().endswith(": still down")
    # A pause that has ended by itself is no pause.
    await actions.pause("RunPipeline", until=timedelta(minutes=1), **BY)
    database.clock.advance(60)
    assert (await actions.resume("RunPipeline", **BY)).outcome == "was not paused"
    assert (await actions.pause("RunPipeline", replace=True, **bob)).ended is None


@pytest.mark.parametrize(
    "until", [timedelta(0), timedelta(seconds=-1), datetime(2000, 1, 1, tzinfo=UTC)]
)
async def test_a_pause_that_has_ended_is_refused(
    database: TemporaryDatabase, until: datetime | timedelta
) -> None:
    """A person would believe that the pipeline is paused."""
    await add_run(database)
    with pytest.raises(PipelineError, match="ends in the future"):
        await actions_on(database).pause("RunPipeline", until=until, **BY)
    assert await pauses(database) == []


@pytest.mark.parametrize(
    "until", [datetime(2999, 1, 1, tzinfo=UTC).replace(tzinfo=None), "2h", 7200, timedelta.max]
)
async def test_an_end_that_is_no_time_is_refused(database: TemporaryDatabase, until: Any) -> None:
    """A person would get an error of Python's, or a pause that never ends."""
    await add_run(database)
    with pytest.raises(PipelineError, match="`until` is a time with a zone"):
        await actions_on(database).pause("RunPipeline", until=until, **BY)
    assert await pauses(database) == []


async def test_half_a_pause_is_refused(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A person would believe that a pipeline is paused whose claims do not ask."""
    caplog.set_level(logging.INFO, AUDIT)
    await add(database, Run(id=1))
    for given, match in (
        ({"tables": None}, r"insight_tables\(Base\.metadata\)"),
        ({"tables": InsightTables(None, None)}, r"insight_tables\(Base\.metadata\)"),
        ({"gates": []}, r"gates=\[tables\.pause_gate\]"),
        ({"gates": [TABLES.pause_gate]}, "run the migration"),
    ):
        with pytest.raises(NotPausable, match=match):
            await actions_on(database, **given).pause("RunPipeline", **BY)
    assert {result for _, _, result in told(caplog)} == {"refused: NotPausable"}
    with pytest.raises(NotPausable, match="run the migration"):
        await actions_on(database).resume("RunPipeline", **BY)


async def test_a_pipeline_that_is_not_there_is_told(database: TemporaryDatabase) -> None:
    """A typing error would be a pause of nothing."""
    await add_run(database)
    with pytest.raises(AppError, match="RunPipeline may be meant"):
        await actions_on(database).pause("RunPipelin", **BY)
    assert await pauses(database) == []


async def test_who_resumes_hints(database: TemporaryDatabase) -> None:
    """Rows that have waited for hours would wait for the next poll."""
    await add_run(database)
    hints: list[str] = []

    def wake() -> None:
        hints.append("Run")

    await actions_on(database).pause("RunPipeline", **BY)
    pipeline_hinter.attach("Run", wake)
    try:
        await actions_on(database).resume("RunPipeline", **BY)
    finally:
        pipeline_hinter.detach("Run", wake)
    assert hints == ["Run"]
