"""Takes the pictures of the dashboard in the docs: ``python -m tests.browser.take_pictures``.

The story is seeded: two replicas work on volumes, one volume failed twenty times, and backups are
paused. The rows and what the replicas report are written as they would be; the pages are the real
ones, in a real browser.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
from pathlib import Path
from typing import Any, Final

import uvicorn
from playwright.async_api import async_playwright
from sqlalchemy import ColumnElement, insert
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from rowlock import PipelineManager
from rowlock.dashboard import Dashboard

from ..dashboard.shop_window import TABLES, Label, ago, everything
from ..insight.shop import TOKEN, Base, FleetPipeline, Quiet, Volume, VolumePipeline
from ..insight.test_status import HEALTHY
from .conftest import browser_path, end_watchers

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "pictures"
WIDE, PHONE = {"width": 1120, "height": 560}, {"width": 360, "height": 720}
PICTURES: Final = (
    ("dashboard-pipelines", "/", WIDE, "light"),
    ("dashboard-row", "/rows/Volume/17", {"width": 1120, "height": 772}, "light"),
    ("dashboard-parked", "/pipelines/VolumePipeline/rows?state=parked", WIDE, "dark"),
    ("dashboard-phone", "/", PHONE, "dark"),
)
"""The name of each picture, the page, the size of the window, the scheme."""
REFUSED: Final = "ConnectionError: cloud-7 refused"


class BackupPipeline(Quiet):
    """Works on what is paused."""

    model = Label

    def ready(self) -> ColumnElement[bool]:
        """Every label wants work."""
        return Label.id != ""


async def tell(engine: AsyncEngine) -> None:
    """Write the story."""
    assert TABLES.replicas is not None
    assert TABLES.controls is not None
    assert TABLES.history is not None
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)

        async def put(table: Any, **values: Any) -> None:
            await connection.execute(insert(table).values(values))

        for number in range(118):
            await put(Volume, id=100 + number, status="submitted", due_at=ago(120 - number))
        for number in range(20):
            lease = {
                "lock_owner": "VolumePipeline",
                "lock_token": TOKEN,
                "lock_expires_at": ago(-24),
            }
            await put(Volume, id=300 + number, status="submitted", due_at=ago(130), **lease)
        for number, key in enumerate((17, 18, 40)):
            parked = {"parked_at": ago(1320 - 200 * number), "attempts": 20}
            error = f"gave up after 20 attempts: {REFUSED}"
            await put(
                Volume,
                id=key,
                status="submitted",
                last_error=error,
                last_processed_at=ago(1320 - 200 * number),
                **parked,
            )
        for number in range(40):
            await put(Label, id=f"backup-{number}", due_at=ago(900))
        pipelines = {"VolumePipeline": HEALTHY, "FleetPipeline": HEALTHY | {"settled_s": 0.4}}
        for mark, name in (("3fa2c1d0", "web-7"), ("91be04aa", "web-8")):
            await put(
                TABLES.replicas,
                mark=mark,
                name=name,
                host="host-1",
                pid=1,
                version="1.0",
                started_at=ago(7200),
                seen_at=ago(1),
                draining=False,
                report={"pipelines": pipelines | {"BackupPipeline": HEALTHY | {"settled_s": 0.0}}},
            )
        await put(
            TABLES.controls,
            pipeline="BackupPipeline",
            paused_at=ago(720),
            paused_by="alice",
            reason="provider down",
        )
        entry = {"model": "Volume", "row_id": "17", "pipeline": "VolumePipeline"}
        for attempt, kind, ended in (
            (18, "retried", 1920),
            (19, "retried", 1620),
            (20, "parked", 1320),
        ):
            await put(
                TABLES.history,
                at=ago(ended),
                kind=kind,
                replica="3fa2c1d0" if attempt % 2 else "91be04aa",
                attempt=attempt,
                error=REFUSED,
                took_s=1.2,
                waited_s=0.1,
                **entry,
            )


async def take(address: str) -> None:
    """Take each picture."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=browser_path(), args=["--no-sandbox"]
        )
        for name, path, size, scheme in PICTURES:
            context: Any = await browser.new_context(viewport=size, color_scheme=scheme)
            page = await context.new_page()
            await page.goto(address + path)
            if "state=" not in path:
                await page.get_by_role("status").get_by_text("live").wait_for()
            await page.screenshot(path=FOLDER / f"{name}.png", animations="disabled")
            await context.close()
        await browser.close()


async def main() -> None:
    """Tell the story, serve it, and look at it."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as listening:
        engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/shop")
        await tell(engine)
        pipelines = [VolumePipeline(), FleetPipeline(), BackupPipeline()]
        sessions = async_sessionmaker(engine, expire_on_commit=False)
        manager = PipelineManager(sessions, pipelines, gates=[TABLES.pause_gate])
        app = Dashboard(manager, authorize=everything)
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listening]))
        await take(f"http://127.0.0.1:{listening.getsockname()[1]}")
        server.should_exit = True
        await task
        await end_watchers()
        await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
