"""Takes a picture of a page of the dashboard as it is now, for the docs: with the same times and
numbers in each run, and with the text that stands beside it in its file, so that a test knows
whether the two belong together.
"""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

COLOURS: Final = 64
WIDTHS: Final = {"/": 960, "/checks": 960}
WIDTH: Final = 760
MARGIN: Final = 12
TEXT_CHUNK: Final = "Of"
"""Name of the part of the file that has the digest of the text beside it."""
READ_TEXTS: Final = """() => {
  const texts = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) texts.push(walker.currentNode.data);
  return texts;
}"""
WRITE_TEXTS: Final = """(texts) => {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) walker.currentNode.data = texts.shift();
}"""


def digest_of(text: str) -> str:
    """Return what a picture keeps of the text beside it."""
    return sha256(text.encode()).hexdigest()


async def take_picture(
    app: Any,
    page: str,
    path: Path,
    *,
    of: str,
    until: str = "main",
    normalised: Callable[[str], str] = str,
) -> None:
    """Write a picture of a page.

    Args:
        app: the dashboard.
        page: its path.
        path: of the file.
        of: the text that stands beside it.
        until: the part of the page at whose end the picture ends.
        normalised: makes of each text what is shown.
    """
    from playwright.async_api import async_playwright  # noqa: PLC0415 - not where tests run

    from .conftest import browser_path, end_watchers  # noqa: PLC0415

    size = {"width": WIDTHS.get(page, WIDTH), "height": 1000}
    async with served(app) as address, async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=browser_path(), args=["--no-sandbox"]
        )
        window = await browser.new_page(viewport=size, color_scheme="light")  # type: ignore[arg-type]
        await window.goto(address + page)
        if await window.locator("#live").count():
            await window.get_by_role("status").get_by_text("● live").wait_for()
        texts = await window.evaluate(READ_TEXTS)
        await window.evaluate(WRITE_TEXTS, [normalised(one) for one in texts])
        box = await window.locator(until).bounding_box()
        assert box is not None
        height = min(box["y"] + box["height"] + MARGIN, size["height"])
        clip: Any = {"x": 0, "y": 0, "width": size["width"], "height": height}
        shot = await window.screenshot(clip=clip, animations="disabled")
        await browser.close()
    await end_watchers()
    write_small(shot, path, of=of)


def write_small(shot: bytes, path: Path, *, of: str) -> None:
    """Write a picture with few colours, and of which text it is."""
    from PIL import Image, PngImagePlugin  # noqa: PLC0415 - not where tests run

    about = PngImagePlugin.PngInfo()
    about.add_text(TEXT_CHUNK, digest_of(of))
    path.parent.mkdir(exist_ok=True)
    picture = Image.open(io.BytesIO(shot)).convert("RGB")
    few = picture.quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True, pnginfo=about)


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """Serve an app to this machine, and give its address."""
    import uvicorn  # noqa: PLC0415

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        config = uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listening]))
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        await task
