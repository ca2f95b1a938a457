"""Who may look and act, and everything that an action needs."""

from __future__ import annotations

import asyncio
import logging
import threading
from itertools import product
from typing import Any

import pytest
from sqlalchemy import select

from rowlock.dashboard import Dashboard, Viewer, ViewerAction, anybody_may_look, guarding
from rowlock.dashboard.guarding import POLICY
from rowlock.errors import ConfigurationError
from rowlock.testing import TemporaryDatabase

from ..insight.shop import DEAD_TOKEN, TOKEN, Volume
from .shop_window import ORIGIN, acted, browser, everything, furnished, manager_of, shown_form

CONDITIONS = ("right", "POST", "origin", "token", "reason", "lease")
RELEASE = "/act/release?model=Volume&id=17"


async def is_leased(database: TemporaryDatabase) -> bool:
    async with database.engine.connect() as connection:
        found = await connection.execute(select(Volume.lock_token).where(Volume.id == 17))
        return found.scalar_one() == TOKEN


async def test_an_action_needs_everything(
    sqlite_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """One of the guards would stand in for another, and a form that lacks one would write."""
    rights = {"may": True}

    def staff(_request: object, action: ViewerAction) -> Viewer | None:
        return Viewer("alice") if action.is_look or rights["may"] else None

    await furnished(sqlite_database)
    async with browser(sqlite_database, authorize=staff) as client:
        whole = shown_form(await client.get("/rows/Volume/17")) | {"reason": "gone"}
        for present in product((True, False), repeat=len(CONDITIONS)):
            has = dict(zip(CONDITIONS, present, strict=True))
            if all(present):
                continue
            rights["may"] = has["right"]
            form = dict(whole)
            if not has["token"]:
                form["token"] = form["token"][::-1]
            if not has["reason"]:
                form["reason"] = "  "
            if not has["lease"]:
                form["seen_token"] = str(DEAD_TOKEN)
            answer = await client.request(
                "POST" if has["POST"] else "GET",
                RELEASE,
                data=form,
                headers={"origin": ORIGIN if has["origin"] else "http://evil.test"},
            )
            assert answer.status_code in {400, 403, 405, 409}, has
            assert await is_leased(sqlite_database), has
        rights["may"] = True
        with caplog.at_level(logging.INFO, "rowlock.audit"):
            assert (await acted(client, RELEASE, whole)).status_code == 303
        assert not await is_leased(sqlite_database)
        assert "alice: release of Volume 17, because: gone (done)" in caplog.text


@pytest.mark.parametrize(
    ("headers", "is_allowed"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        ({"origin": ORIGIN}, True),
        ({"origin": "https://shop.test:8000"}, True),
        ({}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://shop.test"}, False),
        ({"origin": "http://shop.test:8000.evil.test"}, False),
        ({"origin": "http://evil.test:8000"}, False),
        ({"origin": "http://shop.test:x"}, False),
        ({"sec-fetch-site": "cross-site", "origin": ORIGIN}, False),
        ({"sec-fetch-site": "same-site", "origin": ORIGIN}, False),
        ({"sec-fetch-site": "none"}, False),
    ],
)
async def test_forms_come_from_this_origin(
    sqlite_database: TemporaryDatabase, headers: dict[str, str], *, is_allowed: bool
) -> None:
    """Another page of the browser would act for its user; or, over plain http, no form would
    work.
    """
    await furnished(sqlite_database)
    async with browser(sqlite_database) as client:
        page = await client.get("/rows/Volume/17")
        form = shown_form(page) | {"reason": "gone"}
        answer = await client.post(RELEASE, data=form, headers=headers)
    assert answer.status_code == (303 if is_allowed else 403)
    assert page.headers["referrer-policy"] == "same-origin"


async def test_a_token_is_kept_for_its_origin_alone(sqlite_database: TemporaryDatabase) -> None:
    """A page of another host, or a script, could send the form with its token."""
    await furnished(sqlite_database)
    async with browser(sqlite_database, origin="https://shop.test") as client:
        [cookie] = (await client.get("/rows/Volume/17")).headers.get_list("set-cookie")
        assert cookie.startswith("__Host-rowlock=")
        assert {part.strip().lower() for part in cookie.split(";")[1:]} == {
            "httponly",
            "path=/",
            "samesite=strict",
            "secure",
        }
        form = shown_form(await client.get("/rows/Volume/17")) | {"reason": "gone"}
        without = {"origin": "https://shop.test"}
        client.cookies.clear()
        assert (await client.post(RELEASE, data=form, headers=without)).status_code == 403
        forged = without | {"cookie": "__Host-rowlock="}
        empty = form | {"token": ""}
        assert (await client.post(RELEASE, data=empty, headers=forged)).status_code == 403


class Lies:
    """Answers of a host that are no viewer."""

    @staticmethod
    def raises(*_: object) -> Viewer:
        raise RuntimeError("secret")

    @staticmethod
    async def is_cancelled(*_: object) -> Viewer:
        raise asyncio.CancelledError

    @staticmethod
    def is_true(*_: object) -> object:
        return True

    @staticmethod
    async def is_a_dictionary(*_: object) -> object:
        return {"name": "alice"}

    @staticmethod
    def is_nameless(*_: object) -> Viewer:
        return Viewer(" ")

    @staticmethod
    def is_forged(*_: object) -> Viewer:
        """Return a viewer with a name that is none."""
        viewer = Viewer("x")
        object.__setattr__(viewer, "name", "x" * 101)
        return viewer

    @staticmethod
    async def hangs(*_: object) -> Viewer:
        await asyncio.Event().wait()
        raise AssertionError

    @staticmethod
    async def ignores_its_end(*_: object) -> Viewer:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Viewer("alice")
        raise AssertionError


@pytest.mark.parametrize("lie", [name for name in vars(Lies) if not name.startswith("_")])
async def test_what_is_no_viewer_lets_nobody_through(
    sqlite_database: TemporaryDatabase,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    lie: str,
) -> None:
    """A sign-on that is broken would open the dashboard to everybody, or answer with its error."""
    monkeypatch.setattr(guarding, "AUTHORIZE_S_MAX", 0.05)
    async with browser(sqlite_database, authorize=getattr(Lies, lie)) as client:
        for path in ("/", "/api/status", "/live/pipelines", "/nowhere"):
            answer = await client.get(path)
            assert answer.status_code == 403
            assert "secret" not in answer.text
    lines = [one for one in caplog.records if "authorize gave no answer" in one.getMessage()]
    assert len(lines) == 4


async def test_a_function_that_hangs_has_so_many_threads_and_no_more(
    sqlite_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks, without any right, would leave a thread behind with each request."""
    monkeypatch.setattr(guarding, "AUTHORIZE_S_MAX", 0.05)
    monkeypatch.setattr(guarding, "THREADS_MAX", 2)
    goes_on, asked = threading.Event(), []

    def hangs(_request: object, action: ViewerAction) -> Viewer:
        asked.append(action)
        goes_on.wait(60)
        return Viewer("alice")

    async with browser(sqlite_database, authorize=hangs) as client:
        answers = [await client.get("/replicas") for _ in range(6)]
        assert {answer.status_code for answer in answers} == {403}
        assert len(asked) <= 2
        goes_on.set()
        monkeypatch.setattr(guarding, "AUTHORIZE_S_MAX", 60.0)
        async with asyncio.timeout(60):
            while (await client.get("/replicas")).status_code != 200:
                pass


async def test_rights_are_asked_for_at_once(sqlite_database: TemporaryDatabase) -> None:
    """A sign-on that answers late would be waited for once for each button."""
    await furnished(sqlite_database)
    together = asyncio.Barrier(4)

    async def late(_request: object, action: ViewerAction) -> Viewer:
        if not action.is_look:
            await together.wait()
        return Viewer("alice")

    async with browser(sqlite_database, authorize=late) as client:
        page = (await client.get("/rows/Volume/17")).text
    assert all(f">{label}</button>" in page for label in ("Put back", "Park", "Release"))


async def test_looking_is_not_acting(sqlite_database: TemporaryDatabase) -> None:
    """Who may look would be offered buttons that do nothing, or everything."""
    await furnished(sqlite_database)
    async with browser(sqlite_database, authorize=anybody_may_look) as client:
        for path in ("/rows/Volume/17", "/pipelines/VolumePipeline"):
            assert "<form id=" not in (await client.get(path)).text
    async with browser(sqlite_database, authorize=lambda *_: None) as client:
        assert (await client.get("/static/style.css")).status_code == 200
        assert (await client.get("/static/../dashboard.py")).status_code != 200
        assert (await client.get("/")).status_code == 403


async def test_every_answer_has_the_headers(sqlite_database: TemporaryDatabase) -> None:
    """A page without its policy would run what it shows."""
    await furnished(sqlite_database)
    async with browser(sqlite_database) as client:
        for path in ("/", "/rows/Volume/99", "/nowhere", "/api/status", "/static/style.css"):
            headers = (await client.get(path)).headers
            assert headers["content-security-policy"] == POLICY
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] in {"no-store", "public, max-age=3600"}


async def test_a_form_is_short(sqlite_database: TemporaryDatabase) -> None:
    """Somebody would fill the memory of a replica, or send what no form is."""
    await furnished(sqlite_database)
    async with browser(sqlite_database) as client:
        form = shown_form(await client.get("/rows/Volume/17")) | {"reason": "gone"}
        assert (await acted(client, RELEASE, form | {"x": "x" * 16_000})).status_code == 413
        assert (await acted(client, RELEASE, form | {"reason": "x" * 201})).status_code == 400
        assert (await acted(client, RELEASE, form | {"reason": "\x00"})).status_code == 400
        sent = await client.post(RELEASE, json=form, headers={"origin": ORIGIN})
        assert sent.status_code == 415
    assert await is_leased(sqlite_database)


async def test_a_dashboard_is_made_of_what_it_knows(sqlite_database: TemporaryDatabase) -> None:
    """A mistake would be found by the first viewer."""
    source: Any = 7
    with pytest.raises(ConfigurationError, match="takes a PipelineManager"):
        Dashboard(source, authorize=everything)
    with pytest.raises(ConfigurationError, match="authorize is a function"):
        Dashboard(manager_of(sqlite_database), authorize=source)
    with pytest.raises(TypeError):
        Dashboard(manager_of(sqlite_database))  # type: ignore[call-arg]
