"""What each engine of this machine promises beyond what all promise."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rowlock import SettingsError
from rowlock.clock import monotonic
from rowlock.dispatch import (
    Completed,
    Failed,
    Heartbeat,
    LoopEngine,
    ProcessEngine,
    Progress,
    Task,
    TaskCountBackpressure,
    ThreadEngine,
    WorkerBusy,
    WorkerGone,
)
from rowlock.dispatch.engine import Events
from rowlock.dispatch.engines.local import LocalEngine

from ..host import HANG_S_MAX
from . import handlers
from .test_engines import heard, offered, task_of


async def falls_silent(events: Events, *, silence_s: float) -> bool:
    """Take events, and return whether there comes a time in which none comes for so long."""
    ends_at = monotonic() + 10 * silence_s
    while monotonic() < ends_at:
        try:
            async with asyncio.timeout(silence_s):
                await anext(events)
        except TimeoutError:
            return True
    return False


def test_one_worker_is_the_default() -> None:
    """A host that says nothing would have more at once than it can bear."""
    assert list(LoopEngine().workers()) == ["loop-1"]


async def test_no_threshold_is_no_limit() -> None:
    """0 would refuse everything."""
    engine = LoopEngine(1, backpressure=TaskCountBackpressure(0))
    taken = [await engine.offer("loop-1", task_of(handlers.works)) for _ in range(100)]
    assert engine.workers()["loop-1"].active == 100
    for events in taken:
        await events.aclose()


async def test_threads_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts that wait for a thread would show as running, and be silent."""
    with pytest.raises(SettingsError, match="from 1 to 1000"):
        ThreadEngine(1_001)
    monkeypatch.setattr(ThreadEngine, "attempts_max", 2)
    engine = ThreadEngine(1, backpressure=TaskCountBackpressure(0))
    task = task_of(handlers.works_plainly)
    taken = [await engine.offer("thread-1", task) for _ in range(2)]
    with pytest.raises(WorkerBusy):
        await engine.offer("thread-1", task)
    for events in taken:
        await events.aclose()
    async with offered(engine, task) as events:
        assert isinstance((await heard(events))[-1], Completed)


async def test_a_thread_that_cannot_be_had_is_no_failure_of_the_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine without room for one more thread would fail every row that it takes."""
    engine = ThreadEngine(1)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            await engine.offer("thread-1", task_of(handlers.works_plainly))
    async with offered(engine, task_of(handlers.works_plainly)) as events:
        assert isinstance((await heard(events))[-1], Completed)


def test_a_thread_that_hangs_keeps_no_event_loop_from_ending() -> None:
    """A handler that hangs is left behind in its thread when its event loop ends, also while its
    attempt is being closed.
    """
    go_on = threading.Event()

    async def main(*, closes: bool) -> None:
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hangs(_: Task[Any]) -> Iterator[Completed]:
            loop.call_soon_threadsafe(started.set)
            go_on.wait(HANG_S_MAX)
            yield Completed()

        events = await ThreadEngine(1).offer("thread-1", task_of(hangs))
        asking = asyncio.create_task(heard(events))
        await started.wait()
        assert not asking.done()
        if closes:
            closing = asyncio.create_task(events.aclose())
            await asyncio.wait({closing}, timeout=0)

    for closes in (False, True):
        host = threading.Thread(target=asyncio.run, args=(main(closes=closes),), daemon=True)
        host.start()
        host.join(HANG_S_MAX / 2)
        assert not host.is_alive()
    go_on.set()


@pytest.mark.parametrize(("kind", "name"), [(LoopEngine, "works_plainly"), (ThreadEngine, "works")])
async def test_the_wrong_kind_of_handler_says_which_is_right(
    kind: type[LocalEngine], name: str
) -> None:
    """A handler that blocks would stop the loop, or one that awaits would not run."""
    async with offered(kind(1), task_of(getattr(handlers, name))) as events:
        _, failure = await heard(events)
    assert isinstance(failure, Failed)
    assert f"{kind.__name__} takes" in failure.text


async def test_a_process_runs_both_kinds_of_handlers() -> None:
    """An `async def` handler would need another engine."""
    async with offered(ProcessEngine(1), task_of(handlers.works)) as events:
        *_, last = await heard(events)
    assert isinstance(last, Completed)


async def test_a_process_that_is_killed_is_noticed() -> None:
    """An attempt whose process is gone would hang until its time limit."""
    engine = ProcessEngine(1)
    async with offered(engine, task_of(handlers.kills_itself)) as events:
        with pytest.raises(WorkerGone, match="its process died"):
            await heard(events)
    # And the next one gets a new process.
    async with offered(engine, task_of(handlers.works)) as events:
        assert isinstance((await heard(events))[-1], Completed)


async def test_a_process_that_stands_still_beats_no_more() -> None:
    """A frozen child would be taken for one that works."""
    async with offered(
        ProcessEngine(1), task_of(handlers.freezes_itself, heartbeat_s=0.05)
    ) as events:
        async with asyncio.timeout(HANG_S_MAX):
            while not isinstance(event := await anext(events), Progress):
                pass
        assert await falls_silent(events, silence_s=1.0)
    # Killed although it is frozen.
    with pytest.raises(ProcessLookupError):
        os.kill(int(event.text), signal.SIGKILL)


async def test_a_process_that_loads_its_task_slowly_is_alive(tmp_path: Path) -> None:
    """A host with many imports would lose each attempt before its work began."""
    row = handlers.SlowToLoad(tmp_path / "go on")
    async with offered(
        ProcessEngine(1), task_of(handlers.works_plainly, row, heartbeat_s=0.01)
    ) as events:
        async with asyncio.timeout(HANG_S_MAX):
            assert [await anext(events) for _ in range(5)] == [Heartbeat()] * 5
        (tmp_path / "go on").touch()
        assert any(isinstance(event, Completed) for event in await heard(events))


async def test_ctrl_c_in_a_terminal_is_not_for_the_workers() -> None:
    """Every attempt in hand would fail for good when somebody ends the service."""
    async with offered(ProcessEngine(1), task_of(handlers.interrupts_itself)) as events:
        *_, last = await heard(events)
    assert last == Completed()


async def test_what_cannot_be_sent_is_a_failure() -> None:
    """A lambda would look like a broken worker, and be tried again and again."""
    async with offered(ProcessEngine(1), task_of(lambda _task: iter(()))) as events:
        *_, last = await heard(events)
    assert isinstance(last, Failed)
    assert "the task cannot be sent to a process" in last.text
    async with offered(ProcessEngine(1), task_of(handlers.gives_what_cannot_be_sent)) as events:
        *_, last = await heard(events)
    assert isinstance(last, Failed)
    assert last.kind == "internal"
