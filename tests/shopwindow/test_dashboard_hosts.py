"""The dashboard in the applications of hosts, over real HTTP: mounted, asked, and acted on."""

from __future__ import annotations

import html
import re
import socket
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from httpx import AsyncClient
from sqlalchemy import insert, select
from starlette.applications import Starlette

from rowlock.dashboard import Dashboard, Viewer, ViewerAction
from rowlock.tasks import contained_task
from rowlock.testing import TemporaryDatabase

from ..dashboard.shop_window import ago, manager_of, shown_form
from ..dashboard.test_live import ended_watchers
from ..insight.shop import Base, Volume

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # some releases of theirs use what others call deprecated
    from litestar import Litestar, asgi

MOUNT = "/ops/rowlock"


def staff(request: Any, action: ViewerAction) -> Viewer | None:
    """Let alice act, bob look, and nobody else in."""
    name = request.headers.get("x-user", "")
    may = name == "alice" or (name == "bob" and action.is_look)
    return Viewer(name) if may else None


def in_starlette(database: TemporaryDatabase) -> Any:
    app = Starlette()
    app.mount(MOUNT, Dashboard(manager_of(database), authorize=staff))
    return app


def in_fastapi(database: TemporaryDatabase) -> Any:
    app = FastAPI()
    app.mount(MOUNT, Dashboard(manager_of(database), authorize=staff))
    return app


def in_litestar(database: TemporaryDatabase) -> Any:
    """Mount it in Litestar, which takes the mount out of the path and tells nobody."""
    dashboard: Any = Dashboard(manager_of(database), authorize=staff, prefix=MOUNT)
    return Litestar([asgi(MOUNT, is_mount=True, copy_scope=True)(dashboard)], logging_config=None)


def alone(database: TemporaryDatabase) -> Any:
    """Serve it as it is, beside what a plain asyncio service does."""
    return Dashboard(manager_of(database), authorize=staff)


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[AsyncClient]:
    """Serve an application on loopback, and give a client of it."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        task = contained_task(server._serve([listening]), name="server")
        origin = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with AsyncClient(base_url=origin, headers={"origin": origin}) as client:
            yield client
        server.should_exit = True
        await task
    await ended_watchers()


@pytest.mark.parametrize(
    ("build", "mount"),
    [(in_starlette, MOUNT), (in_fastapi, MOUNT), (in_litestar, MOUNT), (alone, "")],
)
async def test_a_host_shows_and_steers(
    sqlite_database: TemporaryDatabase, build: Any, mount: str
) -> None:
    """Links, forms or the right to act would hold in one framework, and be lost in another."""
    await sqlite_database.create_tables(Base.metadata)
    parked = {"status": "submitted", "parked_at": ago(60), "attempts": 20}
    async with sqlite_database.engine.begin() as connection:
        await connection.execute(insert(Volume).values(id=17, **parked))

    async def is_parked() -> bool:
        async with sqlite_database.session_factory() as session:
            return await session.scalar(select(Volume.parked_at)) is not None

    alice, bob = {"x-user": "alice"}, {"x-user": "bob"}
    async with served(build(sqlite_database)) as client:
        row = f"{mount}/rows/Volume/17"
        assert (await client.get(row)).status_code == 403
        page = await client.get(row, headers=alice)
        assert page.status_code == 200
        assert "PARKED for" in page.text
        links = set(re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text))
        assert links
        assert all(link.startswith(f"{mount}/") for link in links)
        for link in links:
            if "/act/" not in link:
                assert (await client.get(link, headers=alice)).status_code == 200, link
        [act] = [html.unescape(link) for link in links if "/act/unpark?" in link]
        form = shown_form(page) | {"reason": "mended"}
        assert (await client.post(act, data=form, headers=bob)).status_code == 403
        assert await is_parked()
        done = await client.post(act, data=form, headers=alice)
        assert (done.status_code, done.headers["location"].startswith(row)) == (303, True)
        assert not await is_parked()
