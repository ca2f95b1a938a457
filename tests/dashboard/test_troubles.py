"""What is wrong stands on the pages, in the words of the commands."""

from __future__ import annotations

import html
from typing import Any

import pytest
from sqlalchemy import insert

from rowlock.dashboard import Dashboard
from rowlock.insight import Insight
from rowlock.testing import TemporaryDatabase

from ..insight.shop import Scene, VolumePipeline, at, furnish
from .shop_window import TABLES, browser, everything

pytestmark = pytest.mark.either_database

STRANGE: dict[str, Any] = {"queued": "many", "capacity": None}
FAILS = {"queued": 12, "capacity": 20, "fetch_failures": 3, "last_error": "Timeout: <i>no</i>"}


async def told(database: TemporaryDatabase, **report: Any) -> Insight:
    """Return questions to a shop where a replica has said `report`."""
    await furnish(database, Scene({"due_at": at(-840)}))
    assert TABLES.replicas is not None
    row = {"mark": "3fa2c1d0", "name": "web-7", "host": "host-1", "pid": 1, "version": "1"}
    row |= {"started_at": at(-60), "seen_at": at(-2), "draining": False}
    async with database.engine.begin() as connection:
        await connection.execute(insert(TABLES.replicas).values(row | {"report": report}))
    return Insight(database.session_factory, [VolumePipeline()], tables=TABLES)


async def test_pages_say_what_is_wrong(database_with_clock: TemporaryDatabase) -> None:
    """A page would say "!" beside a pipeline, and not why, nor what to do."""
    insight = await told(
        database_with_clock, pipelines={"VolumePipeline": FAILS}, lag_s=0.0021, skew_s=None
    )
    [line] = [f"{mark} {text}" for mark, text in (await insight.status()).below() if mark == "!"]
    assert line.startswith("! VolumePipeline: claims fail on 1 of 1 replicas: Timeout: <i>no</i>")
    app = Dashboard(insight, authorize=everything)
    async with browser(database_with_clock, app=app) as client:
        first, pipeline, replicas = [
            html.unescape((await client.get(path)).text)
            for path in ("/", "/pipelines/VolumePipeline", "/replicas")
        ]
    assert f'<p class="alert">{line}</p>' in first
    assert f'<p class="alert">{line.replace("VolumePipeline: ", "")}</p>' in pipeline
    assert ">12/20</td>" in first
    assert ">12/20</td>" in replicas
    assert ">0.002 s</td>" in replicas


@pytest.mark.parametrize("strange", [STRANGE, "runs", None])
async def test_a_report_that_nobody_understands(
    database_with_clock: TemporaryDatabase, strange: Any
) -> None:
    """A replica of another version would take the pages from everybody."""
    insight = await told(
        database_with_clock, pipelines={"VolumePipeline": strange, "x": 7}, lag_s="no"
    )
    app = Dashboard(insight, authorize=everything)
    async with browser(database_with_clock, app=app) as client:
        for path in ("/", "/replicas", "/checks", "/rows/Volume/17", "/api/status"):
            assert (await client.get(path)).status_code == 200
