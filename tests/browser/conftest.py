"""A real browser, and a dashboard that it reaches under a name which it does not trust."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import pytest
import uvicorn
from sqlalchemy import insert

from rowlock.dashboard import Dashboard
from rowlock.graph import Flow, StandingGraph
from rowlock.testing import TemporaryDatabase

from ..dashboard.shop_window import Label, ago, be_generous, everything, furnished, manager_of
from ..insight.shop import Volume
from ..payloads import payloads

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
NAME: Final = "shop.test"
"""Of no machine: the browser is told where it is."""
WAIT_MS: Final = 60_000

playwright_api = pytest.importorskip("playwright.async_api", reason="playwright is not installed")


class OpenPage(NamedTuple):
    """A page of the browser, and what went wrong on it.

    Attributes:
        page: of playwright.
        address: of the dashboard.
        trouble: dialogs, errors of scripts, reports of the policy, and requests elsewhere.
    """

    page: Any
    address: str
    trouble: list[str]


def browser_path() -> str:
    """Return where the browser is; without one a test is skipped, or fails where it is required."""
    for name in NAMES:
        if (path := shutil.which(name)) is not None:
            return path
    why = "no browser is here: apt-get install chromium"
    if os.environ.get("ROWLOCK_BROWSER") == "required":
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture
async def browser(address: str) -> AsyncIterator[Any]:
    """Give a browser, which is closed before the server that it looks at."""
    assert address
    path = browser_path()
    async with playwright_api.async_playwright() as playwright:
        # A container has no user namespace for the browser's own walls.
        rules = f"--host-resolver-rules=MAP {NAME} 127.0.0.1"
        browser = await playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", rules]
        )
        yield browser
        await browser.close()


@pytest.fixture
async def address(
    sqlite_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """Serve a dashboard over rows in every state, and give its address."""
    be_generous(monkeypatch)
    await furnished(sqlite_database)
    await fill(sqlite_database)
    graph: StandingGraph[str, int] = StandingGraph(measured, name=payloads()[0])
    app = Dashboard(manager_of(sqlite_database), authorize=everything, graphs=[graph])
    async with served(app) as address:
        yield address
    await end_watchers()


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve an app on a port of its own, under the name of the dashboard."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listening]), name="server")
        yield f"http://{NAME}:{listening.getsockname()[1]}"
        server.should_exit = True
        await task


def measured(texts: Flow[str]) -> Flow[int]:
    """Return a graph that is wider than a phone."""
    return texts.map(str.strip, lanes=2).map(str.upper).map(len, name=payloads()[1])


async def end_watchers() -> None:
    """End the watcher that the library of streams has for each loop."""
    from ..dashboard.test_live import ended_watchers  # noqa: PLC0415

    await ended_watchers()


async def fill(database: TemporaryDatabase) -> None:
    """Write rows in every state, some of them with hostile texts."""
    parked = {"parked_at": ago(1300), "attempts": 20}
    async with database.engine.begin() as connection:
        for number in range(60):
            row = {"id": 100 + number, "status": "submitted", "due_at": ago(900 - number)}
            await connection.execute(insert(Volume).values(row))
        await connection.execute(
            insert(Volume).values(id=18, status="submitted", last_error="refused", **parked)
        )
        for payload in payloads():
            row = {"id": payload, "last_error": payload, "attempts": 1}
            await connection.execute(insert(Label).values(row))


async def opened(browser: Any, address: str, **how: Any) -> OpenPage:
    """Open an empty page that notes whatever goes wrong on it."""
    context = await browser.new_context(**how)
    context.set_default_timeout(WAIT_MS)
    page, trouble = await context.new_page(), []
    page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
    page.on("console", lambda line: trouble.append(line.text) if line.type == "error" else None)

    async def dismiss(dialog: Any) -> None:
        trouble.append(f"dialog: {dialog.message}")
        await dialog.dismiss()

    def look(request: Any) -> None:
        if not request.url.startswith((address, "data:")):
            trouble.append(f"request to {request.url}")

    page.on("dialog", dismiss)
    page.on("request", look)
    return OpenPage(page, address, trouble)
