"""What another server of the same host gets of a browser that has a dashboard open."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

from rowlock.dashboard.dashboard import KeyedDashboard
from rowlock.testing import TemporaryDatabase

from ..insight.shop import insight_of
from .conftest import NAME, opened, served
from .test_dashboard import expect, is_parked

UNPARK = "/act/unpark?model=Volume&id=18"
FORM = """\
<form method="post" action="{action}">
<input name="token" value="{token}"><input name="reason" value="none">
<input name="seen_owner" value=""><input name="seen_token" value=""><button>Act</button></form>
<img src="{look}">
"""
READ = "look => fetch(look, {credentials: 'include'}).then(() => 'read', () => 'refused')"


class OtherServer:
    """Keeps what browsers send, and has a page that acts on the dashboard with it.

    Attributes:
        dashboard: the address of the dashboard.
        received: the headers of each request.
    """

    def __init__(self, dashboard: str) -> None:
        self.dashboard = dashboard
        self.received: list[dict[str, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        self.received.append(dict(request.headers))
        token = request.cookies.get("rowlock-token", "")
        page = FORM.format(
            action=self.dashboard + UNPARK, look=f"{self.dashboard}/api/status", token=token
        )
        await HTMLResponse(page)(scope, receive, send)


async def test_the_key_stays_with_its_server(
    browser: Any, sqlite_database: TemporaryDatabase
) -> None:
    """A server on another port of the host receives nothing that lets it look or act."""
    app = KeyedDashboard(insight_of(sqlite_database), name="alice")
    async with served(app) as keyed:
        other = OtherServer(keyed)
        async with served(other) as elsewhere:
            page, _, _ = await opened(browser, keyed)
            await page.goto(f"{keyed}/{app.key}/pipelines/VolumePipeline")
            await page.goto(f"{keyed}/{app.key}/rows/Volume/18")
            await expect(page.locator("#live-state")).to_contain_text("● live")
            assert f"{NAME}:{urlsplit(keyed).port}/{app.key}/" in page.url
            # A link to elsewhere, which no page of the dashboard has: it would bring a Referer.
            await page.evaluate(
                """address => {
                    const link = document.createElement("a");
                    link.href = address;
                    document.body.append(link);
                    link.click();
                }""",
                elsewhere,
            )
            await page.wait_for_url(f"{elsewhere}/**")
            await page.get_by_role("button", name="Act").click()
            await expect(page.locator("h1")).to_have_text("403")
            assert other.received
            by_number = f"http://127.0.0.1:{urlsplit(keyed).port}"
            for headers in other.received:
                assert app.key not in str(headers)
                assert "cookie" not in headers
                assert not headers.get("referer", "").startswith(keyed)
                headers["host"] = urlsplit(keyed).netloc
                async with httpx.AsyncClient(headers=headers, base_url=by_number) as replay:
                    for path in ("/", "/rows/Volume/18", "/api/status"):
                        assert (await replay.get(path)).status_code == 403
                    forged = {"sec-fetch-site": "same-origin", "origin": keyed}
                    assert (await replay.post(UNPARK, headers=forged)).status_code == 403
            assert await is_parked(sqlite_database)
            await page.go_back()
            await page.go_back()
            await page.fill("#reason", "provider is back")
            await page.get_by_role("button", name="Put back").click()
            await expect(page.locator(".done")).to_contain_text("Done: put back.")
            assert not await is_parked(sqlite_database)


async def test_a_form_of_another_port_does_nothing(
    browser: Any, address: str, sqlite_database: TemporaryDatabase
) -> None:
    """A page on another port has the cookie of the forms, but its form is not the dashboard's."""
    other = OtherServer(address)
    async with served(other) as elsewhere:
        page, _, _ = await opened(browser, address)
        await page.goto(f"{address}/rows/Volume/18")
        await page.goto(elsewhere)
        assert await page.evaluate(READ, f"{address}/api/status") == "refused"
        assert "rowlock-token" in other.received[0]["cookie"]
        assert await page.input_value("[name=token]")
        await page.get_by_role("button", name="Act").click()
        await expect(page.locator("h1")).to_have_text("403")
        assert await is_parked(sqlite_database)


pytestmark = pytest.mark.usefixtures("address")
