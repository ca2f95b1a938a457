"""A folder for each attempt, gone when the attempt is: two attempts at one row never write into each other's files."""

from __future__ import annotations

import asyncio
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rowlock.leases.transaction import finish

logger = logging.getLogger(__name__)

PREFIX = "rowlock-"


@asynccontextmanager
async def scratch(root: Path | None) -> AsyncIterator[Path]:
    """Make a new, empty folder below `root` (the system's for temporary files if that is None) for the time of the block."""
    folder = await _make(root)
    try:
        yield folder
    finally:
        await asyncio.shield(asyncio.to_thread(_remove, folder))


async def _make(root: Path | None) -> Path:
    made: list[Path] = []

    async def make() -> None:
        made.append(Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=PREFIX, dir=root)))

    try:
        # Whole: a thread cannot be cancelled, and nobody else would know of its folder.
        await finish(make(), purpose="make a scratch folder")
    except asyncio.CancelledError:
        for folder in made:
            _remove(folder)
        raise
    return made[0]


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError:
        logger.exception("A scratch folder was not removed", extra={"folder": folder.name})
