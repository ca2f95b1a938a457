"""Sessions that filter SELECTs, and tables whose triggers clear tokens: claims and reads agree."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import event, false, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import ORMExecuteState, Session, with_loader_criteria

from rowlock import PipelineItem, PipelineManager, hold_rows
from rowlock.insight import Insight, Verdict
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Attachment, Run, RunPipeline, Volume, VolumePipeline
from ..pipelines.scenes import add, counted, read_all, until


class ByOption(Session):
    """Hides rows as SQLAlchemy's recipe for soft deletion does."""


@event.listens_for(ByOption, "do_orm_execute")
def _hide_by_option(state: ORMExecuteState) -> None:
    if state.is_select and not state.is_column_load:
        shown = with_loader_criteria(Volume, Volume.size_gb == 1, include_aliases=True)
        state.statement = state.statement.options(
            shown, with_loader_criteria(Attachment, lambda cls: cls.name == "data")
        )


class ByCondition(Session):
    """Hides rows by a condition of its own, and answers by itself as a cache does."""


@event.listens_for(ByCondition, "do_orm_execute")
def _hide_by_condition(state: ORMExecuteState) -> Any:
    statement: Any = state.statement
    if state.is_select and statement.column_descriptions[0]["entity"] is Volume:
        statement = statement.where(Volume.size_gb == 1)
    elif state.is_select:
        statement = statement.where(Attachment.name == "data")
    return state.invoke_statement(statement)


@pytest.mark.parametrize("session_class", [ByOption, ByCondition])
async def test_claim_and_read_agree(
    database: TemporaryDatabase, session_class: type[Session]
) -> None:
    """A hidden row would be claimed, lost, and parked in the end, or be worked on all the same."""
    sessions = async_sessionmaker(database.engine, sync_session_class=session_class)
    volumes = await add(database, *(Volume(size_gb=number % 2) for number in range(6)))
    await add(
        database, *(Attachment(volume_id=volumes[1].id, name=name) for name in ("data", "hidden"))
    )
    shown = {row.id for row in volumes if row.size_gb == 1}
    locked: list[str] = []

    class Locking(VolumePipeline):
        locks = (Attachment,)

        async def process(self, item: PipelineItem[Volume]) -> Any:
            rows = await item.lock_related(Attachment, Attachment.volume_id == item.id)
            locked.extend(row.name for row in rows)
            return await super().process(item)

    pipeline = Locking()
    async with stepping(sessions, pipeline) as steps:
        assert {item.id for item in await steps.fetch_once()} == shown
        await steps.work_all()
        assert await steps.fetch_once() == []
        assert counted(steps).get("stale", 0) == 0
    assert locked == ["data"]
    async with database.session_factory() as session:
        tokens = await session.scalars(select(Attachment.lock_token))
        assert list(tokens) == [None, None]
    async with hold_rows(sessions, Volume, [next(iter(shown))]) as held:
        assert [row.size_gb for row in held.rows] == [1]


@pytest.mark.parametrize("session_class", [ByOption, ByCondition])
async def test_explain_says_that_a_row_is_hidden(
    database: TemporaryDatabase, session_class: type[Session]
) -> None:
    """A person would wait for a row in line that no claim ever takes, and count rows before it
    that wait as well.
    """
    sessions = async_sessionmaker(database.engine, sync_session_class=session_class)
    ago = datetime.now(UTC) - timedelta(seconds=5)
    hidden, _, shown = await add(
        database,
        *(
            Volume(id=uuid.UUID(int=number), size_gb=size, last_processed_at=ago)
            for number, size in enumerate((2, 2, 1))
        ),
    )
    pipeline = VolumePipeline(min_processing_interval=0, fetch_delays=(60.0,))
    insight = Insight(sessions, [pipeline])
    [of_hidden] = (await insight.explain(Volume, hidden.id)).pipelines
    assert (of_hidden.verdict, of_hidden.needs_person) == (Verdict.HIDDEN, False)
    assert "size_gb = 1 is false" in of_hidden.headline
    assert (of_hidden.parts or {})["seen"] is False
    [of_shown] = (await insight.explain(Volume, shown.id)).pipelines
    assert (of_shown.verdict, of_shown.headline) == (Verdict.IN_LINE, "IN LINE: 1st")
    insight = Insight(database.session_factory, [pipeline])
    [of_hidden] = (await insight.explain(Volume, hidden.id)).pipelines
    assert (of_hidden.verdict, of_hidden.parts) == (Verdict.IN_LINE, of_shown.parts)


async def test_a_row_that_is_hidden_under_its_token_is_told(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """An item whose token is in the row and that cannot be read is told as an error naming the
    criteria.
    """

    class Narrow(RunPipeline):
        def options(self) -> Any:
            return [with_loader_criteria(Run, false())]

    await add(database, Run(id=1))
    pipeline = Narrow(max_attempts=1)
    async with stepping(database.session_factory, pipeline) as steps:
        assert len(await steps.fetch_once()) == 1
        await steps.work_all()
        assert await steps.fetch_once() == []
        assert (counted(steps)["unreadable"], counted(steps).get("stale", 0)) == (1, 0)
    [row] = await read_all(database, Run)
    assert (row.attempts, row.parked_at, row.lock_token) == (0, None, None)
    [line] = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "with_loader_criteria" in line


TRIGGERS = {
    "sqlite": (
        "CREATE TRIGGER clearing AFTER UPDATE ON volumes WHEN new.lock_token IS NOT NULL"
        " BEGIN UPDATE volumes SET lock_token = NULL WHERE id = new.id; END",
    ),
    "postgresql": (
        "CREATE FUNCTION clear_token() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN new.lock_token := NULL; RETURN new; END'",
        "CREATE TRIGGER clearing BEFORE UPDATE ON volumes"
        " FOR EACH ROW EXECUTE FUNCTION clear_token()",
    ),
}


async def test_a_trigger_that_clears_tokens_makes_the_pipeline_unhealthy(
    database: TemporaryDatabase,
) -> None:
    """ "Ended before it began" is counted and shows in `health()`."""
    await add(database, *(Volume(id=uuid.UUID(int=number)) for number in range(1, 21)))
    async with database.engine.begin() as connection:
        for statement in TRIGGERS[database.dialect_name]:
            await connection.execute(text(statement))
    pipeline = VolumePipeline(fetch_delays=(0.05,), lock_timeout=4)  # which all rows wait for
    async with PipelineManager(database.session_factory, [pipeline]) as manager:
        await until(lambda: "lock_token" in (manager.health().pipelines[0].last_error or ""))
        await until(lambda: not manager.health().healthy)
        if database.dialect_name == "sqlite":
            assert manager.health().pipelines[0].never_begun >= 10
    assert pipeline.items == []
