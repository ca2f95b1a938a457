"""Handlers that run on workers of wool, in a module of their own: workers find them by name."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rowlock.dispatch import AttemptEvent, Completed, Progress, StageDone, Task

LOOK_EVERY_S = 0.02
END_S = 0.2


async def tells_its_place(task: Task[Any]) -> AsyncIterator[AttemptEvent]:
    (task.workdir / "raw").write_text("pixels")
    yield Progress(str(task.workdir))
    yield Completed({"pid": os.getpid(), "workdir": str(task.workdir)})


def tells_its_place_plainly(task: Task[Any]) -> Iterator[AttemptEvent]:
    (task.workdir / "raw").write_text("pixels")
    yield Progress(str(task.workdir))
    yield Completed({"pid": os.getpid(), "workdir": str(task.workdir)})


async def hangs_at_first(task: Task[Any]) -> AsyncIterator[AttemptEvent]:
    """Hang where nothing is done yet, and be done where an earlier attempt has hung."""
    if not task.is_done("first"):
        yield StageDone("first", os.getpid())
        await asyncio.Event().wait()
    yield Completed({"url": str(os.getpid())})


async def ends_without_a_word(_task: Task[Any]) -> AsyncIterator[AttemptEvent]:
    yield Progress("begun")


def is_slow_to_end(_task: Task[Any]) -> Iterator[AttemptEvent]:
    try:
        yield Completed({})
    finally:
        time.sleep(END_S)


async def has_no_folder(_task: bytes, _beat_s: float) -> AsyncIterator[bytes]:
    """Stand for a whole worker that has no disk any more."""
    raise FileNotFoundError("no folder for temporary files")
    yield b""


def gives_a_lock(_task: Task[Any]) -> Iterator[AttemptEvent]:
    yield Completed({"lock": threading.Lock()})


def gives_too_much(_task: Task[Any]) -> Iterator[AttemptEvent]:
    yield Completed({"raw": bytes(17 * 2**20)})


@dataclass(frozen=True)
class Holds:
    """A handler that waits for a file named after the scene, and writes down that it was ended."""

    folder: Path

    async def __call__(self, task: Task[Any]) -> AsyncIterator[AttemptEvent]:
        try:
            yield Progress("begun")
            while not (self.folder / f"{task.row.scene} may end").exists():  # noqa: ASYNC110 - another process says so
                await asyncio.sleep(LOOK_EVERY_S)
            yield Completed({"url": task.row.scene})
        finally:
            (self.folder / f"{task.row.scene} has ended").touch()
