"""Tests of worker processes: how they start, what they leave behind when they end, and what their machine may lack."""

from __future__ import annotations

import asyncio
import os
import pickle
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rowlock import PipelineManager
from rowlock.dispatch import (
    COMPLETED,
    RUNNING,
    Completed,
    DispatchPipeline,
    Heartbeat,
    ProcessEngine,
    StageDone,
    Task,
    WorkerGone,
)
from rowlock.dispatch.engines import process_line
from rowlock.dispatch.engines.frames import GO_ON, read_frame
from rowlock.testing import TemporaryDatabase

from . import handlers
from .renders import Base, Render, one_render, settled, submit
from .test_engines import WAIT_S_MAX, goes_on_when_asked, heard, importable, offered, task_of, until

__all__ = ["importable"]

REFUSED = 4
"""As many starts fail: more than a row may be lost."""
STEPS = 5
"""As many steps of the loop an offer takes at most until all it does is wait for its process."""


@pytest.fixture
def tempdir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, of this test alone, and with a path that is short enough."""
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield Path(folder)


class Other:
    """A subprocess as it is seen through the pipe that it holds open."""

    def __init__(self, pipe: Path) -> None:
        os.mkfifo(pipe)
        self._end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def has_begun(self) -> bool:
        """Whether it has said so."""
        try:
            return os.read(self._end, 100) == b"ready\n"
        except BlockingIOError:
            return False

    def has_ended(self) -> bool:
        """Whether nobody holds the pipe any more."""
        try:
            return os.read(self._end, 100) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        """Look no more."""
        os.close(self._end)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Other]:
    """The subprocess that `starts_another` starts when its row is this test's ``pipe``."""
    watched = Other(tmp_path / "pipe")
    yield watched
    watched.close()


# ---------------------------------------------------------------- a stage is recorded


@pytest.mark.parametrize("handler", [handlers.tells_a_stage, handlers.tells_a_stage_plainly])
async def test_it_beats_while_a_stage_is_recorded(tmp_path: Path, handler: Callable[[Task[Any]], Any]) -> None:
    """A database that is away for a moment would cost every attempt that has just done a stage."""
    async with offered(ProcessEngine(1), task_of(handler, tmp_path, heartbeat_s=0.01)) as events:
        assert Heartbeat() in await goes_on_when_asked(events, tmp_path)


async def test_a_process_waits_for_the_database(sqlite_database: TemporaryDatabase, tmp_path: Path) -> None:
    """A file that was thrown away after a stage, which then nobody recorded, would fail the next attempt for good."""
    await sqlite_database.create_tables(Base.metadata)
    renders = DispatchPipeline(
        Render, handler=handlers.tells_a_stage_when_told, engine=ProcessEngine(1), fetch_delays=(0.05, 0.1)
    )
    async with PipelineManager(sqlite_database.session_factory, [renders]):
        await submit(sqlite_database, renders, str(tmp_path))
        async with asyncio.timeout(WAIT_S_MAX):
            while (await one_render(sqlite_database)).status != RUNNING:  # noqa: ASYNC110 - the database says nothing by itself
                await asyncio.sleep(0.05)
        somebody = sqlite3.connect(str(sqlite_database.url.database), isolation_level=None, check_same_thread=False)
        with closing(somebody):
            # In a thread: whoever writes just now must be able to end.
            await asyncio.to_thread(somebody.execute, "BEGIN IMMEDIATE")
            (tmp_path / "go on").touch()
            await until((tmp_path / "ticked").exists)
            assert not (tmp_path / "gone on").exists()
            somebody.execute("ROLLBACK")
        async with asyncio.timeout(WAIT_S_MAX):
            [row] = await settled(sqlite_database, every_s=0.05)
    assert (row.status, row.error, row.stages) == (COMPLETED, None, {"raw": None})
    assert (tmp_path / "gone on").exists()


async def test_a_process_without_a_dispatcher_ends_with_what_it_started(
    tempdir: Path, tmp_path: Path, other: Other
) -> None:
    """A dispatcher that is killed would leave work behind that nobody knows of, beside that of its successor."""
    calls: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    code = (
        "import pickle, sys; from rowlock.dispatch.engines.child import run_task; run_task(sys.argv[1], "
        "pickle.load(sys.stdin.buffer), 1000)"
    )
    async with await asyncio.start_unix_server(lambda *ends: calls.put_nowait(ends), tempdir / "line"):
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, str(tempdir / "line")),
            stdin=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert child.stdin is not None
        child.stdin.write(pickle.dumps(pickle.dumps(task_of(handlers.starts_another, tmp_path / "pipe"))))
        child.stdin.close()
        async with asyncio.timeout(WAIT_S_MAX):
            reader, writer = await calls.get()
            assert await read_frame(reader) == child.pid
            writer.write(GO_ON)
            assert await read_frame(reader) == StageDone("started")
            await until(other.has_begun)
            assert child.returncode is None
            writer.close()
            await child.wait()
    await until(other.has_ended)


# ---------------------------------------------------------------- what a handler has started


async def test_a_subprocess_ends_with_its_attempt(tmp_path: Path, other: Other) -> None:
    """A transcode that nobody wants any more would run on outside all limits, and write where the next attempt writes."""
    async with offered(ProcessEngine(1), task_of(handlers.starts_another, tmp_path / "pipe")) as events:
        async with asyncio.timeout(WAIT_S_MAX):
            while not isinstance(await anext(events), StageDone):
                pass
        await until(other.has_begun)
        assert not other.has_ended()
    await until(other.has_ended)


async def test_a_process_that_dies_beside_a_subprocess_is_noticed(tmp_path: Path, other: Other) -> None:
    """The subprocess would be taken for the process: a row waits for the death of something that nobody watches."""
    async with offered(ProcessEngine(1), task_of(handlers.starts_another_and_dies, tmp_path / "pipe")) as events:
        with pytest.raises(WorkerGone, match="its process died"):
            await heard(events)
    await until(other.has_ended)


async def test_a_process_that_dies_beside_a_fork_of_itself_is_noticed() -> None:
    """The same with a fork, which has every pipe and socket that the process has."""
    async with offered(ProcessEngine(1), task_of(handlers.forks_and_dies)) as events:
        with pytest.raises(WorkerGone, match="its process died"):
            await heard(events)


async def test_a_fork_that_leaves_the_handler_says_nothing() -> None:
    """It would answer for the attempt, and be taken for the process."""
    async with offered(ProcessEngine(1), task_of(handlers.forks_one_that_escapes)) as events:
        assert (await heard(events))[-1] == Completed()


async def test_what_a_subprocess_prints_and_reads_is_its_own() -> None:
    """A tool that prints a line would kill the attempt, and one that reads would wait for ever."""
    async with offered(ProcessEngine(1), task_of(handlers.has_others_print_and_read)) as events:
        assert (await heard(events))[-1] == Completed()


async def test_a_process_that_hangs_up_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that closes the line, or whose end somebody hides, would hold its row until nothing was heard for long."""
    monkeypatch.setattr(process_line, "END_S_MAX", 0.2)
    async with offered(ProcessEngine(1), task_of(handlers.closes_sockets, heartbeat_s=1_000)) as events:
        with pytest.raises(WorkerGone, match="its process died"):
            await heard(events)


async def test_a_process_is_kept_for_the_next_attempt() -> None:
    """Each attempt would start a process, as a second or so of imports, since its row is settled faster than the handler ends."""
    engine = ProcessEngine(1)
    pids = set()
    for _ in range(2):
        async with offered(engine, task_of(handlers.is_slow_to_end)) as events, asyncio.timeout(WAIT_S_MAX):
            while not isinstance(event := await anext(events), Completed):
                pass
            pids.add(event.values["pid"])
    assert len(pids) == 1


# ---------------------------------------------------------------- a start that fails, hangs or is given up


async def test_a_machine_that_lacks_something_fails_no_row(monkeypatch: pytest.MonkeyPatch, tempdir: Path) -> None:
    """A replica without memory for one more process, or without a disk, would fail every row that it takes."""
    engine = ProcessEngine(1)
    with monkeypatch.context() as sick:
        sick.setattr("tempfile.tempdir", str(tempdir / "nowhere"))
        with pytest.raises(FileNotFoundError):
            await engine.offer("process-1", task_of(handlers.works))
    with monkeypatch.context() as sick:
        sick.setattr("anyio.to_process.open_process", no_process)
        with pytest.raises(BlockingIOError):
            await engine.offer("process-1", task_of(handlers.works))
    assert files_in(tempdir) == []
    async with offered(engine, task_of(handlers.works)) as events:
        assert isinstance((await heard(events))[-1], Completed)


async def no_process(*_: object, **__: object) -> None:
    """Say what Linux says to a fork too many."""
    raise BlockingIOError(11, "Resource temporarily unavailable")


async def test_such_a_row_is_done_when_the_machine_is_well(
    sqlite_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same, from end to end: a loss is counted only where something was lost."""
    await sqlite_database.create_tables(Base.metadata)
    open_process = process_line.to_process.open_process
    asked = 0

    async def hardly_any_process(*args: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        return await (no_process() if asked <= REFUSED else open_process(*args, **options))

    monkeypatch.setattr("anyio.to_process.open_process", hardly_any_process)
    renders = DispatchPipeline(
        Render, handler=handlers.finishes, engine=ProcessEngine(1), retry_delay=0.05, fetch_delays=(0.05, 0.1)
    )
    async with PipelineManager(sqlite_database.session_factory, [renders]):
        await submit(sqlite_database, renders, "a")
        async with asyncio.timeout(WAIT_S_MAX):
            [row] = await settled(sqlite_database, every_s=0.05)
    assert (row.status, row.error, row.losses, asked) == (COMPLETED, None, 0, REFUSED + 1)


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder; processes import a main module that writes ``pid`` there and waits for ``go on``."""
    script = tmp_path / "host.py"
    script.write_text(
        "import os, pathlib, time\n"
        "here = pathlib.Path(__file__).parent\n"
        "(here / 'new').write_text(str(os.getpid()))\n"
        "(here / 'new').rename(here / 'pid')\n"
        "while not (here / 'go on').exists():\n"
        "    time.sleep(0.02)\n"
    )
    module = ModuleType("__main__")
    module.__file__ = str(script)
    monkeypatch.setitem(sys.modules, "__main__", module)
    return tmp_path


async def test_a_process_that_starts_slowly_is_waited_for(main: Path) -> None:
    """A host that imports for a minute would lose each attempt before its work began."""
    engine = ProcessEngine(1)
    offer = asyncio.create_task(engine.offer("process-1", task_of(handlers.works)))
    await until((main / "pid").exists)
    assert not offer.done()
    assert engine.workers()["process-1"].active == 1
    (main / "go on").touch()
    async with aclosing(await offer) as events:
        assert isinstance((await heard(events))[-1], Completed)


async def test_a_process_that_never_starts_is_killed(main: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A main module that hangs would hold its worker, its row and the end of the service for ever."""
    monkeypatch.setattr(process_line, "START_S_MAX", 2.0)
    monkeypatch.setattr(process_line, "INTERPRETER_S_MAX", 2.0)
    engine = ProcessEngine(1)
    async with asyncio.timeout(WAIT_S_MAX):
        with pytest.raises(ChildProcessError, match="not up within 2 s"):
            await engine.offer("process-1", task_of(handlers.works))
    assert engine.workers()["process-1"].active == 0
    assert is_gone(main)


async def test_to_insist_on_an_end_does_not_leave_a_process(main: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain that cancels twice would leave a process behind that is about to begin."""
    monkeypatch.setattr(process_line, "INTERPRETER_S_MAX", 2.0)
    engine = ProcessEngine(1)
    offer = asyncio.create_task(engine.offer("process-1", task_of(handlers.works)))
    await until((main / "pid").exists)
    for _ in range(3):
        offer.cancel()
        await asyncio.wait({offer}, timeout=0.01)
    await asyncio.wait({offer})
    assert offer.cancelled()
    assert is_gone(main)


def is_gone(main: Path) -> bool:
    """Whether the process that imported that main module has ended."""
    try:
        os.kill(int((main / "pid").read_text()), 0)
    except ProcessLookupError:
        return True
    return False


async def test_an_offer_that_is_given_up_at_any_step_leaves_nothing(tempdir: Path, tmp_path: Path) -> None:
    """Each drain would leave processes, sockets and folders behind, until the machine has no more of them."""
    before = set(children())
    engine = ProcessEngine(STEPS)
    offers = []
    for steps, worker in enumerate(engine.workers()):
        offers.append(asyncio.create_task(engine.offer(worker, task_of(handlers.tells_its_beginning, tmp_path))))
        for _ in range(steps):
            await asyncio.sleep(0)
        offers[-1].cancel()
    async with asyncio.timeout(WAIT_S_MAX):
        await asyncio.gather(*offers, return_exceptions=True)
    assert all(offer.cancelled() for offer in offers)
    assert files_in(tempdir) == []
    assert not any(view.active for view in engine.workers().values())
    assert files_in(tmp_path) == []
    await until(lambda: set(children()) <= before)


def files_in(folder: Path) -> list[Path]:
    """Return what is there."""
    return list(folder.iterdir())


def children() -> list[int]:
    """Return the processes that this one has started and that live."""
    listed = subprocess.run(["/bin/ps", "-A", "-o", "ppid=,pid=,args="], check=True, capture_output=True, text=True)
    lines = (line.split(maxsplit=2) for line in listed.stdout.splitlines())
    return [int(pid) for parent, pid, command in lines if int(parent) == os.getpid() and "anyio" in command]
