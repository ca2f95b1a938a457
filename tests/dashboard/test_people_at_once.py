"""Two people press the same button, or a person and a replica do at once: one of them does it, and
each is told what came of it.
"""

from __future__ import annotations

import asyncio
import html
import logging
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from httpx import AsyncClient, Response
from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import Apply, PipelineItem, PipelineManager, events
from rowlock.dashboard import Dashboard, Viewer
from rowlock.insight import Insight, actions
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX, heard_events
from ..insight.shop import Base, Volume, VolumePipeline
from .shop_window import TABLES, acted, ago, browser, furnished, shown_form

PEOPLE = ("alice", "bob")
ROW = "model=Volume&id=17"
PIPELINE = "pipeline=VolumePipeline"


async def who_asks(request: Any, _action: object) -> Viewer:
    """Let everybody do everything under the name that the browser tells."""
    return Viewer(request.headers["x-name"])


async def waiting(watch: AsyncConnection, count: int) -> None:
    """Wait until so many statements of others wait for a lock."""
    locked = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock'"
    )
    while int(await watch.scalar(text(locked)) or 0) < count:
        await watch.execute(text("SELECT pg_sleep(0.01)"))
        # What others do is told as it was at the first look of a transaction.
        await watch.rollback()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "ACTION_TIMEOUT", timedelta(minutes=1))


async def at_once(
    database: TemporaryDatabase, app: Any, address: str, *, page: str, held: str
) -> list[tuple[int, str, str]]:
    """Have two people press a button of `page` while somebody has what it writes, and both wait;
    return the status of each answer, where it leads, and what is read there.
    """
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(browser(database, app=app)) for _ in PEOPLE]
        for client, name in zip(clients, PEOPLE, strict=True):
            client.headers["x-name"] = name
        forms = [shown_form(await one.get(page)) | {"reason": "at once"} for one in clients]
        holder = await stack.enter_async_context(database.engine.connect())
        watch = await stack.enter_async_context(database.engine.connect())
        await holder.execute(text(held))
        sent = [
            asyncio.ensure_future(acted(client, address, form | {"force": "yes"}))
            for client, form in zip(clients, forms, strict=True)
        ]
        await waiting(watch, len(PEOPLE))
        await holder.rollback()
        answers = await asyncio.gather(*sent)
        return [await read_of(*one) for one in zip(clients, answers, strict=True)]


async def read_of(client: AsyncClient, answer: Response) -> tuple[int, str, str]:
    """Return the status of an answer, what it says was done, and the text of its page."""
    location = answer.headers.get("location", "")
    page = await client.get(location) if location else answer
    return answer.status_code, location.partition("done=")[2], html.unescape(page.text)


async def row_of(database: TemporaryDatabase) -> Any:
    async with database.engine.connect() as connection:
        return (await connection.execute(select(Volume.__table__).where(Volume.id == 17))).one()


HELD_ROW = "SELECT * FROM volumes WHERE id = 17 FOR UPDATE"
HELD_CONTROLS = "LOCK TABLE rowlock_controls IN SHARE ROW EXCLUSIVE MODE"


@pytest.mark.parametrize(
    ("action", "told", "done"),
    [
        ("release", [(303, "release"), (409, "")], 1),
        ("unpark", [(303, "nothing"), (303, "unpark")], 1),
        ("park", [(303, "park"), (303, "park")], 2),
        ("make_due", [(303, "make_due"), (303, "make_due")], 2),
        ("pause", [(303, "pause"), (409, "")], 1),
        ("resume", [(303, "nothing"), (303, "resume")], 1),
    ],
)
async def test_two_people_at_once(
    postgresql_database: TemporaryDatabase,
    caplog: pytest.LogCaptureFixture,
    action: str,
    told: list[tuple[int, str]],
    done: int,
) -> None:
    """A lease would be broken twice, the second time that of another holder; or a person would read
    that it was done when somebody else had done it, and the log and the history say so, too.
    """
    database = postgresql_database
    await furnished(database)
    insight = Insight(database.session_factory, [VolumePipeline()], tables=TABLES)
    if action == "unpark":
        await insight.park("Volume", 17, by="carol", reason="before")
    if action == "resume":
        await insight.pause("VolumePipeline", by="carol", reason="before")
    of_row = action not in {"pause", "resume"}
    with caplog.at_level(logging.INFO, "rowlock.audit"):
        caplog.clear()
        answers = await at_once(
            database,
            Dashboard(insight, authorize=who_asks),
            f"/act/{action}?{ROW if of_row else PIPELINE}",
            page="/rows/Volume/17" if of_row else "/pipelines/VolumePipeline",
            held=HELD_ROW if of_row else HELD_CONTROLS,
        )
    assert sorted((status, what) for status, what, _ in answers) == told
    lines = [one.getMessage() for one in caplog.records if one.name == "rowlock.audit"]
    assert [len(lines), sum(one.endswith("(done)") for one in lines)] == [2, done]
    entries = (await insight.timeline("Volume", 17)).entries or ()
    assert sum(one.action == action for one in entries) == done
    for status, what, page in answers:
        assert ("Nothing was to be done" in page) == (what == "nothing")
        assert ("Nothing was done." in page) == (status == 409)
    row = await row_of(database)
    if action == "release":
        assert row.lock_token is None
    if of_row:
        assert (row.parked_at is not None) == (action == "park")
    else:
        assert ((await insight.status()).pipelines[0].pause is not None) == (action == "pause")


class BusyPipeline(VolumePipeline):
    """Makes volumes active; the first attempt lasts until somebody lets it go."""

    lock_timeout = 60
    heartbeat_trigger, heartbeat_interval, renew_timeout = 59, 0.1, 30
    """A holder hears by its next renewal that its lease was broken; until then it begins no other
    attempt.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[Any] = []
        self.is_begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def process(self, item: PipelineItem[Any]) -> Apply:
        self.begun.append(item.lock_token)
        self.is_begun.set()
        if len(self.begun) == 1:
            await self.may_end.wait()
        return Apply({"status": f"active {len(self.begun)}"})


async def test_two_release_a_row_that_is_at_work(postgresql_database: TemporaryDatabase) -> None:
    """The second person would break the lease that the row has got since; two outcomes of one row
    would be written, or none.
    """
    database = postgresql_database
    await database.create_tables(Base.metadata)
    pipeline = BusyPipeline()
    manager = PipelineManager(database.session_factory, [pipeline], gates=[TABLES.pause_gate])
    app = Dashboard(manager, authorize=who_asks)
    with heard_events() as heard:
        async with manager:
            async with database.session_factory.begin() as session:
                session.add(Volume(id=17, status="submitted"))
            async with asyncio.timeout(HANG_S_MAX):
                await pipeline.is_begun.wait()
            answers = await at_once(
                database, app, f"/act/release?{ROW}", page="/rows/Volume/17", held=HELD_ROW
            )
            await heard.wait_for(events.ItemApplied)
            pipeline.may_end.set()
            await heard.wait_for(events.ItemStale)
    assert sorted((status, what) for status, what, _ in answers) == [(303, "release"), (409, "")]
    assert len({*pipeline.begun}) == len(pipeline.begun) == 2
    assert [len(heard.of(kind)) for kind in (events.ItemApplied, events.ItemStale)] == [1, 1]
    assert (await row_of(database)).status == "active 2"


async def test_two_put_back_what_a_replica_takes(postgresql_database: TemporaryDatabase) -> None:
    """A row that two people put back would be worked on twice."""
    database = postgresql_database
    await database.create_tables(Base.metadata)
    pipeline = BusyPipeline()
    pipeline.may_end.set()
    manager = PipelineManager(database.session_factory, [pipeline], gates=[TABLES.pause_gate])
    async with database.session_factory.begin() as session:
        session.add(Volume(id=17, status="submitted", parked_at=ago(60), attempts=20))
    with heard_events() as heard:
        async with manager:
            answers = await at_once(
                database,
                Dashboard(manager, authorize=who_asks),
                f"/act/unpark?{ROW}",
                page="/rows/Volume/17",
                held=HELD_ROW,
            )
            await heard.wait_for(events.ItemApplied)
    assert len(pipeline.begun) == 1
    [(_, first, _), (status, second, _)] = sorted(answers, key=lambda one: one[1] != "unpark")
    # The replica may have it already when the second one is heard.
    assert first == "unpark"
    assert (status, second) in {(303, "nothing"), (409, "")}
