"""Streams that keep pages up to date: their bounds, what they say in an outage, and their end."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, cast

import anyio
import pytest
from httpx import AsyncClient

from rowlock.dashboard import visits
from rowlock.dashboard.visits import LiveResponse, LiveStreams, RecentAnswers, live_events
from rowlock.insight.asking import DatabaseAsks, asked_by_database, time_left
from rowlock.testing import TemporaryDatabase

from .shop_window import browser, furnished

WAIT_S: Final = 30


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visits, "LIVE_S", 0)


async def taken(events: AsyncIterator[Any], count: int) -> list[tuple[str | None, str]]:
    """Return so many events, each with its name and text."""
    found: list[tuple[str | None, str]] = []
    async with asyncio.timeout(WAIT_S):
        async for event in events:
            found.append((event.event, event.data))
            if len(found) == count:
                return found
    return found


async def test_a_part_is_sent_when_it_has_changed() -> None:
    """A page would be sent again and again, or not be told that somebody is there."""
    parts = iter(["a", "a", "b", "b"])

    async def make() -> str:
        return next(parts)

    found = await taken(live_events(make, anyio.Event()), 5)
    assert found == [("beat", ""), (None, "a"), ("beat", ""), (None, "b"), ("beat", "")]


async def test_an_outage_is_told_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page would call itself live while the database is away, and show what was long ago."""
    monkeypatch.setattr(visits, "PART_S_MAX", 0.01)
    answers: list[Any] = ["a", TimeoutError(), RuntimeError("secret"), None, "a"]

    async def make() -> str:
        answer = answers.pop(0)
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    found = await taken(live_events(make, anyio.Event()), 6)
    assert [name for name, _ in found] == ["beat", None, "stale", "stale", "stale", None]
    assert found[2][1].startswith("The database does not answer.")
    assert "secret" not in found[3][1]


async def test_a_part_has_time_for_the_database_that_works() -> None:
    """An open page would never be live while one of two databases hangs: its part would come when
    it is not waited for any more.
    """
    has: list[timedelta] = []

    async def ask() -> str:
        return has.append(time_left(timedelta(hours=1))) or ""

    async def make() -> str:
        asks = DatabaseAsks(cast("Any", None), (), [ask])
        return str(await asked_by_database([asks, asks], within=timedelta(hours=1)))

    await taken(live_events(make, anyio.Event()), 2)
    assert has[0] <= timedelta(seconds=visits.PART_S_MAX / 2)


async def test_a_stream_is_opened_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not look any more would look on for as long as the page is open."""
    monkeypatch.setattr(visits, "STREAM_S_MAX", 0)

    async def make() -> str:
        raise AssertionError

    assert await taken(live_events(make, anyio.Event()), 9) == [("beat", "")]


def test_streams_have_a_bound() -> None:
    """Somebody would open streams until the process has no file left for a database."""
    streams = LiveStreams()
    for number in range(visits.ROWS_WATCHED_MAX):
        assert streams.enter(f"row:{number}", is_row=True)
    assert not streams.enter("row:another", is_row=True)
    assert streams.enter("row:0", is_row=True)
    while not streams.is_full:
        assert streams.enter("pipelines:", is_row=False)
    assert not streams.enter("pipelines:", is_row=False)
    assert sum(streams._open().values()) == visits.STREAMS_MAX
    streams.leave("row:1")
    assert streams.enter("row:another", is_row=True)


async def test_a_hundred_at_once_are_bounded() -> None:
    """Between a look at the room and the count, others would come in."""
    streams, opened, closed = LiveStreams(), asyncio.Event(), asyncio.Event()
    statuses: list[int] = []

    async def make() -> str:
        return "a"

    async def receive() -> dict[str, Any]:
        await closed.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
            if len(statuses) == 100:
                opened.set()

    scope = {"type": "http", "method": "GET", "headers": []}
    answers = [LiveResponse(streams, "pipelines:", make) for _ in range(100)]
    tasks = [asyncio.ensure_future(one(scope, receive, send)) for one in answers]
    async with asyncio.timeout(WAIT_S):
        await opened.wait()
    assert (statuses.count(200), statuses.count(503)) == (visits.STREAMS_MAX, 36)
    closed.set()
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(*tasks)
    assert streams.enter("row:1", is_row=True)
    assert sum(streams._open().values()) == 1
    await ended_watchers()


async def test_a_browser_that_takes_nothing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each viewer with a bad line would be a traceback in the host's log, or keep its stream."""
    monkeypatch.setattr(visits, "SEND_S_MAX", 0.01)
    streams, never = LiveStreams(), asyncio.Event()

    async def make() -> str:
        return "a"

    async def receive() -> Any:
        await never.wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await never.wait()

    scope = {"type": "http", "method": "GET", "headers": []}
    async with asyncio.timeout(WAIT_S):
        await LiveResponse(streams, "pipelines:", make)(scope, receive, send)
    assert not streams._open()
    await ended_watchers()


async def ended_watchers() -> None:
    """End the watcher that the library of streams has for each loop."""
    watchers = [one for one in asyncio.all_tasks() if "_shutdown_watcher" in repr(one)]
    for one in watchers:
        one.cancel()
    await asyncio.gather(*watchers, return_exceptions=True)


async def test_the_next_page_reloads_itself(
    sqlite_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page without a stream would show what was; or what somebody types would be wiped."""
    await furnished(sqlite_database)
    async with browser(sqlite_database) as client:
        assert "hx-sse:connect" in (await client.get("/")).text
        monkeypatch.setattr(visits, "STREAMS_MAX", 0)
        page = (await client.get("/")).text
        assert "hx-sse:connect" not in page
        assert '<meta http-equiv="refresh" content="10">' in page
        for path in ("/rows/Volume/17", "/pipelines/VolumePipeline", PAGE_OF_ROWS):
            assert 'http-equiv="refresh"' not in (await client.get(path)).text
        assert (await client.get("/live/pipelines")).status_code == 503


PAGE_OF_ROWS: Final = "/pipelines/VolumePipeline/rows"


async def test_what_many_ask_for_is_asked_once() -> None:
    """Twenty viewers would ask the database twenty times."""
    recent, asked, go = RecentAnswers(), [], asyncio.Event()

    async def ask() -> int:
        asked.append(1)
        await go.wait()
        return 7

    waiting = [asyncio.ensure_future(recent.get("key", ask)) for _ in range(20)]
    gone = asyncio.ensure_future(recent.get("key", ask))
    await asyncio.sleep(0)
    gone.cancel()
    go.set()
    assert await asyncio.gather(*waiting) == [7] * 20
    assert len(asked) == 1

    async def fail() -> int:
        raise RuntimeError

    for _ in range(2):
        with pytest.raises(RuntimeError):
            await recent.get("other", fail)
    recent.forget()
    await recent.get("key", ask)
    assert len(asked) == 2


SERVER: Final = """
import asyncio, sys
import uvicorn
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
sys.path[:0] = sys.argv[2:]
from shop import VolumePipeline
import rowlock.dashboard
from rowlock.dashboard import Dashboard, anybody_may_look
from rowlock.insight import Insight

sessions = async_sessionmaker(create_async_engine(sys.argv[1]))
app = Dashboard(Insight(sessions, [VolumePipeline()]), authorize=anybody_may_look)

class Told(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)

Told(uvicorn.Config(app, port=0, log_level="error", lifespan="off")).run()
"""


@asynccontextmanager
async def served(database: TemporaryDatabase) -> AsyncIterator[tuple[Any, str]]:
    """Give a process that serves a dashboard, and its address."""
    shop = os.path.join(os.path.dirname(__file__), "..", "insight")  # noqa: PTH118, PTH120
    url = database.url.render_as_string(hide_password=False)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, url, shop, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(WAIT_S):
            port = int(await process.stdout.readline())
        yield process, f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_streams_end_with_the_server(sqlite_database: TemporaryDatabase) -> None:
    """A server that is told to end would wait for its pages, until somebody kills it."""
    await furnished(sqlite_database)
    async with served(sqlite_database) as (process, address), AsyncClient() as client:
        lines: list[str] = []
        async with client.stream("GET", f"{address}/live/pipelines", timeout=WAIT_S) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.headers["cache-control"] == "no-store"
            async for line in stream.aiter_lines():
                lines.append(line)
                if "VolumePipeline" in line:
                    process.terminate()
        async with asyncio.timeout(WAIT_S):
            await process.wait()
    assert any(line == "event: beat" for line in lines)
