"""The rendering service over real HTTP, on either database: what it answers, and that it loses
nothing however it ends.
"""

from __future__ import annotations

import asyncio
import signal
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from httpx import AsyncClient, Response
from sqlalchemy import select

from rowlock.testing import TemporaryDatabase

from .example_modules import part

WAIT_S_MAX = 240.0
LOOK_EVERY_S = 0.05
WIDTH = 120
LARGE = 180
"""So many pixels take a second or two."""
HUGE = 2_000
"""So many pixels take longer than a test."""


def serving(database: TemporaryDatabase, folder: Path) -> Any:
    """Start the service on `database`, with its files in `folder`."""
    return part("rendering.server").serving(
        database.url.render_as_string(hide_password=False), folder
    )


def client_of(server: Any) -> AsyncClient:
    """Return a client of `server`."""
    return AsyncClient(base_url=server.url, trust_env=False, timeout=WAIT_S_MAX)


async def post(client: AsyncClient, number: int, *, width: int = WIDTH) -> Response:
    """Ask for a picture, another one for each number."""
    return await client.post(
        "/renders", json={"x": -0.745, "y": 0.113, "zoom": 10 + number, "width": width}
    )


async def post_until_refused(client: AsyncClient, number: int, *, width: int) -> Response:
    """Ask for a picture until the answer is another one than yes: a signal takes a moment to
    arrive.
    """
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            answer = await post(client, number, width=width)
            if answer.status_code != 202:
                return answer
            await asyncio.sleep(LOOK_EVERY_S)


async def renders(database: TemporaryDatabase) -> list[Any]:
    async with database.session_factory() as session:
        return list((await session.scalars(select(part("rendering.tables").Render))).all())


async def until(
    database: TemporaryDatabase, condition: Callable[[Counter[str]], bool]
) -> list[Any]:
    """Wait until the counts of states are as `condition` wishes, and return the rows."""
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition(Counter(row.status for row in await renders(database))):  # noqa: ASYNC110 - the database says nothing by itself
            await asyncio.sleep(LOOK_EVERY_S)
    return await renders(database)


def is_settled(states: Counter[str]) -> bool:
    return not states["pending"] and not states["running"]


def greys(picture: Path) -> int:
    """Return how many greys a PNG has, whose checksums and size must be right."""
    content, chunks = picture.read_bytes()[8:], dict[bytes, bytes]()
    while content:
        (length,) = struct.unpack(">I", content[:4])
        kind, body, checksum = (
            content[4:8],
            content[8 : 8 + length],
            content[8 + length : 12 + length],
        )
        assert struct.pack(">I", zlib.crc32(kind + body)) == checksum
        chunks[kind], content = body, content[12 + length :]
    assert struct.unpack(">II", chunks[b"IHDR"][:8]) == (WIDTH, WIDTH * 3 // 4)
    pixels = zlib.decompress(chunks[b"IDAT"])
    assert len(pixels) == (WIDTH + 1) * (WIDTH * 3 // 4)
    return len(set(pixels))


@pytest.mark.either_database
async def test_it_answers_as_it_says(database: TemporaryDatabase, tmp_path: Path) -> None:
    """Clients would be refused what they may have, or hang where they should come back."""
    async with serving(database, tmp_path) as server, client_of(server) as client:
        taken = [await post(client, number, width=HUGE) for number in range(4)]
        assert [answer.status_code for answer in taken] == [202] * 4
        shed = await post(client, 4)
        assert shed.status_code == 429
        assert 1 <= int(shed.headers["Retry-After"]) <= 2
        assert shed.json()["detail"].startswith("4 are active and 4 is the ceiling; try again in ")
        again = await post(client, 3, width=HUGE)
        assert (again.status_code, again.json()["id"]) == (202, taken[3].json()["id"])
        state = await client.get(f"/renders/{again.json()['id']}")
        assert (state.status_code, state.json()["status"]) == (200, "pending")
        assert (await client.post("/renders", json={"x": 9, "y": 0})).status_code == 422
        assert (
            await client.get("/renders/00000000-0000-0000-0000-000000000000")
        ).status_code == 404
    assert len(await renders(database)) == 4


def test_two_views_that_differ_are_two_pictures() -> None:
    """A client would get the picture of a place that is many pixels away."""
    view = part("rendering.service").View
    deep = [
        view(x=-0.74356700, y=0.1, zoom=1e6),
        view(x=-0.74356744, y=0.1, zoom=1e6),
        view(x=-0.743567, y=0.1, zoom=1e6 - 1),
    ]
    assert len({each.key for each in deep}) == 3
    assert view(x=-1, y=0).key == view(x=-1.0, y=0.0, zoom=1).key


@pytest.mark.databases_in_turn(first=1)
async def test_killed_in_the_middle_it_goes_on_with_no_request(
    database: TemporaryDatabase, tmp_path: Path
) -> None:
    """What was in hand when the machine died would wait for somebody to ask for it again."""
    async with serving(database, tmp_path) as server, client_of(server) as client:
        for number in range(4):
            assert (await post(client, number)).status_code == 202
        await until(
            database,
            lambda states: all(states[each] for each in ("completed", "running", "pending")),
        )
        server.process.kill()
        await server.process.wait()
    left = Counter(row.status for row in await renders(database))
    assert left["completed"] < 4
    assert left["running"] <= 2
    async with serving(database, tmp_path):
        rows = await until(database, is_settled)
    assert [(row.status, row.error) for row in rows] == [("completed", None)] * 4
    pictures = sorted((tmp_path / "pictures").iterdir())
    assert [picture.name for picture in pictures] == sorted(f"{row.id}.png" for row in rows)
    assert all(greys(picture) > 10 for picture in pictures)


@pytest.mark.databases_in_turn
async def test_told_to_end_it_does_what_it_has_in_hand_first(
    database: TemporaryDatabase, tmp_path: Path
) -> None:
    """Each deployment would throw work away, or take work that it will not do."""
    async with serving(database, tmp_path) as server, client_of(server) as client:
        for number in range(4):
            assert (
                await post(client, number, width=LARGE if number < 2 else WIDTH)
            ).status_code == 202
        await until(database, lambda states: states["running"] == 2)
        server.process.send_signal(signal.SIGTERM)
        answer = await post_until_refused(client, 0, width=LARGE)
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) > 0
        async with asyncio.timeout(WAIT_S_MAX):
            await server.process.wait()
    rows = await renders(database)
    states = Counter(row.status for row in rows)
    assert states["completed"] >= 2
    assert set(states) <= {"completed", "pending"}
    assert all(row.lock_token is None and row.losses == 0 and row.error is None for row in rows)
    async with serving(database, tmp_path):
        rows = await until(database, is_settled)
    assert {(row.status, row.losses) for row in rows} == {("completed", 0)}
