"""Tests of the engines of this machine: one conformance suite for all, and what each promises
beyond that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from rowlock import SettingsError
from rowlock.clock import monotonic
from rowlock.dispatch import (
    AttemptEvent,
    Completed,
    Engine,
    Failed,
    Heartbeat,
    LoopEngine,
    ProcessEngine,
    Progress,
    StageDone,
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

ENGINES: list[type[LocalEngine]] = [LoopEngine, ThreadEngine, ProcessEngine]
HANDLERS: dict[type[LocalEngine], str] = {
    LoopEngine: "",
    ThreadEngine: "_plainly",
    ProcessEngine: "_plainly",
}


COMPLETED = Completed()
each_engine = pytest.mark.parametrize("kind", ENGINES, ids=lambda kind: kind.kind)


def handler_for(kind: type[LocalEngine], name: str) -> Callable[[Task[Any]], Any]:
    """Return the handler of that name which `kind` can run."""
    found: Callable[[Task[Any]], Any] = getattr(handlers, name + HANDLERS[kind])
    return found


def task_of(
    handler: Callable[[Task[Any]], Any], row: Any = None, heartbeat_s: float = 10.0
) -> Task[Any]:
    return Task(
        id=7,
        attempt=2,
        nonce="nonce",
        row=row,
        workdir=Path("nowhere"),
        stages={},
        handler=handler,
        heartbeat_s=heartbeat_s,
    )


async def heard(events: Events) -> list[AttemptEvent]:
    async with asyncio.timeout(HANG_S_MAX):
        return [event async for event in events]


@asynccontextmanager
async def offered(engine: Engine, task: Task[Any]) -> AsyncIterator[Events]:
    """Offer to the first worker, and close at the end."""
    events = await engine.offer(next(iter(engine.workers())), task)
    async with aclosing(events):
        yield events


async def goes_on_when_asked(
    events: Events, folder: Path, *, last: AttemptEvent = COMPLETED
) -> list[AttemptEvent]:
    """Check that `tells_a_stage` does so, and return what it says then."""
    async with asyncio.timeout(HANG_S_MAX):
        while not isinstance(await anext(events), StageDone):
            pass
    await until((folder / "ticked").exists)
    assert not (folder / "gone on").exists()
    rest = await heard(events)
    assert (folder / "gone on").exists()
    # A beat may come after the last event.
    assert last in rest
    return rest


async def until(condition: Callable[[], object]) -> None:
    """Wait until `condition` holds."""
    async with asyncio.timeout(HANG_S_MAX):
        while not condition():  # noqa: ASYNC110 - what it waits for says nothing by itself
            await asyncio.sleep(0.01)


# ---------------------------------------------------------------- what all of them promise


@each_engine
async def test_events_come_in_order(kind: type[LocalEngine]) -> None:
    """What a handler says would be lost, or come from another attempt."""
    engine = kind(2)
    assert isinstance(engine, Engine)
    async with offered(engine, task_of(handler_for(kind, "works"), row="scene")) as events:
        first, *rest = await heard(events)
    assert first == Heartbeat()
    assert rest[:2] == [Progress("begun"), StageDone("raw", {"file": "7"})]
    assert isinstance(rest[2], Completed)
    values = rest[2].values
    assert (values["row"], values["attempt"]) == ("scene", 2)
    assert (values["pid"] == os.getpid()) == (kind is not ProcessEngine)
    assert len(rest) == 3


@each_engine
async def test_a_worker_takes_no_more_than_it_may(kind: type[LocalEngine], tmp_path: Path) -> None:
    """Work would pile up on a worker while another one is idle; or an attempt that nobody listens
    to, since its dispatcher was cancelled just after the offer, would cost a worker for ever.
    """
    engine = kind(2)
    first, second = engine.workers()
    task = task_of(handler_for(kind, "waits"), row=tmp_path)
    held = await engine.offer(first, task)
    with pytest.raises(WorkerBusy):
        await engine.offer(first, task)
    assert [view.active for view in engine.workers().values()] == [1, 0]
    other = await engine.offer(second, task)
    for events in (held, other):
        await events.aclose()
        await events.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    await until(lambda: [view.active for view in engine.workers().values()] == [0, 0])


@each_engine
async def test_it_beats_until_it_is_closed(kind: type[LocalEngine], tmp_path: Path) -> None:
    """Long work would look like a death; and what nobody wants any more would run to its end, and
    keep its worker.
    """
    engine = kind(1)
    task = task_of(handler_for(kind, "waits"), row=tmp_path, heartbeat_s=0.05)
    async with offered(engine, task) as events:
        async with asyncio.timeout(HANG_S_MAX):
            first = [await anext(events) for _ in range(6)]
        assert [event for event in first if event != Heartbeat()] == [Progress(ANY)]
        (tmp_path / "go on").touch()
    await until(lambda: not sum(view.active for view in engine.workers().values()))
    # A process is killed, and has no time for anything.
    assert (tmp_path / "ended").exists() or kind is ProcessEngine


@each_engine
async def test_an_attempt_begins_when_it_is_listened_to(
    kind: type[LocalEngine], tmp_path: Path
) -> None:
    """Work would be under way for a row that does not say so yet, or that somebody else has
    decided about.
    """
    engine = kind(2)
    first, second = engine.workers()
    async with aclosing(
        await engine.offer(first, task_of(handler_for(kind, "tells_its_beginning"), tmp_path))
    ) as events:
        assert await anext(events) == Heartbeat()
        # Meanwhile another one begins and ends.
        async with aclosing(
            await engine.offer(second, task_of(handler_for(kind, "works")))
        ) as others:
            await heard(others)
        assert not (tmp_path / "begun").exists()
        await heard(events)
        assert (tmp_path / "begun").exists()


@each_engine
@pytest.mark.parametrize("name", ["raises", "exits"])
async def test_what_a_handler_raises_is_a_failure(kind: type[LocalEngine], name: str) -> None:
    """A slip in a handler would end the service, or look like a worker that died."""
    async with offered(kind(1), task_of(handler_for(kind, name))) as events:
        *_, last = await heard(events)
    says = "ValueError: no such scene" if name == "raises" else "SystemExit: 3"
    assert last == Failed("internal", says)
    assert f"in {name}" in last.detail  # a line without a place would help nobody


@pytest.mark.parametrize("kind", [LoopEngine, ThreadEngine], ids=lambda kind: kind.kind)
async def test_a_handler_goes_on_when_its_stage_is_recorded(
    kind: type[LocalEngine], tmp_path: Path
) -> None:
    """It would throw away what the stage was made of, and a replica that dies then would leave a
    row that nobody can do.
    """
    async with offered(kind(1), task_of(handler_for(kind, "tells_a_stage"), tmp_path)) as events:
        await goes_on_when_asked(events, tmp_path)


@each_engine
async def test_there_is_no_such_worker(kind: type[LocalEngine]) -> None:
    """A balancer that remembers a worker for too long would stop everything."""
    with pytest.raises(WorkerGone):
        await kind(1).offer("another", task_of(handlers.works))


@each_engine
@pytest.mark.parametrize("workers", [0, -1, 10_001, 1.5, True])
def test_a_wrong_number_of_workers_is_refused(kind: type[LocalEngine], workers: Any) -> None:
    """An engine without workers would leave every row waiting, without a word."""
    with pytest.raises(SettingsError, match="from 1 to"):
        kind(workers)


# ---------------------------------------------------------------- what each promises beyond that


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
