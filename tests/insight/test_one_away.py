"""Of two databases one is away: the other one is asked as if it were alone, and what could not be
asked is told by name, and never taken for an answer.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from itertools import cycle, product
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import create_engine, event, insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from rowlock import Pipeline, PipelineManager
from rowlock.assistants import Assistant
from rowlock.cli.top import Look, title, trouble
from rowlock.dashboard import Dashboard
from rowlock.database.faults import is_of_a_database
from rowlock.insight import Explanation, Insight, Level, Observer, insight_tables
from rowlock.insight.asking import QUESTIONS_AT_ONCE_MAX
from rowlock.testing import TemporaryDatabase

from ..dashboard.shop_window import be_generous, browser, everything
from ..host import HANG_S_MAX
from ..lengths import at_length
from ..shopwindow.test_json_page import check as meets_its_schema
from .shop import UNTIMED, Base, FleetPipeline, Scene, Volume, VolumePipeline, at, furnish
from .test_status import replica

pytestmark = pytest.mark.either_database

TABLES: Final = insight_tables(Base.metadata)
PASSWORD: Final = "hunter-22"
PIPELINE_PAGES: Final = ("/", "/replicas", "/checks", "/rows/Volume/17")
PATHS: Final = (*PIPELINE_PAGES, "/pipelines/VolumePipeline", "/pipelines/VolumePipeline/rows")
DOCUMENTS: Final = ("/api/status", "/api/replicas", "/api/checks", "/api/rows/Volume/17")

Way = Callable[[Path, TemporaryDatabase], AbstractContextManager[AsyncEngine]]


def postgresql_at(server: socket.socket, **arguments: Any) -> AsyncEngine:
    """Return an engine for the address of a server."""
    url = f"postgresql+asyncpg://alice:{PASSWORD}@127.0.0.1:{server.getsockname()[1]}/orders"
    return create_async_engine(url, connect_args=arguments)


def orders(path: Path) -> str:
    """Make a file with the tables of the shop, and return its name."""
    made = create_engine(f"sqlite:///{path}/orders.db")
    Base.metadata.create_all(made)
    made.dispose()
    return f"{path}/orders.db"


def gone(path: Path) -> AsyncEngine:
    """Return an engine for a file whose folder is not mounted."""
    return create_async_engine(f"sqlite+aiosqlite:///{path}/nowhere/orders.db")


@contextmanager
def refused(_path: Path, _healthy: TemporaryDatabase) -> Iterator[AsyncEngine]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        engine = postgresql_at(server)
    yield engine


@contextmanager
def silent(_path: Path, _healthy: TemporaryDatabase) -> Iterator[AsyncEngine]:
    """Takes connections and never says a word; the host has its driver give up soon."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield postgresql_at(server, timeout=0.1)


@contextmanager
def without_file(path: Path, _healthy: TemporaryDatabase) -> Iterator[AsyncEngine]:
    yield gone(path)


@contextmanager
def locked(path: Path, _healthy: TemporaryDatabase) -> Iterator[AsyncEngine]:
    file = orders(path)
    with closing(sqlite3.connect(file, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield create_async_engine(f"sqlite+aiosqlite:///{file}", connect_args={"timeout": 0})


@contextmanager
def stopped(path: Path, _healthy: TemporaryDatabase) -> Iterator[AsyncEngine]:
    engine, sent = create_async_engine(f"sqlite+aiosqlite:///{orders(path)}"), list[str]()

    def stop(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent.append(statement)
        if len(sent) > 1:
            raise ConnectionResetError("terminating connection")

    event.listen(engine.sync_engine, "before_cursor_execute", stop)
    yield engine


@contextmanager
def unknown_name(_path: Path, healthy: TemporaryDatabase) -> Iterator[AsyncEngine]:
    """A server that answers, and lets nobody in: its database, or its password, is another one."""
    if healthy.url.get_backend_name() == "sqlite":
        pytest.skip("this needs a server")
    yield create_async_engine(healthy.url.set(database="orders", password=PASSWORD))


WAYS: Final[tuple[Way, ...]] = (refused, silent, without_file, locked, stopped, unknown_name)


@asynccontextmanager
async def is_away(way: Way, path: Path, healthy: TemporaryDatabase) -> AsyncIterator[AsyncEngine]:
    with way(path, healthy) as engine:
        try:
            yield engine
        finally:
            await engine.dispose()


def insight_over(
    *databases: tuple[AsyncEngine, Pipeline[Any]], tables: Any = TABLES
) -> tuple[Insight, Observer]:
    """Return the questions to pipelines of several databases, and the observer of their replica."""
    managers = [
        PipelineManager(async_sessionmaker(engine), [pipeline]) for engine, pipeline in databases
    ]
    observer = Observer(*managers, tables=tables, name="web-7")
    insight = Insight.of(observer)
    # A database that is away gets half of the time, which is little where the machine is busy.
    insight.limits = UNTIMED
    return insight, observer


async def shop_with_one_due(database: TemporaryDatabase, *replicas: dict[str, Any]) -> None:
    """Make the tables, a volume that is due since a minute, and replicas."""
    await furnish(database, Scene({"due_at": at(-60)}))
    if replicas:
        assert TABLES.replicas is not None
        async with database.engine.begin() as connection:
            await connection.execute(insert(TABLES.replicas), list(replicas))


async def assert_alike(insight: Insight, alone: Insight) -> None:
    """Compare what concerns the healthy database with what it says where it is alone."""
    for ask in (
        lambda one: one.rows("VolumePipeline", "due"),
        lambda one: one.timeline("Volume", 17),
        lambda one: one.explain_claim("VolumePipeline"),
    ):
        assert (await ask(insight)).to_dict() == (await ask(alone)).to_dict()
    told, expected = await insight.explain("Volume", 17), await alone.explain("Volume", 17)
    assert told.pipelines[0].parts == expected.pipelines[0].parts
    assert (told.is_there, told.away) == (True, ())
    here, found = set(await alone.check()), set(await insight.check())
    assert here < found
    [finding] = found - here
    assert ("orders" in finding.about, finding.level) == (True, Level.BAD)


@pytest.mark.parametrize(
    ("way", "is_first"),
    at_length(list(zip(WAYS, cycle([True, False]))), list(product(WAYS, [True, False]))),
)
async def test_what_can_be_asked_is_answered(
    database_with_clock: TemporaryDatabase, tmp_path: Path, way: Way, *, is_first: bool
) -> None:
    """At 3 a.m. a person would see nothing of the database that works, or read that no replica runs
    what other replicas may well run.
    """
    database = database_with_clock
    await shop_with_one_due(database)
    async with is_away(way, tmp_path, database) as away:
        both = [(away, FleetPipeline()), (database.engine, VolumePipeline())]
        insight, _ = insight_over(*(both if is_first else reversed(both)))
        alone, _ = insight_over(both[1])
        status, replicas = await insight.status(), await insight.replicas()
        [told] = status.away
        assert "orders" in told.database
        assert (told.pipelines, bool(told.why)) == (("FleetPipeline",), True)
        counts = {one.pipeline: one.counts.due for one in status.pipelines}
        assert counts == {"VolumePipeline": 1, "FleetPipeline": None}
        assert {one.runs_on for one in status.pipelines} == {None}
        assert (replicas.known, [one.database for one in replicas.away]) == ((), [told.database])
        assert status.text(200).count(f"! {told.text}") == 1
        look = Look(status, {"VolumePipeline": "Volume", "FleetPipeline": "Fleet"})
        assert (trouble(look)[0].text, "? replicas" in title(look)) == (told.text, True)
        assert (status.needs_person, replicas.needs_person) == (True, True)
        view = await insight.explain_pipeline("VolumePipeline")
        for answer in (status, replicas, view, await insight.explain("Volume", 17)):
            said = answer.text(1000)
            meets_its_schema(answer.to_dict())
            assert told.database in said
            assert "NOBODY RUNS" not in said
            assert PASSWORD not in f"{said}{answer.to_dict()}"
        await assert_alike(insight, alone)
        [error] = await asyncio.gather(insight.explain("Fleet", 3), return_exceptions=True)
        assert isinstance(error, Exception)
        assert is_of_a_database(error)


@pytest.fixture
def hanging() -> tuple[AsyncEngine, list[str], asyncio.Event]:
    """An engine whose connections hang until they are refused, and what has become of them."""
    tried, ends = list[str](), asyncio.Event()

    async def connect() -> Any:
        tried.append("connect")
        await ends.wait()
        raise ConnectionRefusedError("gone")

    url = f"postgresql+asyncpg://alice:{PASSWORD}@db-2/orders"
    return create_async_engine(url, async_creator=connect), tried, ends


@pytest.mark.parametrize("question", ["status", "check", "replicas"])
async def test_the_one_that_hangs_is_asked_beside_the_other_and_once(
    database: TemporaryDatabase,
    hanging: tuple[AsyncEngine, list[str], asyncio.Event],
    question: str,
) -> None:
    """Each of a hundred pipelines there would cost a time-out of its own, and those of the other
    database would wait behind them.
    """
    await furnish(database, Scene())
    away, tried, ends = hanging
    many = [
        type(f"Away{number}Pipeline", (FleetPipeline,), {})()
        for number in range(4 * QUESTIONS_AT_ONCE_MAX)
    ]
    manager = PipelineManager(async_sessionmaker(away), many)
    other = PipelineManager(database.session_factory, [VolumePipeline()])
    insight = Insight.of(Observer(manager, other, tables=TABLES))
    answered = asyncio.Event()
    event.listen(database.engine.sync_engine, "after_cursor_execute", lambda *_: answered.set())
    async with asyncio.timeout(HANG_S_MAX):
        asking = asyncio.create_task(getattr(insight, question)())
        # Of what hangs nothing has ended: only a question beside it can be answered.
        waiting = asyncio.create_task(answered.wait())
        await asyncio.wait({asking, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        ends.set()
        answer = await asking
        assert answered.is_set()
    assert 1 <= len(tried) <= QUESTIONS_AT_ONCE_MAX
    said = "\n".join(one.text for one in answer) if question == "check" else answer.text(1000)
    assert (
        "cannot be asked: ConnectionRefusedError: gone; nothing is known of Away0Pipeline" in said
    )
    assert "and 11 more" in said


async def test_replicas_that_are_known_are_told(
    database_with_clock: TemporaryDatabase, tmp_path: Path
) -> None:
    """An outage of one database would hide who runs what in the other one, though it says so."""
    await shop_with_one_due(database_with_clock, replica("3fa2c1d0", "web-7"))
    away = gone(tmp_path)
    insight, _ = insight_over(
        (away, FleetPipeline()), (database_with_clock.engine, VolumePipeline())
    )
    status = await insight.status()
    assert {one.pipeline: one.runs_on for one in status.pipelines} == {
        "VolumePipeline": 1,
        "FleetPipeline": None,
    }
    assert "1 replica at least: web-7" in status.text()
    line = (await insight.explain("Volume", 17)).pipelines[0].lines[-1]
    assert line.detail == "run it: web-7"


async def test_a_row_that_may_be_where_nobody_could_look_is_not_said_to_be_gone(
    database: TemporaryDatabase, tmp_path: Path
) -> None:
    """Somebody would mourn a row that is in the other database."""
    await shop_with_one_due(database)
    away = gone(tmp_path)
    named = type("OtherPipeline", (VolumePipeline,), {})()
    insight, _ = insight_over((away, named), (database.engine, VolumePipeline()), tables=None)
    told = await insight.explain(Volume, 17)
    assert [one.pipelines for one in told.away] == [("OtherPipeline",)]
    assert told.needs_person
    assert "nothing is known of OtherPipeline" in told.text(1000)
    meets_its_schema(told.to_dict())
    assert Explanation.from_dict(told.to_dict()) == told
    with pytest.raises(SQLAlchemyError, match="unable to open"):
        await insight.explain(Volume, 18)


async def test_where_all_are_away_there_is_no_answer(tmp_path: Path) -> None:
    """A status of nothing would look like one of an idle service."""
    away = [create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/{name}/x.db") for name in "ab"]
    insight, _ = insight_over((away[0], FleetPipeline()), (away[1], VolumePipeline()))
    for ask in (insight.status, insight.check, insight.replicas):
        with pytest.raises(SQLAlchemyError, match="unable to open"):
            await ask()


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_replica_lives_in_the_database_that_is_there(
    database: TemporaryDatabase, tmp_path: Path, *, is_first: bool
) -> None:
    """With one database away a replica would look dead in the others, and hear of no pause there;
    at its end its name would stay.
    """
    await database.create_tables(Base.metadata)
    away = gone(tmp_path)
    both = [(away, FleetPipeline()), (database.engine, VolumePipeline())]
    _, observer = insight_over(*(both if is_first else reversed(both)))
    alone, _ = insight_over(both[1])
    async with observer:
        await observer.beat()
        assert [one.name for one in (await alone.replicas()).live] == ["web-7"]
    assert (await alone.replicas()).known == ()


async def test_pages_and_assistants_say_it_too(
    database: TemporaryDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks by a browser, or asks an assistant, would have no page at all."""
    be_generous(monkeypatch)
    await shop_with_one_due(database)
    away = gone(tmp_path)
    insight, _ = insight_over((away, FleetPipeline()), (database.engine, VolumePipeline()))
    async with browser(database, app=Dashboard(insight, authorize=everything)) as client:
        for path in (*PATHS, *DOCUMENTS):
            answer = await client.get(path)
            assert answer.status_code == 200, path
            if path in {*PATHS[:4], *DOCUMENTS}:
                assert "sqlite orders.db" in answer.text, path
            assert PASSWORD not in answer.text
    for name in ("status", "check", "replicas"):
        result: Any = await Assistant(insight).answer(name, {})
        assert (result.is_error, "sqlite orders.db" in result.content[0].text) == (False, True)
