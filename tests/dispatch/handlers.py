"""Handlers of the engine tests, in a module of their own: processes find them by name."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rowlock.dispatch import AttemptEvent, Completed, Failed, Progress, StageDone, Task

BLOCK_S = 0.02
TICKS = 10
LONG_S = 120
WAIT_S_MAX = 300


async def works(task: Task[Any]) -> AsyncIterator[AttemptEvent]:
    yield Progress("begun")
    yield StageDone("raw", {"file": str(task.id)})
    yield Completed({"pid": os.getpid(), "row": task.row, "attempt": task.attempt})


def works_plainly(task: Task[Any]) -> Iterator[AttemptEvent]:
    yield Progress("begun")
    yield StageDone("raw", {"file": str(task.id)})
    yield Completed({"pid": os.getpid(), "row": task.row, "attempt": task.attempt})


async def raises(_task: Task[Any]) -> AsyncIterator[AttemptEvent]:
    yield Progress("begun")
    raise ValueError("no such scene")


def raises_plainly(_task: Task[Any]) -> Iterator[AttemptEvent]:
    yield Progress("begun")
    raise ValueError("no such scene")


async def exits(_task: Task[Any]) -> AsyncIterator[AttemptEvent]:
    yield Progress("begun")
    sys.exit(3)


def exits_plainly(_task: Task[Any]) -> Iterator[AttemptEvent]:
    yield Progress("begun")
    sys.exit(3)


async def waits(task: Task[Any]) -> AsyncIterator[AttemptEvent]:
    """Wait for ever, and write down that it was ended."""
    try:
        yield Progress(str(os.getpid()))
        (task.row / "gone on").touch()
        await asyncio.Event().wait()
    finally:
        (task.row / "ended").touch()


def waits_plainly(task: Task[Any]) -> Iterator[AttemptEvent]:
    """Wait for a file, and write down that it was ended."""
    try:
        yield Progress(str(os.getpid()))
        while not (task.row / "go on").exists():
            time.sleep(BLOCK_S)
        yield Progress("gone on")
    finally:
        (task.row / "ended").touch()


def freezes_itself(_task: Task[Any]) -> Iterator[AttemptEvent]:
    yield Progress(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
    yield Completed()


def gives_what_cannot_be_sent(_task: Task[Any]) -> Iterator[AttemptEvent]:
    yield Completed({"function": lambda: None})


def moves(task: Task[Any]) -> Iterator[AttemptEvent]:
    variables = {name: os.environ.get(name) for name in ("PATH", "MOVED")}
    found = {"pid": os.getpid(), "folder": str(Path.cwd()), "variables": variables}
    os.chdir(task.row)
    os.environ["MOVED"] = os.environ.pop("PATH")
    yield Completed(found)


def meets_an_outage(task: Task[Any]) -> Iterator[AttemptEvent]:
    """Find a server away at first, as a group of tasks would tell it."""
    tried = Path(task.row.scene, "tried")
    if not tried.exists():
        tried.touch()
        yield StageDone("raw")
        raise ExceptionGroup("two calls", [ConnectionResetError("gone"), Away()])
    yield Completed({"report": sorted(task.stages)})


async def meets_an_outage_on_a_loop(task: Task[Any]) -> AsyncIterator[AttemptEvent]:
    for event in meets_an_outage(task):
        yield event


class Away(Exception):
    """An error whose class takes more than its text: it does not come back from a pickle."""

    def __init__(self, server: str = "a", *, port: int = 1) -> None:
        super().__init__(server, port)


def fails(_task: Task[Any]) -> Iterator[AttemptEvent]:
    yield Failed("input", "no such scene")


async def tells_a_stage(task: Task[Any]) -> AsyncIterator[AttemptEvent]:
    """Go on after a stage; meanwhile something else says that time goes by."""
    ticking = asyncio.create_task(asyncio.sleep(TICKS * BLOCK_S))
    ticking.add_done_callback(lambda _: (task.row / "ticked").touch())
    yield StageDone("raw")
    (task.row / "gone on").touch()
    yield Completed()


def tells_a_stage_when_told(task: Task[Any]) -> Iterator[AttemptEvent]:
    """Do the same for a row whose scene is the folder, when there is a file."""
    folder = Path(task.row.scene)
    while not (folder / "go on").exists():
        time.sleep(BLOCK_S)
    yield from tells_a_stage_plainly(replace(task, row=folder))


def tells_a_stage_plainly(task: Task[Any]) -> Iterator[AttemptEvent]:
    threading.Timer(TICKS * BLOCK_S, (task.row / "ticked").touch).start()
    yield StageDone("raw")
    (task.row / "gone on").touch()
    yield Completed()


async def tells_a_stage_and_nothing(task: Task[Any]) -> AsyncIterator[AttemptEvent]:
    async for event in tells_a_stage(task):
        yield None if isinstance(event, Completed) else event  # type: ignore[misc]


def tells_a_stage_and_nothing_plainly(task: Task[Any]) -> Iterator[AttemptEvent]:
    for event in tells_a_stage_plainly(task):
        yield None if isinstance(event, Completed) else event  # type: ignore[misc]


async def tells_its_beginning(task: Task[Any]) -> AsyncIterator[AttemptEvent]:
    (task.row / "begun").touch()
    yield Completed()


def tells_its_beginning_plainly(task: Task[Any]) -> Iterator[AttemptEvent]:
    (task.row / "begun").touch()
    yield Completed()


class SlowToLoad:
    """A row whose class takes long to import: until there is a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_slowly, (self._file,)


def _load_slowly(file: Path) -> None:
    while not file.exists():
        time.sleep(BLOCK_S)


# ---------------------------------------------------------------- those that start other processes


def starts_another(task: Task[Any]) -> Iterator[AttemptEvent]:
    """Have a subprocess that says so in a pipe of the file system, holds it open, and would run
    for long.
    """
    script = f'exec >"$1"; echo ready; exec sleep {LONG_S}'
    subprocess.Popen(["/bin/sh", "-c", script, "sh", str(task.row)])
    yield StageDone("started")
    time.sleep(LONG_S)


def closes_sockets(_task: Task[Any]) -> Iterator[AttemptEvent]:
    yield Progress("begun")
    for file in range(256):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(file).st_mode):
                os.close(file)
    time.sleep(LONG_S)


def starts_others_and_dies(task: Task[Any]) -> Iterator[AttemptEvent]:
    """Die, and leave a subprocess behind, and a fork that has whatever it had."""
    for event in starts_another(task):
        if os.fork() == 0:
            time.sleep(LONG_S)
        yield event
        os.kill(os.getpid(), signal.SIGKILL)


def starts_all_kinds(_task: Task[Any]) -> Iterator[AttemptEvent]:
    """Get what a terminal sends to the whole group; have a fork that leaves the handler by the
    same way as the handler itself; run what prints, complains at length and reads to the end of
    its input; and end a subprocess as Ctrl-C does.
    """
    os.kill(os.getpid(), signal.SIGINT)
    child = os.fork()
    if child == 0:
        sys.exit(0)
    os.waitpid(child, 0)
    subprocess.run(["/bin/sh", "-c", "echo ready; head -c 1000000 /dev/zero >&2; cat"], check=True)
    other = subprocess.Popen(["/bin/sleep", str(LONG_S)])
    other.send_signal(signal.SIGINT)
    yield Completed({"code": other.wait(WAIT_S_MAX)})
