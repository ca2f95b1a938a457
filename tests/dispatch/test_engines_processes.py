"""Tests of worker processes: what they say, what they leave behind, and what becomes of those
that a handler starts.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
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
    ProcessEngine,
    StageDone,
    Task,
    WorkerGone,
)
from rowlock.dispatch.engines import process as process_line
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


@pytest.mark.parametrize("handler", [handlers.tells_a_stage, handlers.tells_a_stage_plainly])
async def test_it_beats_while_a_stage_is_recorded(
    tmp_path: Path, handler: Callable[[Task[Any]], Any]
) -> None:
    """A database that is away for a moment would cost every attempt that has just done a stage."""
    async with offered(ProcessEngine(1), task_of(handler, tmp_path, heartbeat_s=0.01)) as events:
        assert Heartbeat() in await goes_on_when_asked(events, tmp_path)


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


async def test_a_process_that_dies_beside_a_subprocess_is_noticed(
    tmp_path: Path, other: Other
) -> None:
    """The subprocess would be taken for the process: a row waits for the death of something that
    nobody watches.
    """
    async with offered(
        ProcessEngine(1), task_of(handlers.starts_another_and_dies, tmp_path / "pipe")
    ) as events:
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


# -------------------- what it says


@pytest.mark.parametrize(
    "handler", [handlers.says_nothing_in_words, handlers.says_nothing_in_words_plainly]
)
async def test_none_is_no_event(handler: Callable[[Task[Any]], Any]) -> None:
    """A bare `yield` would be taken for the death of the process, which is then killed in the
    middle of its work.
    """
    async with offered(ProcessEngine(1), task_of(handler)) as events:
        assert (await heard(events))[1:] == [
            Failed("internal", "the handler gave a NoneType, which is no event")
        ]


async def test_a_failure_says_where_it_comes_from() -> None:
    """The log would have a line without a place, and nobody could mend the handler."""
    async with offered(ProcessEngine(1), task_of(handlers.raises_plainly)) as events:
        *_, last = await heard(events)
    assert isinstance(last, Failed)
    assert "in raises_plainly" in last.detail


async def test_a_handler_can_interrupt_its_subprocess() -> None:
    """Tools that are ended by Ctrl-C would take no notice, as the process itself takes none."""
    async with offered(ProcessEngine(1), task_of(handlers.interrupts_another)) as events:
        assert (await heard(events))[-1] == Completed({"code": -signal.SIGINT})
