"""A service without a web framework serves the dashboard beside its work, behind a proxy.

The one idea: the dashboard is an ASGI app without a lifespan, so any ASGI server will do, in the
loop of the pipelines. A proxy in front knows who asks and says so in a header, which it takes from
nobody else; so the service listens where only the proxy can reach it.

Run it: ``python examples/22_dashboard_in_asyncio.py`` (needs ``pip install httpx`` and the extra
``dashboard``). It serves itself on loopback, is its own browser and proxy, ends by itself and
leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from httpx import AsyncClient
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from watching.visiting import look_and_act, served
from watching.volumes import TABLES, Base, VolumePipeline

from rowlock import PipelineManager
from rowlock.dashboard import Dashboard, Viewer, ViewerAction
from rowlock.insight import Observer

USER = "x-forwarded-user"
MAY_ACT = {"alice"}


def staff(request: Any, action: ViewerAction) -> Viewer | None:
    """Say who asks, as the proxy has found out; those that it lets in may look."""
    name = request.headers.get(USER)
    return Viewer(name) if name and (action.is_look or name in MAY_ACT) else None


async def pass_proxy_as(browser: AsyncClient, name: str) -> None:
    """Say who asks, as the proxy does."""
    browser.headers[USER] = name


async def main(folder: Path) -> None:
    """Run the service and be its browser."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'app.db'}")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)  # a real host migrates
    sessions = async_sessionmaker(engine)
    manager = PipelineManager(sessions, [VolumePipeline()], gates=[TABLES.pause_gate])
    async with (
        Observer(manager) as observer,  # its tables are those of the gate; it ends last
        manager,
        served(Dashboard(observer, authorize=staff)) as address,
    ):
        await look_and_act(address, "", pass_proxy_as)
    await engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
