"""Starts the service as a process of its own, as on another machine."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from loopback.server import Server, served


def serving(database_url: str, folder: Path) -> AbstractAsyncContextManager[Server]:
    """Start a server on a free port, and kill it at the end if it still runs."""
    settings = {"RENDERS_DATABASE": database_url, "RENDERS_FOLDER": str(folder)}
    return served("rendering.service:create_app", settings)
