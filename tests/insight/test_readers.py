"""Users who may only read: a role of PostgreSQL with ``GRANT SELECT`` alone, and a file of SQLite
that is opened as ``mode=ro``. Whatever only looks answers; what writes names what it may not.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock import PipelineManager
from rowlock.__main__ import main
from rowlock.cli.top import look_once
from rowlock.insight import Insight, Observer, Verdict, insight_tables
from rowlock.testing import TemporaryDatabase

from .shop import TOKEN, UNTIMED, Base, FleetPipeline, Scene, Volume, VolumePipeline, at, furnish

pytestmark = pytest.mark.either_database

TABLES = insight_tables(Base.metadata, history=True)
FORBIDDEN = "permission denied|readonly database|read-only"


class Reader(NamedTuple):
    """Somebody who may only read.

    Attributes:
        url: of the database, as this user.
        manager: over it.
    """

    url: URL
    manager: PipelineManager

    @property
    def insight(self) -> Insight:
        pipelines = self.manager.pipelines
        return Insight(self.manager.session_factory, pipelines, tables=TABLES, limits=UNTIMED)


@pytest.fixture
async def reader(database: TemporaryDatabase) -> AsyncIterator[Reader]:
    """One to a shop with a volume that is overdue, one that is parked, one that is leased."""
    await furnish(database, Scene({"due_at": at(-3600)}, fleets=({"id": 3, "status": "grown"},)))
    leased = {"lock_token": TOKEN, "lock_owner": "VolumePipeline", "lock_expires_at": at(9e8)}
    async with database.engine.begin() as connection:
        for values in ({"id": 18, "parked_at": at(-60)}, {"id": 19} | leased):
            due = {"due_at": at(-60), "status": "submitted"}
            await connection.execute(Volume.__table__.insert().values(due | values))  # type: ignore[attr-defined]
    url, name = database.url, f"reader_{id(database)}"
    is_sqlite = url.get_backend_name() == "sqlite"
    if is_sqlite:
        options = {"mode": "ro", "uri": "true"}
        url = url.set(database=f"file:{url.database}", query=options)
    else:
        url = url.set(username=name, password=None)
        async with database.engine.begin() as connection:
            await connection.execute(text(f"CREATE ROLE {name} LOGIN"))
            await connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}"))
    engine = create_async_engine(url)
    pipelines = [VolumePipeline(), FleetPipeline()]
    gates = [TABLES.pause_gate]
    yield Reader(url, PipelineManager(async_sessionmaker(engine), pipelines, gates=gates))
    await engine.dispose()
    if not is_sqlite:
        async with database.engine.begin() as connection:
            await connection.execute(text(f"DROP OWNED BY {name}"))
            await connection.execute(text(f"DROP ROLE {name}"))


async def test_all_questions_are_answered(reader: Reader) -> None:
    """A person whose rights are those of a reader would not see why a row waits."""
    insight = reader.insight
    [one] = (await insight.explain(Volume, 17)).pipelines
    assert one.verdict is Verdict.NOBODY_RUNS
    answers = {line.name: line.answer for line in one.lines}
    assert "?" not in answers.values()
    status = await insight.status()
    assert [one.unknown for one in status.pipelines] == [(), ()]
    assert (status.pipelines[0].counts.due, status.pipelines[0].counts.leased) == (1, 1)
    for state, keys in {"due": ["17"], "leased": ["19"], "parked": ["18"]}.items():
        page = await insight.rows("VolumePipeline", state)
        assert ([row.row_id for row in page.rows], page.refused) == (keys, None)
    assert not [one.text for one in await insight.check() if "could not" in one.text]
    assert not (await insight.explain_pipeline("VolumePipeline")).plan.refused
    assert (await insight.timeline(Volume, 17)).to_dict()["entries"] == []
    look = await look_once(insight)
    assert "VolumePipeline" in str(look.status.text())
    assert (await insight.replicas()).known == ()


async def test_what_acts_says_what_it_may_not(reader: Reader) -> None:
    """Somebody would read the text of a statement, or believe that it was done."""
    with pytest.raises(Exception, match=FORBIDDEN):
        await reader.insight.park(Volume, 17, by="alice", reason="broken")
    with pytest.raises(Exception, match=FORBIDDEN):
        await reader.insight.pause("VolumePipeline", by="alice", reason="broken")


async def test_an_observer_hears_of_pauses_and_counts(
    reader: Reader, database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A window beside the replicas would show a pause that has ended, and count nothing."""
    writing = Insight(database.session_factory, [VolumePipeline()], tables=TABLES)
    await writing.pause("VolumePipeline", by="alice", reason="provider down")
    observer = Observer(reader.manager, tables=TABLES, name="looker")
    await observer.beat()
    assert observer.paused == {"VolumePipeline"}
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "rowlock_replicas" in warning or "readonly database" in warning
    # It is no replica, so it counts only where nobody else is known to.
    alone = Observer(reader.manager, tables=replace(TABLES, replicas=None), census=True)
    assert alone._census is not None
    await alone._census.count()
    assert alone.counted["VolumePipeline"].counts.due == 1
    assert (await writing.replicas()).known == ()


def printed(*words: str) -> tuple[int, str, str]:
    """Run the command line in this process, and return its code and what it printed."""
    out, error = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(error):
        code = main(words)
    return code, out.getvalue(), error.getvalue()


async def test_commands_answer(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command on a copy that only reads would end in an error."""
    monkeypatch.setenv("ROWLOCK_DATABASE", reader.url.render_as_string(hide_password=False))
    app = ("--app", "tests.insight.test_readers:unconnected", "--json")

    async def run(*words: str) -> tuple[int, Any]:
        code, out, error = await asyncio.to_thread(printed, *words, *app)
        assert error == ""
        return code, json.loads(out)

    code, document = await run("explain", "Volume", "17")
    assert (code, document["pipelines"][0]["verdict"]) == (1, "nobody_runs")
    code, document = await run("status")
    assert (code, document["pipelines"][0]["due"]) == (1, 1)
    code, document = await run("rows", "VolumePipeline", "--state", "parked")
    assert (code, [row["row_id"] for row in document["rows"]]) == (0, ["18"])
    code, document = await run("check")
    assert "could not be looked at" not in str(document)
    code, document = await run("park", "Volume", "17", "--reason", "broken")
    assert code != 0
    assert document["error"]


def unconnected() -> Insight:
    """Return the app, for the command line, which names the database."""
    sessions = async_sessionmaker(create_async_engine("sqlite+aiosqlite:///nowhere/at.all"))
    return Insight(sessions, [VolumePipeline(), FleetPipeline()], tables=TABLES)
