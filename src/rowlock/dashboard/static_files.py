"""The files that never change in one version: style, script, and what is vendored."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Final

from starlette.responses import PlainTextResponse, Response

KINDS: Final = {
    "style.css": "text/css",
    "dashboard.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "hx-sse.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""All of them, each with its media type."""


def static_file(name: str) -> Response:
    """Return one of them; open to everybody, since all of it is in the package."""
    if name not in KINDS:
        return PlainTextResponse("there is no such file", 404)
    headers = {"cache-control": "public, max-age=3600"}
    return Response(_content(name), media_type=KINDS[name], headers=headers)


@lru_cache
def _content(name: str) -> bytes:
    return (files("rowlock.dashboard") / "static" / name).read_bytes()
