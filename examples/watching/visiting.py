"""What the examples of the dashboard, 20 to 22, have in common: a server on loopback, and somebody
at a browser.
"""

from __future__ import annotations

import asyncio
import html
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from httpx import AsyncClient

PIPELINE = "VolumePipeline"
SignIn = Callable[[AsyncClient, str], Awaitable[None]]
"""Have the browser be somebody from now on."""


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve on loopback in the block, and give the address."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        task = asyncio.create_task(server.serve([listening]))
        # Bound already: who asks too early waits.
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        await task


async def look_and_act(address: str, mount: str, sign_in: SignIn) -> None:
    """Be nobody, then bob, who may look, then alice, who may act."""
    async with AsyncClient(base_url=address, headers={"origin": address}) as browser:
        print(f"nobody: GET {mount}/ {(await browser.get(f'{mount}/')).status_code}")
        await sign_in(browser, "bob")
        print(f"bob: GET {mount}/ {(await browser.get(f'{mount}/')).status_code}")
        print(f"bob: POST {mount}/act/pause {await pause(browser, mount)}")
        await sign_in(browser, "alice")
        print(f"alice: POST {mount}/act/pause {await pause(browser, mount)}")
        page = (await browser.get(f"{mount}/pipelines/{PIPELINE}")).text
        found = re.search(r"paused by alice[^<]*", page)
        print("it is not paused" if found is None else html.unescape(found[0]).strip())


async def pause(browser: AsyncClient, mount: str) -> int:
    """Send the form of the pipeline's page, as a browser does, and return the status."""
    page = (await browser.get(f"{mount}/pipelines/{PIPELINE}")).text
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page))
    form = hidden | {"reason": "the provider is down", "for": "30m"}
    answer = await browser.post(f"{mount}/act/pause?pipeline={PIPELINE}", data=form)
    return answer.status_code
