"""Tests of worker processes: how they start, what they say, what they leave behind, and what
becomes of those that a handler starts.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
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
    Failed,
    Heartbeat,
    LoopEngine,
    ProcessEngine,
    StageDone,
    Task,
    WorkerGone,
)
from rowlock.dispatch.engines import process as process_line
from rowlock.dispatch.engines.local import LocalEngine
from rowlock.dispatch.engines.process import started
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX
from . import handlers
from .renders import Render, one_render, settled, submit
from .test_engines import goes_on_when_asked, heard, offered, task_of, until


class Other:
    """A subprocess as it is seen through the pipe that it holds open."""

    def __init__(self, pipe: Path) -> None:
        os.mkfifo(pipe)
        self._end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def has_begun(self) -> bool:
        try:
            return os.read(self._end, 100) == b"ready\n"
        except BlockingIOError:
            return False

    def has_ended(self) -> bool:
        try:
            return os.read(self._end, 100) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._end)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Other]:
    """The subprocess that `starts_another` starts when its row is this test's ``pipe``."""
    watched = Other(tmp_path / "pipe")
    yield watched
    watched.close()


# ---------------------------------------------------------------- a stage is recorded

NO_EVENT = Failed("internal", "the handler gave a NoneType, which is no event")


@pytest.mark.parametrize(
    "handler", [handlers.tells_a_stage_and_nothing, handlers.tells_a_stage_and_nothing_plainly]
)
async def test_it_beats_while_a_stage_is_recorded(
    tmp_path: Path, handler: Callable[[Task[Any]], Any]
) -> None:
    """A database that is away for a moment would cost every attempt that has just done a stage; or
    a handler of one of both kinds would need another engine, or not wait for its stage. A bare
    `yield` is no death of the process, which would be killed in the middle of its work.
    """
    async with offered(ProcessEngine(1), task_of(handler, tmp_path, heartbeat_s=0.01)) as events:
        rest = await goes_on_when_asked(events, tmp_path, last=NO_EVENT)
        assert Heartbeat() in rest


async def test_a_process_waits_for_the_database(
    sqlite_database: TemporaryDatabase, tmp_path: Path
) -> None:
    """A file that was thrown away after a stage, which then nobody recorded, would fail the next
    attempt for good.
    """
    renders = DispatchPipeline(
        Render,
        handler=handlers.tells_a_stage_when_told,
        engine=ProcessEngine(1),
        fetch_delays=(0.05, 0.1),
    )
    async with PipelineManager(sqlite_database.session_factory, [renders]):
        await submit(sqlite_database, renders, str(tmp_path))
        async with asyncio.timeout(HANG_S_MAX):
            while (await one_render(sqlite_database)).status != RUNNING:  # noqa: ASYNC110 - the database says nothing by itself
                await asyncio.sleep(0.05)
        somebody = sqlite3.connect(
            str(sqlite_database.url.database), isolation_level=None, check_same_thread=False
        )
        with closing(somebody):
            # In a thread: whoever writes just now must be able to end.
            await asyncio.to_thread(somebody.execute, "BEGIN IMMEDIATE")
            (tmp_path / "go on").touch()
            await until((tmp_path / "ticked").exists)
            assert not (tmp_path / "gone on").exists()
            somebody.execute("ROLLBACK")
        async with asyncio.timeout(HANG_S_MAX):
            [row] = await settled(sqlite_database, every_s=0.05)
    assert (row.status, row.error, row.stages) == (COMPLETED, None, {"raw": None})
    assert (tmp_path / "gone on").exists()


async def test_a_process_without_a_dispatcher_ends_with_what_it_started(
    tmp_path: Path, other: Other
) -> None:
    """A dispatcher that is killed would leave work behind that nobody knows of, beside that of
    its successor.
    """
    pickled = pickle.dumps(task_of(handlers.starts_another, tmp_path / "pipe"))
    async with started(pickled, beat_s=1_000) as connection, asyncio.timeout(HANG_S_MAX):
        assert await connection.next_event() == StageDone("started")
        await until(other.has_begun)
        connection._writer.close()
        await connection._process.wait()
        assert connection._process.returncode == -signal.SIGKILL
    await until(other.has_ended)


# ---------------------------------------------------------------- what a handler has started


async def test_a_subprocess_ends_with_its_attempt(tmp_path: Path, other: Other) -> None:
    """A transcode that nobody wants any more would run on outside all limits, and write where
    the next attempt writes.
    """
    async with offered(
        ProcessEngine(1), task_of(handlers.starts_another, tmp_path / "pipe")
    ) as events:
        async with asyncio.timeout(HANG_S_MAX):
            while not isinstance(await anext(events), StageDone):
                pass
        await until(other.has_begun)
        assert not other.has_ended()
    await until(other.has_ended)


async def test_a_process_that_dies_beside_what_it_started_is_noticed(
    tmp_path: Path, other: Other
) -> None:
    """A subprocess, or a fork, which has every pipe and socket that the process has, would be
    taken for the process: a row waits for the death of something that nobody watches.
    """
    engine = ProcessEngine(1)
    async with offered(
        engine, task_of(handlers.starts_others_and_dies, tmp_path / "pipe")
    ) as events:
        with pytest.raises(WorkerGone, match="its process died"):
            await heard(events)
    await until(other.has_ended)
    assert engine.workers()["process-1"].active == 0


async def test_what_a_handler_starts_is_its_own() -> None:
    """Ctrl-C in a terminal would end every attempt, or no tool that is ended by it; a tool that
    prints a line would kill the attempt, and one that reads would wait for ever; and a fork that
    leaves the handler would answer for the attempt.
    """
    async with offered(ProcessEngine(1), task_of(handlers.starts_all_kinds)) as events:
        assert (await heard(events))[-1] == Completed({"code": -signal.SIGINT})


async def test_a_process_that_hangs_up_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that closes the line, or whose end somebody hides, would hold its row until
    nothing was heard for long.
    """
    monkeypatch.setattr(process_line, "PROCESS_END_S_MAX", 0.2)
    async with offered(
        ProcessEngine(1), task_of(handlers.closes_sockets, heartbeat_s=1_000)
    ) as events:
        with pytest.raises(WorkerGone, match="its process died"):
            await heard(events)


async def test_each_attempt_has_a_process_of_its_own(tmp_path: Path) -> None:
    """What one attempt leaves behind, such as its folder, would be another's."""
    found = []
    for _ in range(2):
        async with offered(ProcessEngine(1), task_of(handlers.moves, tmp_path)) as events:
            *_, last = await heard(events)
        assert isinstance(last, Completed)
        found.append(last.values)
    assert found[0].pop("pid") != found[1].pop("pid")
    assert found[0] == found[1]
    assert found[0]["folder"] == str(Path.cwd())


# -------------------- how it starts


STEPS = 5
"""As many steps of the loop an offer takes at most until all it does is wait for its process."""


async def test_a_machine_that_lacks_something_fails_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica without memory for one more process would fail every row that it takes."""
    engine = ProcessEngine(1)
    with monkeypatch.context() as sick:
        sick.setattr("asyncio.create_subprocess_exec", no_process)
        with pytest.raises(BlockingIOError):
            await engine.offer("process-1", task_of(handlers.works))
    assert engine.workers()["process-1"].active == 0


async def no_process(*_: object, **__: object) -> None:
    """Say what Linux says to a fork too many."""
    raise BlockingIOError(11, "Resource temporarily unavailable")


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder; processes import a main module that writes ``pid`` there and waits for ``go
    on``.
    """
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


async def test_a_process_that_starts_slowly_is_waited_for(
    main: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A host that imports for a minute would lose each attempt before its work began; and nobody
    would know why all rows wait where a main module without its guard runs the whole service in
    each process.
    """
    monkeypatch.setattr(process_line, "SLOW_START_S", 0.01)
    engine = ProcessEngine(1)
    offer = asyncio.create_task(engine.offer("process-1", task_of(handlers.works)))
    with caplog.at_level(logging.WARNING):
        await until((main / "pid").exists)
        assert not offer.done()
        assert engine.workers()["process-1"].active == 1
        (main / "go on").touch()
        async with aclosing(await offer) as events:
            assert isinstance((await heard(events))[-1], Completed)
    assert [record.message for record in caplog.records if "slow to start" in record.message] == [
        "A worker process is slow to start. It imports the host's main module, which must start"
        " nothing but under `if __name__ == '__main__'`"
    ]


async def test_a_process_that_never_starts_is_killed(
    main: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A main module that hangs would hold its worker, its row and the end of the service for
    ever.
    """
    monkeypatch.setattr(process_line, "START_S_MAX", 5.0)
    engine = ProcessEngine(1)
    async with asyncio.timeout(HANG_S_MAX):
        with pytest.raises(ChildProcessError, match="not up within 5 s"):
            await engine.offer("process-1", task_of(handlers.works))
    assert engine.workers()["process-1"].active == 0
    assert is_gone(main)


async def test_to_insist_on_an_end_does_not_leave_a_process(main: Path) -> None:
    """A drain that cancels twice would leave a process behind that is about to begin."""
    attempt = ProcessEngine(1).run("process-1", task_of(handlers.works))
    start = asyncio.create_task(anext(attempt))
    await until((main / "pid").exists)
    for _ in range(3):
        start.cancel()
        await asyncio.wait({start}, timeout=0.01)
    await asyncio.wait({start})
    assert start.cancelled()
    assert is_gone(main)


async def test_an_offer_that_is_given_up_lets_go_at_once(main: Path) -> None:
    """A drain would leave a row leased over whose process it had to wait, though nothing was
    begun.
    """
    engine = ProcessEngine(1)
    offer = asyncio.create_task(engine.offer("process-1", task_of(handlers.works)))
    await until((main / "pid").exists)
    offer.cancel()
    for _ in range(STEPS):
        await asyncio.sleep(0)
    assert offer.cancelled()
    # And nobody starts one beside it, or forgets it.
    assert engine.workers()["process-1"].active == 1
    await until(lambda: engine.workers()["process-1"].active == 0)
    assert is_gone(main)


def is_gone(main: Path) -> bool:
    """Whether the process that imported that main module has ended."""
    try:
        os.kill(int((main / "pid").read_text()), 0)
    except (FileNotFoundError, ProcessLookupError):  # killed before it wrote its number
        return True
    return False


async def test_an_offer_that_is_given_up_at_any_step_leaves_nothing(tmp_path: Path) -> None:
    """Each drain would leave processes behind, until the machine has no more of them."""
    before = set(children())
    engine = ProcessEngine(STEPS)
    offers = []
    for steps, worker in enumerate(engine.workers()):
        offers.append(
            asyncio.create_task(
                engine.offer(worker, task_of(handlers.tells_its_beginning, tmp_path))
            )
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        offers[-1].cancel()
    async with asyncio.timeout(HANG_S_MAX):
        await asyncio.gather(*offers, return_exceptions=True)
    assert all(offer.cancelled() for offer in offers)
    await until(lambda: not any(view.active for view in engine.workers().values()))
    assert not (tmp_path / "begun").exists()
    await until(lambda: set(children()) <= before)


def children() -> list[int]:
    """Return the processes that this one has started and that live."""
    listed = subprocess.run(
        ["/bin/ps", "-A", "-o", "ppid=,pid=,args="], check=True, capture_output=True, text=True
    )
    lines = (line.split(maxsplit=2) for line in listed.stdout.splitlines())
    return [
        int(pid)
        for parent, pid, command in lines
        if int(parent) == os.getpid() and "engines.process" in command
    ]


@pytest.mark.parametrize("kind", [LoopEngine, ProcessEngine], ids=lambda kind: kind.kind)
def test_a_loop_that_ends_takes_its_attempts_along(kind: type[LocalEngine], tmp_path: Path) -> None:
    """An engine of a module, with a loop for each test, would be busy for ever after the first
    that ends in between.
    """
    engine = kind(1)
    [worker] = engine.workers()
    task = task_of(handlers.waits, tmp_path)
    held = []

    async def begin() -> None:
        held.append(await engine.offer(worker, task))

    async def do() -> None:
        assert engine.workers()[worker].active == 0
        async with offered(engine, task_of(handlers.works)) as events:
            # What is left of the old one changes nothing.
            held.clear()
            gc.collect()
            assert engine.workers()[worker].active == 1
            assert isinstance((await heard(events))[-1], Completed)

    asyncio.run(begin())
    asyncio.run(do())
