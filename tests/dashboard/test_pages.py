"""What pages show, and what they answer when there is nothing to show."""

from __future__ import annotations

import asyncio
import html
import logging
import threading
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient
from sqlalchemy import ColumnElement, insert, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Mapped, mapped_column
from starlette.applications import Starlette

from rowlock import LockColumns
from rowlock.dashboard import Dashboard
from rowlock.dashboard.visits import PageAddresses
from rowlock.insight import Insight, insight_tables
from rowlock.insight.shown import shown
from rowlock.testing import TemporaryDatabase

from ..insight.shop import DEAD_TOKEN, TOKEN, Base, Quiet, Volume, VolumePipeline
from ..payloads import payloads
from .shop_window import (
    ORIGIN,
    Label,
    acted,
    ago,
    browser,
    everything,
    furnished,
    manager_of,
    shown_form,
)

pytestmark = pytest.mark.either_database(
    but=["test_every_page_and_document", "test_without_the_database_there_is_a_sentence"]
)

PAGES = ("/", "/replicas", "/checks", "/pipelines/VolumePipeline", "/pipelines/VolumePipeline/rows")

JOINED_S_MAX = 60.0
"""A backstop: such a thread ends at once."""


CONTROLS = {chr(code) for code in (*range(32), *range(127, 160))} - {"\n"}


class Bare(LockColumns, Base):
    """A row without a time of its own."""

    __tablename__ = "bares"
    id: Mapped[int] = mapped_column(primary_key=True)


class BarePipeline(Quiet):
    model = Bare

    def ready(self) -> ColumnElement[bool]:
        return Bare.id > 0


async def test_every_page_and_document(database: TemporaryDatabase) -> None:
    """A page would show an error instead of what waits."""
    await furnished(database)
    async with browser(database) as client:
        for path in PAGES:
            answer = await client.get(path)
            assert (answer.status_code, path, "<h1" in answer.text) == (200, path, True)
        for state in ("due", "resting", "leased", "ended", "failing", "parked"):
            answer = await client.get(f"/pipelines/VolumePipeline/rows?state={state}")
            assert answer.status_code == 200
            assert ("Volume/17" in answer.text) == (state in {"due", "ended"})
        assert (
            "NO INDEX SERVES VolumePipeline" in (await client.get("/pipelines/VolumePipeline")).text
        )
        page = await client.get("/rows/Volume/17")
        assert "LEFT by a dead replica (3fa2c1d0)" in page.text
        document = (await client.get("/api/rows/Volume/17")).json()
        # Time may have passed between the two: "due now" becomes "due for 1 s".
        headline, _, _ = document["pipelines"][0]["headline"].partition(": due")
        assert headline in html.unescape(page.text)
        for path, schema in {
            "/api/status": "rowlock.status/1",
            "/api/checks": "rowlock.check/2",
            "/api/replicas": "rowlock.replicas/1",
            "/api/pipelines/VolumePipeline/rows?state=ended": "rowlock.rows/1",
        }.items():
            assert (await client.get(path)).json()["schema"] == schema


@pytest.mark.parametrize(
    ("path", "status", "sentence"),
    [
        ("/nowhere", 404, "There is no such page."),
        ("/rows/Volume/99", 404, "NO ROW: volumes has no row with id 99"),
        ("/rows/Volume/x", 404, "x is no key of Volume"),
        ("/rows/Nothing/1", 404, "no model of this app is named Nothing"),
        ("/pipelines/Nobody", 404, "no pipeline of this app is named Nobody"),
        ("/pipelines/VolumePipeline/rows?state=lost", 404, "no rows are lost"),
        ("/pipelines/VolumePipeline/rows?after=x", 404, "no page of rows begins behind x"),
        ("/act/release?model=Volume&id=17", 405, "This address takes no such request."),
        ("/live/nothing", 404, "There is no such page."),
        ("/api/rows/Volume/x", 404, "x is no key of Volume"),
    ],
)
async def test_what_is_not_there_is_said(
    sqlite_database: TemporaryDatabase, path: str, status: int, sentence: str
) -> None:
    """A mistyped address would end in an error of the program."""
    await furnished(sqlite_database)
    async with browser(sqlite_database) as client:
        answer = await client.get(path)
    assert answer.status_code == status
    assert sentence in html.unescape(answer.text)


async def test_refused_actions_are_pages(database: TemporaryDatabase) -> None:
    """A button would end in an error of the program, with nobody knowing whether it was done."""
    await furnished(database)
    async with database.engine.begin() as connection:
        lease = {
            "lock_owner": "VolumePipeline",
            "lock_token": TOKEN,
            "lock_expires_at": ago(-(10**6)),
        }
        await connection.execute(insert(Volume).values(id=18, status="submitted", **lease))
    async with browser(database) as client:
        form = shown_form(await client.get("/rows/Volume/18")) | {"reason": "gone"}

        async def sent(action: str, row: int | str = 18, **changes: str) -> tuple[int, str]:
            address = f"/act/{action}?model=Volume&id={row}"
            answer = await acted(client, address, form | changes)
            return answer.status_code, html.unescape(answer.text)

        status, text = await sent("release")
        assert (status, "VolumePipeline holds Volume 18" in text) == (409, True)
        assert 'name="seen_token" value="00000000' in text
        for action in ("release", "park", "unpark", "make_due"):
            status, text = await sent(action, seen_token=str(DEAD_TOKEN), force="yes")
            assert (status, "is not the one that was shown" in text) == (409, True)
            assert (await sent(action, 99))[0] == 404
            assert (await sent(action, seen_token="forged"))[0] == 400
            assert (await sent(action, "x"))[0] == 404
        assert (await sent("release", force="yes"))[0] == 303
        assert (await sent("lend"))[0] == 404
        del form["seen_owner"]
        assert (await sent("park"))[0] == 400


async def test_actions_are_done(database: TemporaryDatabase) -> None:
    """A person would press a button, and nothing would come of it."""
    await furnished(database)

    async def row() -> Any:
        async with database.engine.connect() as connection:
            asked = select(Volume.parked_at, Volume.last_error).where(Volume.id == 17)
            return (await connection.execute(asked)).one()

    async with browser(database) as client:
        form = shown_form(await client.get("/rows/Volume/17")) | {"reason": "provider down"}
        answer = await acted(client, "/act/park?model=Volume&id=17", form)
        assert answer.headers["location"] == "/rows/Volume/17?done=park"
        assert (await row()).last_error == "parked by alice: provider down"
        page = await client.get(answer.headers["location"])
        assert "Done: parked." in page.text
        assert "park by alice: provider down" in page.text
        timeline = (await client.get("/api/timelines/Volume?id=17")).json()
        assert [one["action"] for one in timeline["entries"]] == ["park"]
        assert "PARKED" in page.text
        await acted(client, "/act/unpark?model=Volume&id=17", form)
        assert (await row()).parked_at is None
        form = shown_form(await client.get("/pipelines/VolumePipeline")) | {"reason": "down"}
        pause = "/act/pause?pipeline=VolumePipeline"
        assert (await acted(client, pause, form | {"for": "9y"})).status_code == 400
        assert (await acted(client, pause, form | {"for": "2h"})).status_code == 303
        assert "paused by alice" in (await client.get("/pipelines/VolumePipeline")).text
        await acted(client, "/act/resume?pipeline=VolumePipeline", form)
        assert "paused by" not in (await client.get("/pipelines/VolumePipeline")).text


async def test_what_cannot_be_paused_is_said(sqlite_database: TemporaryDatabase) -> None:
    """A button would promise half a pause."""
    await furnished(sqlite_database)
    insight = Insight(sqlite_database.session_factory, [VolumePipeline()])
    app = Dashboard(insight, authorize=everything)
    async with browser(sqlite_database, app=app) as client:
        form = shown_form(await client.get("/pipelines/VolumePipeline")) | {"reason": "down"}
        answer = await acted(client, "/act/pause?pipeline=VolumePipeline", form)
    assert answer.status_code == 409
    assert "VolumePipeline cannot be paused" in answer.text


@pytest.mark.parametrize("payload", payloads())
async def test_hostile_texts_are_shown_as_typed(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, payload: str
) -> None:
    """A key or an error that somebody else has chosen would become script, or an address that
    leads elsewhere, or a line of the log.
    """
    await furnished(database)
    values = {"id": payload, "last_error": payload, "attempts": 1, "parked_at": ago(5)}
    async with database.engine.begin() as connection:
        await connection.execute(insert(Label).values(**values))
    address = PageAddresses("").row("Label", payload)
    async with browser(database) as client:
        rows = await client.get("/pipelines/LabelPipeline/rows?state=parked")
        page = await client.get(address)
        assert page.status_code == 200
        assert html.escape(address, quote=False) in rows.text
        assert shown(payload)[:20] in html.unescape(page.text)
        form = shown_form(page) | {"reason": payload}
        action = PageAddresses("").act("unpark", model="Label", id=payload)
        with caplog.at_level(logging.INFO, "rowlock.audit"):
            assert (await acted(client, action, form)).status_code == 303
        for text in (rows.text, page.text, *(one.getMessage() for one in caplog.records)):
            assert not CONTROLS & set(text)
        assert "<" not in payload or payload not in rows.text + page.text
        assert all("\n" not in one.getMessage() for one in caplog.records)


async def test_a_model_without_a_schedule_has_its_page(database: TemporaryDatabase) -> None:
    """Rows without a time of their own would have no page, or buttons that cannot work."""
    await database.create_tables(Base.metadata)
    async with database.engine.begin() as connection:
        await connection.execute(insert(Bare).values(id=1))
    insight = Insight(
        database.session_factory, [BarePipeline()], tables=insight_tables(Base.metadata)
    )
    async with browser(database, app=Dashboard(insight, authorize=everything)) as client:
        page = await client.get("/rows/Bare/1")
        assert (page.status_code, "Park<" in page.text, "Release<" in page.text) == (
            200,
            False,
            True,
        )
        form = shown_form(page) | {"reason": "x"}
        assert (await acted(client, "/act/park?model=Bare&id=1", form)).status_code == 404
        for state in ("due", "failing", "parked"):
            rows = await client.get(f"/pipelines/BarePipeline/rows?state={state}")
            assert rows.status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/status"])
async def test_what_the_host_raises_is_in_the_log_alone(
    caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """What stands in an error of the host's would be read by whoever may look, and would be in no
    log.
    """

    def source() -> Any:
        raise ValueError("secret")

    transport = ASGITransport(Dashboard(source, authorize=everything))
    async with AsyncClient(transport=transport, base_url=ORIGIN) as client:
        answer = await client.get(path)
    assert answer.status_code == 500
    assert "secret" not in answer.text
    [line] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "secret" in line.getMessage()


async def test_without_the_database_there_is_a_sentence(database: TemporaryDatabase) -> None:
    """An outage would look like a bug, or show what the driver says of the server."""
    before = set(threading.enumerate())
    is_file = database.url.host is None and not database.url.query
    gone = {"database": "/nowhere/secret.db"} if is_file else {"host": "127.0.0.1", "port": 1}
    engine = create_async_engine(database.url.set(**gone, query={}))
    insight = Insight(async_sessionmaker(engine), [VolumePipeline()])
    app = Dashboard(insight, authorize=everything)
    async with browser(database, app=app) as client:
        for path in ("/", "/rows/Volume/1", "/api/rows/Volume/1", "/pipelines/VolumePipeline"):
            answer = await client.get(path)
            assert (answer.status_code, path) == (503, path)
            assert "The database does not answer." in answer.text
            assert "secret" not in answer.text
    await engine.dispose()
    # A connection that fails to open is told so by its thread, which asks for the loop after that.
    await asyncio.to_thread(join_new_connections, before)


def join_new_connections(before: set[threading.Thread]) -> None:
    """Wait for the threads of connections that were not there before."""
    for thread in set(threading.enumerate()) - before:
        if "_connection_worker_thread" in thread.name:
            thread.join(JOINED_S_MAX)


async def test_any_framework_mounts_it(sqlite_database: TemporaryDatabase) -> None:
    """Links would lead out of the mount, or no path would be found in it."""
    await furnished(sqlite_database)
    app = Starlette()
    app.mount("/ops/rowlock", Dashboard(manager_of(sqlite_database), authorize=everything))
    stripped = Dashboard(
        lambda: manager_of(sqlite_database), authorize=everything, prefix="/ops/rowlock"
    )
    async with browser(sqlite_database, app=app) as client:
        page = await client.get("/ops/rowlock/rows/Volume/17")
        assert 'href="/ops/rowlock/static/style.css"' in page.text
        form = shown_form(page) | {"reason": "gone"}
        answer = await acted(client, "/ops/rowlock/act/park?model=Volume&id=17", form)
        assert answer.headers["location"] == "/ops/rowlock/rows/Volume/17?done=park"
        # What the host makes of errors is not asked: the pages are the dashboard's own.
        assert "There is no such page." in (await client.get("/ops/rowlock/x")).text
    async with browser(sqlite_database, app=stripped) as client:
        for path in ("/rows/Volume/17", "/ops/rowlock/rows/Volume/17"):
            assert 'action="/ops/rowlock/act/' in (await client.get(path)).text
