"""The page of the dashboard that answers a story, beside what the command has printed."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Final

from httpx import ASGITransport, AsyncClient

from rowlock.dashboard import Dashboard
from rowlock.insight import Insight

from ...browser.pages_of_stories import take_picture
from ...dashboard.shop_window import everything
from .host import PIPELINES, manager_of
from .scene import Shop, normalised

ROW: Final = "/rows/Volume/17"
PAGES: Final = {"not-registered": "/", "no-index": "/checks"}
"""Where it is not the page of the row that answers a story."""
ELSEWHERE: Final = {
    "not-registered": "no replica runs it: register VolumePipeline() with the manager of a replica",
    "no-index": "no index serves the claim",
}
"""What that page says."""
LINKS: Final = {
    "awaited-child": 'href="/rows/Fleet/3"',
    "paused": 'href="/pipelines/VolumePipeline">resume it',
    "poison": 'data-wanted="unpark"',
    "held-by-a-service": 'data-wanted="release"',
    "dead-replica": 'data-wanted=""',
}
"""How that page leads to what is to be done."""
WITH_FORM: Final = frozenset({"poison", "held-by-a-service"})
"""A button of the page does what is to be done."""
PICTURES: Final = Path(__file__).resolve().parents[3] / "docs" / "pictures" / "stories"


def dashboard_of(scene: Shop) -> Dashboard:
    insight = Insight.of(manager_of(scene.url, *PIPELINES))
    return Dashboard(insight.on(scene.database.session_factory), authorize=everything)


async def page_says(scene: Shop, story: str, printed: str) -> None:
    """Check that a page says what the command has `printed`: the reason and what to do."""
    transport = ASGITransport(dashboard_of(scene))
    async with AsyncClient(transport=transport, base_url="http://shop.test") as client:
        answer = await client.get(PAGES.get(story, ROW))
    page = normalised(html.unescape(re.sub(r"<[^>]*>", " ", answer.text)))
    said = " ".join(page.split())
    for wanted in wanted_on_page(story, printed):
        assert wanted in said, (wanted, said)
    assert LINKS.get(story, "") in answer.text


def wanted_on_page(story: str, printed: str) -> list[str]:
    if story in ELSEWHERE:
        return [ELSEWHERE[story]]
    headline = normalised(printed).splitlines()[1]
    return [headline, *re.findall(r"^(?:why|do)    ?(.*)$", normalised(printed), re.MULTILINE)]


async def renew_picture(scene: Shop, story: str, printed: str) -> None:
    path = PICTURES / f"{story}.png"
    page, until = PAGES.get(story, ROW), "main"
    if page == ROW and story not in WITH_FORM:
        until = "#live"
    await take_picture(
        dashboard_of(scene), page, path, of=printed, until=until, normalised=normalised
    )
