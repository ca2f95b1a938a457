"""The dashboard in a real browser: what it shows, runs, asks for and does."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from rowlock.insight.shown import shown
from rowlock.testing import TemporaryDatabase

from ..insight.shop import Volume
from ..payloads import payloads
from .conftest import WAIT_MS, opened, playwright_api

PAGES = {
    "/": "Pipelines",
    "/replicas": "Replicas",
    "/checks": "Checks",
    "/graphs": "Graphs",
    "/pipelines/VolumePipeline": "VolumePipeline",
    "/pipelines/VolumePipeline/rows?state=due": "VolumePipeline",
    "/rows/Volume/18": "Volume 18",
    "/rows/Volume/999": "Volume 999",
    "/nowhere": "404",
}
LABELS = "/pipelines/LabelPipeline/rows?state=failing"
expect: Any = playwright_api.expect
expect.set_options(timeout=WAIT_MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
async def test_pages_are_for_everybody(browser: Any, address: str, scheme: str, width: int) -> None:
    """Somebody could not read a page, or would have to move it sideways."""
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    viewport = {"width": width, "height": 900}
    open_page = await opened(
        browser, address, color_scheme=scheme, viewport=viewport, bypass_csp=True
    )
    page = open_page.page
    for path, title in PAGES.items():
        await page.goto(address + path)
        await expect(page.locator("h1")).to_have_text(title)
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
        results = await axe.run(page)
        assert results.violations_count == 0, (path, results.generate_report())
    small = await page.evaluate(
        """() => [...document.querySelectorAll('nav a, button, td a, input:not([type=hidden])')]
        .filter(one => one.offsetHeight > 0 && one.offsetHeight < 24).length"""
    )
    assert small == 0


async def test_no_width_is_too_narrow(browser: Any, address: str) -> None:
    """On a tablet, or in half a window, the state of a pipeline would stand out of sight."""
    page, _, trouble = await opened(browser, address, viewport={"width": 320, "height": 900})
    for path in ("/", "/replicas", "/pipelines/VolumePipeline/rows?state=due"):
        await page.goto(address + path)
        for width in (320, 640, 768, 900, 1024):
            await page.set_viewport_size({"width": width, "height": 900})
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
    assert trouble == []


async def test_hostile_texts_do_nothing(browser: Any, address: str) -> None:
    """What stands in a row would run, load something, or look like what it is not."""
    page, _, trouble = await opened(browser, address)
    await page.goto(address + LABELS)
    await expect(page.locator("#live-state")).to_contain_text("● live")
    cells = await page.locator("td.error").all_text_contents()
    assert {shown(one, 80) for one in payloads()} == set(cells)
    links = await page.locator("a.row-link").evaluate_all("all => all.map(one => one.href)")
    assert len(links) == len(payloads())
    for link in links:
        assert link.startswith(f"{address}/rows/Label")
        await page.goto(link)
        await expect(page.locator("#live-state")).to_contain_text("● live")
    assert trouble == []


async def test_pages_stay_live(
    browser: Any, address: str, sqlite_database: TemporaryDatabase
) -> None:
    """A page would show what was, and call it live."""
    page, _, trouble = await opened(browser, address)
    await page.goto(address + "/rows/Volume/18")
    await expect(page.locator("h2").first).to_contain_text("PARKED")
    await expect(page.locator("#live-state")).to_contain_text("● live")
    await page.fill("#reason", "half a sentence")
    async with sqlite_database.session_factory.begin() as session:
        (await session.get_one(Volume, 18)).status = "active"
    await expect(page.locator(".advice").first).to_contain_text("NOT READY")
    assert await page.input_value("#reason") == "half a sentence"
    assert trouble == []
    await page.context.set_offline(True)
    await page.evaluate(
        "document.getElementById('live').dispatchEvent(new Event('htmx:sse:error'))"
    )
    await expect(page.locator("#live-state")).to_contain_text("not live since")
    await page.context.set_offline(False)
    await expect(page.locator("#live-state")).to_contain_text("● live")


async def test_a_script_that_comes_late_is_waited_for(browser: Any, address: str) -> None:
    """A page would never be live, as often as its scripts come in another order."""
    page, _, trouble = await opened(browser, address)

    async def late(route: Any) -> None:
        # Not `wait_for_function`: it has the page evaluate a text, which the page's policy forbids.
        # And what a timer of htmx would do meanwhile is done by then.
        ask = "new Promise(done => setTimeout(() => done(window.htmx !== undefined), 50))"
        while not await page.evaluate(ask):
            pass
        await route.continue_()

    await page.route("**/hx-sse.min.js", late)
    await page.goto(address + "/rows/Volume/18")
    await expect(page.locator("#live-state")).to_contain_text("● live")
    assert trouble == []


async def is_parked(database: TemporaryDatabase) -> bool:
    async with database.engine.connect() as connection:
        return await connection.scalar(select(Volume.parked_at).where(Volume.id == 18)) is not None


@pytest.mark.parametrize("scripts", [True, False])
async def test_an_action_by_keyboard_alone(
    browser: Any, address: str, sqlite_database: TemporaryDatabase, *, scripts: bool
) -> None:
    """Without a mouse, or without scripts, or over plain http, nobody could act."""
    page, _, trouble = await opened(browser, address, java_script_enabled=scripts)
    await page.goto(address + "/rows/Volume/18")
    await page.locator("#reason").focus()
    await page.keyboard.type("provider is back")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.locator(".done")).to_contain_text("Done: put back.")
    assert not await is_parked(sqlite_database)
    if scripts:
        await page.goto(address + "/pipelines/VolumePipeline/rows")
        await expect(page.locator("#live-state")).to_contain_text("● live")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("k")
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_have_text("Volume 100")
        await page.keyboard.press("g")
        await page.keyboard.press("p")
        await expect(page.locator("h1")).to_have_text("Pipelines")
    assert trouble == []
