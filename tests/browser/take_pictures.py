"""Takes the pictures of the dashboard in the docs: ``python -m tests.browser.take_pictures``.

The story is seeded: two replicas work on volumes, one volume failed twenty times, and backups are
paused. The rows and what the replicas report are written as they would be; the pages are the real
ones, in a real browser.
"""

from __future__ import annotations

import asyncio
import math
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import uvicorn
from playwright.async_api import async_playwright
from sqlalchemy import ColumnElement, insert
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from rowlock import PipelineManager, parked_index
from rowlock.dashboard import Dashboard
from rowlock.graph import Flow, StandingGraph
from rowlock.insight import Observer
from rowlock.insight.replicas import Sample

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
    ("dashboard-graphs", "/graphs", {"width": 1280, "height": 520}, "light"),
)
"""The name of each picture, the page, the size of the window, the scheme."""
REFUSED: Final = "ConnectionError: cloud-7 refused"


class BackupPipeline(Quiet):
    model = Label

    def ready(self) -> ColumnElement[bool]:
        return Label.id != ""


class ToldSample(NamedTuple):
    at: float
    count: float

    def settled(self) -> float:
        return self.count


class ToldObserver(Observer):
    """An observer that has watched for ten minutes."""

    def samples(self, pipeline: str) -> tuple[Sample, ...]:
        height = {"VolumePipeline": 14.0, "FleetPipeline": 0.8}.get(pipeline, 0.0)
        counts, told = 0.0, []
        for beat in range(120):
            told.append(ToldSample(5.0 * beat, counts))
            counts += 5.0 * height * (1 + 0.4 * math.sin(beat / 9) + 0.2 * math.sin(beat))
        return cast("tuple[Sample, ...]", tuple(told))


async def tell(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        for table, rows in (*rows_told(), *replicas_told(), *history_told()):
            await connection.execute(insert(table), rows)


def rows_told() -> list[tuple[Any, list[dict[str, Any]]]]:
    """Return volumes that are due, at work and parked, and backups."""
    lease = {"lock_owner": "VolumePipeline", "lock_token": TOKEN, "lock_expires_at": ago(-24)}
    due = [{"id": 100 + n, "due_at": ago(120 - n)} for n in range(118)]
    leased = [{"id": 300 + n, "due_at": ago(130), **lease} for n in range(20)]
    parked = [
        {
            "id": key,
            "last_error": f"gave up after 20 attempts: {REFUSED}",
            "last_processed_at": ago(1320 - 200 * n),
            "parked_at": ago(1320 - 200 * n),
            "attempts": 20,
        }
        for n, key in enumerate((17, 18, 40))
    ]
    volumes = [(Volume, [{"status": "submitted"} | row for row in rows]) for rows in (due, leased)]
    volumes.append((Volume, [{"status": "submitted"} | row for row in parked]))
    return [*volumes, (Label, [{"id": f"backup-{n}", "due_at": ago(900)} for n in range(40)])]


def replicas_told() -> list[tuple[Any, list[dict[str, Any]]]]:
    """Return two replicas with what they report, and a pause."""
    full = {"queued": 6, "capacity": 10, "running": 10, "workers": 10}
    idle = {"queued": 0, "capacity": 10, "running": 0, "workers": 10}
    pipelines = {
        "VolumePipeline": HEALTHY | full,
        "FleetPipeline": HEALTHY | idle | {"settled_s": 0.4},
        "BackupPipeline": HEALTHY | idle | {"settled_s": 0.0, "p95_s": None},
    }
    replicas = [
        {
            "mark": mark,
            "name": name,
            "host": "host-1",
            "pid": 1,
            "version": "1.0",
            "started_at": ago(7200),
            # They live for as long as the pictures take.
            "seen_at": ago(-300),
            "draining": False,
            "report": {"pipelines": pipelines},
        }
        for mark, name in (("3fa2c1d0", "web-7"), ("91be04aa", "web-8"))
    ]
    pause = {"pipeline": "BackupPipeline", "paused_at": ago(720), "paused_by": "alice"}
    return [(TABLES.replicas, replicas), (TABLES.controls, [pause | {"reason": "provider down"}])]


def history_told() -> list[tuple[Any, list[dict[str, Any]]]]:
    ends = ((18, "retried", 1920), (19, "retried", 1620), (20, "parked", 1320))
    entries = [
        {
            "at": ago(ended),
            "model": "Volume",
            "row_id": "17",
            "pipeline": "VolumePipeline",
            "kind": kind,
            "replica": "3fa2c1d0" if attempt % 2 else "91be04aa",
            "attempt": attempt,
            "error": REFUSED,
            "took_s": 1.2,
            "waited_s": 0.1,
        }
        for attempt, kind, ended in ends
    ]
    return [(TABLES.history, entries)]


async def take(address: str) -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=browser_path(), args=["--no-sandbox"]
        )
        for name, path, size, scheme in PICTURES:
            context: Any = await browser.new_context(viewport=size, color_scheme=scheme)
            page = await context.new_page()
            await page.goto(address + path)
            if "state=" not in path:
                await page.get_by_role("status").get_by_text("● live").wait_for()
            await page.screenshot(path=FOLDER / f"{name}.png", animations="disabled")
            await context.close()
        await browser.close()


def read_pages(pages: Flow[str]) -> Flow[str]:
    """Return the graph of a service that indexes pages."""
    return pages.map(str.strip).map(recognised, lanes=2, name="recognise")


def recognised(page: str) -> str:
    threading.Event().wait(0.02)
    return page


async def keep_reading(pages: StandingGraph[str, str]) -> None:
    while True:
        await asyncio.gather(*(pages.submit(f" {number} ") for number in range(12)))


async def main() -> None:
    """Tell the story, serve it, and look at it."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as listening:
        engine = create_async_engine(f"sqlite+aiosqlite:///{folder}/shop")
        # So that the parked rows are counted.
        parked_index(Volume)
        await tell(engine)
        pipelines = [VolumePipeline(), FleetPipeline(), BackupPipeline()]
        sessions = async_sessionmaker(engine, expire_on_commit=False)
        manager = PipelineManager(sessions, pipelines, gates=[TABLES.pause_gate])
        pages = StandingGraph[str, str](read_pages, name="pages")
        reading = asyncio.create_task(keep_reading(pages))
        app = Dashboard(ToldObserver(manager, tables=TABLES), authorize=everything, graphs=[pages])
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listening]))
        await take(f"http://127.0.0.1:{listening.getsockname()[1]}")
        server.should_exit = True
        await task
        await end_watchers()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await pages.aclose()
        await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
