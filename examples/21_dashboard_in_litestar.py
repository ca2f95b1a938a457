"""A Litestar service with advanced-alchemy mounts the dashboard; its sessions say who may act.

The one idea: Litestar takes the mount out of the path and tells nobody, so the dashboard is given
its prefix. What a middleware of the host has found out, such as the session, stands in the request.

Run it: ``python examples/21_dashboard_in_litestar.py`` (needs ``pip install litestar
advanced-alchemy httpx`` and the extra ``dashboard``). It serves itself on loopback, is its own
browser, ends by itself and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import tempfile
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # some releases of theirs use what others call deprecated
    from advanced_alchemy.extensions.litestar import SQLAlchemyAsyncConfig, SQLAlchemyPlugin
    from litestar import Litestar, Request, asgi, post
    from litestar.middleware.session.server_side import ServerSideSessionConfig
from httpx import AsyncClient
from sqlalchemy.ext.asyncio import async_sessionmaker
from watching.visiting import look_and_act, served
from watching.volumes import TABLES, Base, VolumePipeline

from rowlock import PipelineManager
from rowlock.dashboard import Dashboard, Viewer, ViewerAction
from rowlock.insight import Observer

MOUNT = "/ops/rowlock"
STAFF = {"alice": True, "bob": False}
"""Who works here, and whether that person may act."""


@post("/sign-in/{name:str}")
async def sign_in(request: Request[Any, Any, Any]) -> None:
    """Stand for the host's own sign-on, which would ask for more than a name."""
    request.session["user"] = request.path_params["name"]


async def staff(request: Any, action: ViewerAction) -> Viewer | None:
    """Say who asks, if that person may do this."""
    name = request.session.get("user", "")
    return Viewer(name) if name in STAFF and (action.is_look or STAFF[name]) else None


def create_app(database_url: str) -> Litestar:
    """Build the application; it starts its pipelines when it starts."""
    config = SQLAlchemyAsyncConfig(
        connection_string=database_url, metadata=Base.metadata, create_all=False
    )
    sessions = async_sessionmaker(config.get_engine())
    manager = PipelineManager(sessions, [VolumePipeline()], gates=[TABLES.pause_gate])
    observer = Observer(manager)  # its tables are those of the gate
    dashboard: Any = Dashboard(observer, authorize=staff, prefix=MOUNT)

    @asynccontextmanager
    async def pipelines(app: Litestar) -> AsyncIterator[None]:
        async with config.get_engine().begin() as connection:
            await connection.run_sync(Base.metadata.create_all)  # a real host migrates
        async with observer, manager:  # the observer ends last
            yield
        await config.get_engine().dispose()

    return Litestar(
        [sign_in, asgi(MOUNT, is_mount=True, copy_scope=True)(dashboard)],
        plugins=[SQLAlchemyPlugin(config=config)],
        middleware=[ServerSideSessionConfig().middleware],
        lifespan=[pipelines],
        logging_config=None,
    )


async def sign_in_as(browser: AsyncClient, name: str) -> None:
    """Have the browser be somebody from now on."""
    await browser.post(f"/sign-in/{name}")


async def main(folder: Path) -> None:
    """Start the service and be its browser."""
    async with served(create_app(f"sqlite+aiosqlite:///{folder / 'app.db'}")) as address:
        await look_and_act(address, MOUNT, sign_in_as)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
