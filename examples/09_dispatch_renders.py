"""A flood meets a bounded service: what fits is done, the rest is told when to come back, and a
deployment loses nothing.

The one idea: a client needs to know three answers. 202: it is taken, ask later how far it is. 429
and 503: come back after the time that the answer names. Nobody waits with an open connection, and
nothing is done twice because somebody asked twice.

Run it: ``python examples/09_dispatch_renders.py`` (needs ``pip install fastapi httpx uvicorn``; not
on Windows). The service is ``examples/rendering/``, started here as a process of its own and talked
to over HTTP. It ends by itself and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import tempfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from httpx import AsyncClient, Response
from loopback.server import Server
from rendering.server import serving

CLIENTS = 3
PICTURES = 6
POLL_S = 0.1
WAIT_S_MAX = 50.0
"""After so long the example gives up, and ends its servers."""
View = dict[str, float]


def small(number: int) -> View:
    """Return a view that is drawn in a moment, another one for each number."""
    return {"x": -0.745, "y": 0.113, "zoom": 10 + number, "width": 60}


def large(number: int) -> View:
    """Return a view that takes a few seconds."""
    return {"x": -0.745, "y": 0.113, "zoom": 10 + number, "width": 220}


async def ask_until(client: AsyncClient, path: str, statuses: Collection[str]) -> dict[str, Any]:
    """Ask how far a picture is until it is as far as that. Such a question is never refused."""
    while True:
        state: dict[str, Any] = (await client.get(path)).raise_for_status().json()
        if state["status"] in statuses:
            return state
        await asyncio.sleep(POLL_S)


# The flood ----------------------------------------------------------------------------------------


async def submit(client: AsyncClient, view: View, answers: list[Response]) -> str:
    """Post until it is taken, as patiently as the service wishes; return where to ask for it."""
    while True:
        answer = await client.post("/renders", json=view)
        answers.append(answer)
        if answer.status_code == 202:
            return f"/renders/{answer.json()['id']}"
        await asyncio.sleep(float(answer.headers["Retry-After"]))


async def one_client(
    client: AsyncClient, views: list[View], answers: list[Response]
) -> list[dict[str, Any]]:
    """Ask for several pictures, one after the other, then wait for them."""
    paths = [await submit(client, view, answers) for view in views]
    return [await ask_until(client, path, {"completed", "failed"}) for path in paths]


async def flood(client: AsyncClient) -> None:
    """Have several clients ask for more than the service takes at once."""
    answers: list[Response] = []
    views = [small(number) for number in range(PICTURES)]
    done = await asyncio.gather(
        *(one_client(client, views[n::CLIENTS], answers) for n in range(CLIENTS))
    )
    codes = Counter(answer.status_code for answer in answers)
    shed = next(answer for answer in answers if answer.status_code == 429)
    print(
        f"{PICTURES} pictures for {CLIENTS} clients: {codes[202]} accepted, {codes[429]} times shed"
    )
    print(f"POST /renders: 429, Retry-After {shed.headers['Retry-After']}, {shed.json()['detail']}")
    states = list(itertools.chain.from_iterable(done))
    print(f"of the accepted: {dict(Counter(state['status'] for state in states))}")
    print(
        f"GET /renders/...: {states[0]['status']}, stages {states[0]['stages']}, error"
        f" {states[0]['error']}"
    )
    picture = await client.get(states[0]["url"])
    print(f"GET /pictures/...: {picture.status_code}, {picture.headers['Content-Type']}")


# The drain ----------------------------------------------------------------------------------------


async def refused(client: AsyncClient, view: View) -> Response:
    """Post until it is refused: a signal takes a moment to arrive."""
    while True:
        answer = await client.post("/renders", json=view)
        if answer.status_code != 202:
            return answer
        await asyncio.sleep(POLL_S)


async def drain(client: AsyncClient, server: Server) -> list[str]:
    """Tell the server to end while it has much in hand; return where to ask for what it was
    asked for.
    """
    answers: list[Response] = []
    paths = [await submit(client, large(number), answers) for number in range(3)]
    again = await submit(client, large(0), answers)
    print(
        "asked for again while it is in hand:"
        f" {'the same picture' if again == paths[0] else 'another one'}"
    )
    await asyncio.gather(*(ask_until(client, path, {"running", "completed"}) for path in paths[:2]))
    server.process.send_signal(signal.SIGTERM)
    answer = await refused(client, large(0))
    print(f"POST /renders: {answer.status_code}, Retry-After {answer.headers['Retry-After']}")
    print(f"GET /renders/...: {(await client.get(paths[0])).status_code}")
    await server.process.wait()
    print("the server has ended")
    return paths


async def main(folder: Path) -> None:
    """Start a server and be its clients; then start another one, and ask it for nothing."""
    database_url = f"sqlite+aiosqlite:///{folder / 'app.db'}"
    async with (
        serving(database_url, folder) as server,
        AsyncClient(base_url=server.url, trust_env=False, timeout=WAIT_S_MAX) as client,
    ):
        await flood(client)
        paths = await drain(client, server)
    async with (
        serving(database_url, folder) as server,
        AsyncClient(base_url=server.url, trust_env=False, timeout=WAIT_S_MAX) as client,
    ):
        states = [await ask_until(client, path, {"completed", "failed"}) for path in paths]
        print(
            "another server has done the rest:"
            f" {dict(Counter(state['status'] for state in states))}"
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(asyncio.wait_for(main(Path(temporary)), WAIT_S_MAX))
