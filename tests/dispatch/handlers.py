"""Handlers of the engine tests, in a module of their own: processes find them by name."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from rowlock.dispatch import Completed, Event, Failed, Progress, StageDone, Task

BLOCK_S = 0.02


async def works(task: Task[Any]) -> AsyncIterator[Event]:
    """Do a bit of everything."""
    yield Progress("begun")
    yield StageDone("raw", {"file": str(task.id)})
    yield Completed({"pid": os.getpid(), "row": task.row, "attempt": task.attempt})


def works_plainly(task: Task[Any]) -> Iterator[Event]:
    """Do the same without a loop."""
    yield Progress("begun")
    yield StageDone("raw", {"file": str(task.id)})
    yield Completed({"pid": os.getpid(), "row": task.row, "attempt": task.attempt})


async def raises(_task: Task[Any]) -> AsyncIterator[Event]:
    """Fail in the middle."""
    yield Progress("begun")
    raise ValueError("no such scene")


def raises_plainly(_task: Task[Any]) -> Iterator[Event]:
    """Fail in the middle, without a loop."""
    yield Progress("begun")
    raise ValueError("no such scene")


async def exits(_task: Task[Any]) -> AsyncIterator[Event]:
    """Try to end the program."""
    yield Progress("begun")
    sys.exit(3)


def exits_plainly(_task: Task[Any]) -> Iterator[Event]:
    """Try to end the program, without a loop."""
    yield Progress("begun")
    sys.exit(3)


async def waits(task: Task[Any]) -> AsyncIterator[Event]:
    """Wait for ever, and write down that it was ended."""
    try:
        yield Progress(str(os.getpid()))
        await asyncio.Event().wait()
    finally:
        (task.row / "ended").touch()


def waits_plainly(task: Task[Any]) -> Iterator[Event]:
    """Wait for a file, and write down that it was ended."""
    try:
        yield Progress(str(os.getpid()))
        while not (task.row / "go on").exists():
            time.sleep(BLOCK_S)
        yield Progress("gone on")
    finally:
        (task.row / "ended").touch()


def kills_itself(_task: Task[Any]) -> Iterator[Event]:
    """Die as by the OOM killer."""
    yield Progress("begun")
    os.kill(os.getpid(), signal.SIGKILL)


def interrupts_itself(_task: Task[Any]) -> Iterator[Event]:
    """Get what a terminal sends to the whole group."""
    os.kill(os.getpid(), signal.SIGINT)
    yield Completed()


def freezes_itself(_task: Task[Any]) -> Iterator[Event]:
    """Stand still, all threads of it."""
    yield Progress(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
    yield Completed()


def gives_what_cannot_be_sent(_task: Task[Any]) -> Iterator[Event]:
    """Complete with something that cannot be pickled."""
    yield Completed({"function": lambda: None})


def fails(_task: Task[Any]) -> Iterator[Event]:
    """Say no."""
    yield Failed("input", "no such scene")


def folder_of(task: Task[Any]) -> Path:
    """Return the folder that a test gave in place of a row."""
    folder: Path = task.row
    return folder
