"""Without scripts a page renews itself, and one into which somebody types does not."""

from __future__ import annotations

import re
from typing import Any

from rowlock.testing import TemporaryDatabase

from ..insight.shop import Volume
from .conftest import NAME, WAIT_MS, opened, playwright_api

expect: Any = playwright_api.expect
expect.set_options(timeout=WAIT_MS)
RENEWS = re.compile(r'(http-equiv="refresh" content=")10"')
FORMS = ("/rows/Volume/18", "/pipelines/VolumePipeline")


async def hasten(page: Any) -> list[str]:
    """Have a page renew itself in a second where it would in ten; return what is asked for."""
    asked: list[str] = []

    async def answer(route: Any) -> None:
        asked.append(route.request.url)
        response = await route.fetch()
        body = RENEWS.sub(r'\g<1>1"', await response.text())
        await route.fulfill(response=response, body=body)

    await page.route("**/*", lambda route: answer(route) if is_page(route) else route.continue_())
    return asked


def is_page(route: Any) -> bool:
    return bool(route.request.resource_type == "document")


async def test_a_page_renews_itself_and_wipes_no_form(
    browser: Any, address: str, sqlite_database: TemporaryDatabase
) -> None:
    """Who has no scripts would look at what was, or lose a reason in the middle of its sentence."""
    # The answers are fetched for the browser, which alone knows the name.
    address = address.replace(NAME, "127.0.0.1")
    watched, _, trouble = await opened(browser, address, java_script_enabled=False)
    asked = await hasten(watched)
    forms = []
    for path in FORMS:
        page = await watched.context.new_page()
        forms.append((page, await hasten(page)))
        await page.goto(address + path)
        await page.fill("#reason", "half a sentence")
    await watched.goto(address + "/")
    line = watched.locator("tr", has=watched.get_by_role("link", name="VolumePipeline"))
    due = line.locator('td[data-label="Due"]')
    before = await due.text_content()
    async with sqlite_database.session_factory.begin() as session:
        session.add_all([Volume(id=1000 + number, status="submitted") for number in range(7)])
    await expect(due).not_to_have_text(before)
    # As often as the watched page was renewed, each form would have been wiped.
    while len(asked) < len(("first", "renewed", "and again")):
        await watched.wait_for_event("load")
    for page, asked_of_form in forms:
        assert await page.input_value("#reason") == "half a sentence"
        assert len(asked_of_form) == 1
    assert trouble == []
