"""How each driver of PostgreSQL takes what one wants of a connection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def connect_args(
    driver: str, settings: Mapping[str, str], *, timeout_s: float | None = None
) -> dict[str, Any]:
    """Return ``connect_args`` of asyncpg or psycopg, with settings of the server."""
    if driver == "psycopg":
        options = " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items())
        # libpq takes whole seconds.
        timeout_s = None if timeout_s is None else math.ceil(timeout_s)
        found: dict[str, Any] = {"options": options, "connect_timeout": timeout_s}
    else:
        found = {"server_settings": dict(settings), "timeout": timeout_s}
    return {name: value for name, value in found.items() if value}


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")
