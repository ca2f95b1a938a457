"""``docs/reference/mistakes.md`` lists usual mistakes; each is said as the table has it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock import (
    Apply,
    ConfigurationError,
    Park,
    PipelineHinter,
    PipelineManager,
    RowlockError,
    events,
    hint_after_commit,
    request_update,
)
from rowlock import hints as intents
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Base, Run, RunPipeline, heard_events
from ..pipelines.scenes import counted
from .mistakes import AT_CONSTRUCTION, Mistake
from .pages import DOCS

PAGE = DOCS / "reference" / "mistakes.md"


def change(item: Any) -> Apply:
    item.row.status = "done"
    return Apply()


async def not_awaited() -> Apply:
    return Apply()


class Unannotated(RunPipeline):
    async def process(self, item: Any):  # type: ignore[no-untyped-def] # noqa: ANN201
        return self.answer(item)  # type: ignore[operator, misc]


IN_LAST_ERROR: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    ("a forgotten `return` in `process`", lambda item: None, "process returned None"),
    ("a forgotten `await` in `process`", lambda item: not_awaited(), "which was not awaited"),
    ("`return Apply` without brackets", lambda item: Apply, "write Apply()"),
    ("a dict instead of an outcome", lambda item: {"status": "done"}, "process must return Apply"),
    ("`item.row.status = ...`", change, "process changed item.row (status)"),
    ("an unknown column", lambda item: Apply({"colour": 1}), "has no column 'colour'"),
    ("a lock column", lambda item: Apply({"lock_token": None}), "is written by rowlock"),
    ("a changed key", lambda item: Apply({"id": 7}), "is the primary key"),
    ("a negative delay", lambda item: Apply(after=-1), "from zero to 366 days"),
    ("`hint=` of something else", lambda item: Apply(hint=[5]), "hint takes models"),  # type: ignore[list-item]
    ("`Park` without a text", lambda item: Park(5), "Park takes a text"),  # type: ignore[arg-type]
)


async def start_twice(database: TemporaryDatabase) -> None:
    await database.create_tables(Base.metadata)
    pipeline = RunPipeline()
    async with PipelineManager(database.session_factory, [pipeline]):
        await PipelineManager(database.session_factory, [pipeline]).start()


async def start_in_memory(_: TemporaryDatabase) -> None:
    """Have a database that each connection would have for itself."""
    engine = create_async_engine("sqlite+aiosqlite://")
    try:
        await PipelineManager(async_sessionmaker(engine), [RunPipeline()]).start()
    finally:
        await engine.dispose()


async def request_a_colour(database: TemporaryDatabase) -> None:
    async with database.session_factory() as session:
        await request_update(session, Run, 1, {"colour": "red"})


async def find_no_table(database: TemporaryDatabase) -> None:
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [RunPipeline()]):
            await heard.wait_for(events.FetchFailed)


AT_CALL = (
    ("one pipeline in two managers", start_twice, "was started before"),
    ("SQLite in memory", start_in_memory, "use a file"),
    ("`request_update` of an unknown column", request_a_colour, "has no column 'colour'"),
    ("a table that was not migrated", find_no_table, "a fetch failed"),
)
TOLD = (
    ("a hint for a model without a pipeline", "the call"),
    ("a hint asked for behind the commit", "the end of the session"),
)


def test_the_table_has_all_of_them() -> None:
    """A reader would look for a mistake that is not listed, or be promised what is not said."""
    rows = [
        tuple(cell.strip() for cell in line.strip("| ").replace("\\|", "\0").split(" | "))
        for line in PAGE.read_text(encoding="utf-8").partition("## Of streams")[0].splitlines()
        if line.startswith("| ") and not line.startswith("| mistake")
    ]
    expected = [(one.what, "construction", one.text) for one in AT_CONSTRUCTION]
    expected += [(what, "the attempt", text) for what, _, text in IN_LAST_ERROR]
    expected += [(what, "the call", text) for what, _, text in AT_CALL]
    expected += [(what, when, "WARNING, once") for what, when in TOLD]
    assert [(what, when, text.replace("\0", "|")) for what, when, text in rows] == expected


@pytest.mark.parametrize("mistake", AT_CONSTRUCTION, ids=lambda one: one.what)
def test_it_is_said_at_construction(mistake: Mistake) -> None:
    """A slip in a class body would be found in production, or never."""
    with pytest.raises(ConfigurationError) as caught:
        mistake.make()
    assert mistake.text in caught.value.message


@pytest.mark.parametrize(("what", "answer", "text"), IN_LAST_ERROR)
async def test_it_is_said_by_the_attempt(
    sqlite_database: TemporaryDatabase, what: str, answer: Callable[[Any], Any], text: str
) -> None:
    """A slip in `process` would count as done."""
    await sqlite_database.create_tables(Base.metadata)
    async with sqlite_database.session_factory.begin() as session:
        session.add(Run(id=1))
    async with stepping(sqlite_database.session_factory, Unannotated(answer=answer)) as steps:
        await steps.fetch_once()
        await steps.work_all()
    async with sqlite_database.session_factory() as session:
        run = (await session.scalars(select(Run))).one()
    assert text in (run.last_error or ""), what
    assert (run.status, run.attempts, run.parked_at) == ("queued", 1, None)


@pytest.mark.parametrize(("what", "make", "text"), AT_CALL)
async def test_it_is_said_by_the_call(
    sqlite_database: TemporaryDatabase,
    what: str,
    make: Callable[[TemporaryDatabase], Awaitable[None]],
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A service would start, and nothing would ever be worked on."""
    said = ""
    with caplog.at_level(logging.WARNING, "rowlock"):
        try:
            await make(sqlite_database)
        except RowlockError as error:
            said = error.message
    assert text in said or any(text in one for one in caplog.messages), what


async def test_none_is_taken_where_the_annotation_says_so(
    sqlite_database: TemporaryDatabase,
) -> None:
    """A pipeline that only looks would fail for ever."""
    await sqlite_database.create_tables(Base.metadata)
    async with sqlite_database.session_factory.begin() as session:
        session.add(Run(id=1))
    pipeline = RunPipeline(answer=lambda item: None)
    async with stepping(sqlite_database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_all()
        assert counted(steps)["applied"] == 1


async def test_a_hint_for_a_session_that_was_closed_is_told(
    sqlite_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the usual slip: the call stands one level too far to the left."""
    await sqlite_database.create_tables(Base.metadata)

    async def add_run(hinter: PipelineHinter) -> None:
        async with sqlite_database.session_factory.begin() as session:
            session.add(Run(id=1))
        hint_after_commit(session, Run, hinter=hinter)

    with caplog.at_level(logging.WARNING, "rowlock"):
        await add_run(PipelineHinter())
        gc.collect()
    assert sum("call it before the commit" in one.getMessage() for one in caplog.records) == 1


async def test_a_hint_for_the_next_transaction_is_not_told(
    sqlite_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A host that asks first would be told of a slip that it has not made."""
    await sqlite_database.create_tables(Base.metadata)

    async def add_run(hinter: PipelineHinter) -> None:
        async with sqlite_database.session_factory() as session:
            hint_after_commit(session, Run, hinter=hinter)
            session.add(Run(id=1))
            await session.commit()

    with caplog.at_level(logging.WARNING, "rowlock"):
        await add_run(PipelineHinter())
        gc.collect()
    assert not any("call it before the commit" in one.getMessage() for one in caplog.records)


async def test_a_hint_behind_the_commit_is_told(
    sqlite_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """It would wait for a commit that never comes, and the row for a poll."""
    await sqlite_database.create_tables(Base.metadata)
    hinter = PipelineHinter()
    async with sqlite_database.session_factory() as session:
        run = Run(id=1)
        session.add(run)
        hint_after_commit(session, Run, hinter=hinter)
        await session.commit()
        with caplog.at_level(logging.WARNING, "rowlock"):
            for _ in range(2):
                hint_after_commit(session, Run, hinter=hinter)
    assert sum("call it before the commit" in one.getMessage() for one in caplog.records) == 1


@pytest.mark.parametrize("column", ["result", "status"])
async def test_a_request_for_a_parked_row_puts_it_back_if_it_is_of_intent(
    database_with_clock: TemporaryDatabase, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request would be answered with True, and nothing would ever come of it."""

    class Requested(RunPipeline):
        intent = [Run.result]  # noqa: RUF012 - as hosts write it

    # Pipelines of other tests have said otherwise.
    monkeypatch.setattr(intents, "_known", WeakKeyDictionary())
    Requested()
    database = database_with_clock
    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        session.add(Run(id=1, parked_at=database.clock.now, attempts=5))
    async with database.session_factory.begin() as session:
        assert await request_update(session, Run, 1, {column: "now"})
    async with database.session_factory() as session:
        run = (await session.scalars(select(Run))).one()
    assert (run.parked_at is None, run.attempts) == (
        (True, 0) if column == "result" else (False, 5)
    )
