"""A service mounts the dashboard, and lets its own sign-on say who may look and who may act.

The one idea: the dashboard knows no passwords. The host's function is asked for every request, with
what somebody wants to do; it answers with a name, or with nothing.

Run it: ``python examples/20_dashboard.py`` (needs ``pip install fastapi httpx`` and the extra
``dashboard``). It serves itself on loopback, is its own browser, ends by itself and leaves nothing
behind. Look at the pages: ``python examples/20_dashboard.py --stay``.
"""

from __future__ import annotations

import asyncio
import html
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request, Response
from httpx import AsyncClient
from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from watching.visiting import served

from rowlock import (
    Apply,
    LockColumns,
    Park,
    Pipeline,
    PipelineItem,
    PipelineManager,
    ScheduleColumns,
    due_index,
)
from rowlock.dashboard import Dashboard, Viewer, ViewerAction
from rowlock.insight import Observer, insight_tables

POLL_S = 0.05
WAIT_S_MAX = 30.0
STAFF = {"alice": True, "bob": False}
"""Who works here, and whether that person may act."""


class Base(DeclarativeBase):
    """The host's mapped classes."""


class Volume(LockColumns, ScheduleColumns, Base):
    """A volume as the host knows it."""

    __tablename__ = "volumes"

    id: Mapped[int] = mapped_column(primary_key=True)
    cloud: Mapped[str]
    status: Mapped[str] = mapped_column(default="submitted")


TABLES = insight_tables(Base.metadata, history=True)


class VolumePipeline(Pipeline[Volume]):
    """Gives each submitted volume a disk; one cloud refuses until somebody has called it."""

    model = Volume

    def __init__(self) -> None:
        self.refusing = {"cloud-7"}
        super().__init__()

    def ready(self) -> ColumnElement[bool]:
        """Submitted volumes want work."""
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Volume]) -> Apply | Park:
        """Create the disk."""
        volume = item.row
        if volume.cloud in self.refusing:
            return Park(f"{volume.cloud} refused")
        return Apply({"status": "active"})


due_index(VolumePipeline)


async def sign_in(name: str, response: Response) -> None:
    """Stand for the host's own sign-on, which would ask for more than a name."""
    response.set_cookie("user", name, httponly=True, samesite="strict")


async def staff(request: Request, action: ViewerAction) -> Viewer | None:
    """Say who asks, if that person may do this."""
    name = request.cookies.get("user", "")
    return Viewer(name) if name in STAFF and (action.is_look or STAFF[name]) else None


def create_app(engine: AsyncEngine, pipeline: VolumePipeline) -> FastAPI:
    """Build the application; the dashboard is given what runs in this process."""
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    manager = PipelineManager(sessions, [pipeline], gates=[TABLES.pause_gate])
    observer = Observer(manager, tables=TABLES, name="web-1")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)  # a real host migrates
        async with sessions.begin() as session:
            session.add_all(Volume(id=id, cloud=f"cloud-{id}") for id in (6, 7))  # noqa: A001
        async with observer, manager:  # the observer ends last
            yield

    app = FastAPI(lifespan=lifespan)
    app.post("/sign-in/{name}")(sign_in)
    app.mount("/rowlock", Dashboard(observer, authorize=staff))
    return app


async def headline_of(browser: AsyncClient, row: str, *, is_as: str) -> str:
    """Ask for a row's page until its headline begins so."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            page = await browser.get(f"/rowlock/rows/Volume/{row}")
            found = re.search(r"<h2>(.*?)</h2>", page.text)
            if found and found[1].startswith(is_as):
                return html.unescape(found[1])
            await asyncio.sleep(POLL_S)


async def put_back(browser: AsyncClient, address: str) -> int:
    """Send the form on the page of volume 7, as a browser does."""
    page = (await browser.get("/rowlock/rows/Volume/7")).text
    hidden = dict(re.findall(r'<input type="hidden"[^>]* name="(\w+)" value="([^"]*)"', page))
    form = hidden | {"reason": "cloud-7 answers again"}
    path = "/rowlock/act/unpark?model=Volume&id=7"
    answer = await browser.post(path, data=form, headers={"origin": address})
    return answer.status_code


async def main(folder: Path, *, stays: bool) -> None:
    """Start the service and be its browser."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'app.db'}")
    pipeline = VolumePipeline()
    async with served(create_app(engine, pipeline)) as address:
        async with AsyncClient(base_url=address) as browser:
            print(f"nobody: GET /rowlock/ {(await browser.get('/rowlock/')).status_code}")
            await browser.post("/sign-in/bob")
            print(f"bob: GET /rowlock/ {(await browser.get('/rowlock/')).status_code}")
            print(f"bob sees volume 7: {await headline_of(browser, '7', is_as='PARKED')}")
            print(f"bob: POST /rowlock/act/unpark {await put_back(browser, address)}")
            await browser.post("/sign-in/alice")
            pipeline.refusing.clear()
            print(f"alice: POST /rowlock/act/unpark {await put_back(browser, address)}")
            print(f"alice sees volume 7: {await headline_of(browser, '7', is_as='NOT READY')}")
            status = (await browser.get("/rowlock/api/status")).json()
            print(f"GET /rowlock/api/status: {status['schema']}")
        if stays:
            print(f"open {address}/docs, sign in as alice, then open {address}/rowlock/")
            await asyncio.Event().wait()
    await engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary), stays="--stay" in sys.argv))
