"""A folder for each attempt, gone when the attempt is: two attempts at one row never write into
each other's files.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from rowlock.daemon_threads import DaemonThreads
from rowlock.logs import get_logger
from rowlock.shielding import finish

T = TypeVar("T")

logger = get_logger(__name__)

PREFIX = "rowlock-"
THREADS_MAX = 4
"""Most threads of one pipeline that make and remove folders."""


class Scratch:
    """Makes folders below `root`; the system's place for temporary files if that is None.

    In threads of its own: those of the event loop may all be taken by handlers.
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._threads = DaemonThreads(THREADS_MAX, name="rowlock scratch")

    @asynccontextmanager
    async def folder(self) -> AsyncIterator[Path]:
        """Make a new, empty folder for the time of the block."""
        folder = await self._make()
        try:
            yield folder
        finally:
            await asyncio.shield(self._in_thread(partial(_remove, folder)))

    async def _make(self) -> Path:
        made: list[Path] = []

        async def make() -> None:
            made.append(
                Path(
                    await self._in_thread(partial(tempfile.mkdtemp, prefix=PREFIX, dir=self._root))
                )
            )

        try:
            # Whole: a thread cannot be cancelled, and nobody else would know of its folder.
            await finish(make(), purpose="make a scratch folder")
        except asyncio.CancelledError:
            for folder in made:
                _remove(folder)
            raise
        return made[0]

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError:
        logger.exception("A scratch folder was not removed", extra={"folder": folder.name})
