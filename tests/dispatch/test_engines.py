"""Tests of the engines of this machine: one conformance suite for all, and what only processes
promise.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rowlock import SettingsError
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


async def goes_on_when_asked(events: Events, folder: Path) -> list[AttemptEvent]:
    """Check that `tells_a_stage` does so, and return what it says then."""
    async with asyncio.timeout(HANG_S_MAX):
        while not isinstance(await anext(events), StageDone):
            pass
    await until((folder / "ticked").exists)
    assert not (folder / "gone on").exists()
    rest = await heard(events)
    assert (folder / "gone on").exists()
    # A beat may come after the last event.
    assert Completed() in rest
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
    """Work would pile up on a worker while another one is idle."""
    engine = kind(2)
    first, second = engine.workers()
    task = task_of(handler_for(kind, "waits"), row=tmp_path)
    held = await engine.offer(first, task)
    with pytest.raises(WorkerBusy):
        await engine.offer(first, task)
    assert [view.active for view in engine.workers().values()] == [1, 0]
    other = await engine.offer(second, task)
    (tmp_path / "go on").touch()
    for events in (held, other):
        await events.aclose()
    await until(lambda: [view.active for view in engine.workers().values()] == [0, 0])


@each_engine
async def test_an_attempt_that_was_never_listened_to_leaves_its_worker_free(
    kind: type[LocalEngine],
) -> None:
    """A dispatcher that is cancelled just after the offer would cost a worker for ever."""
    engine = kind(1)
    events = await engine.offer(next(iter(engine.workers())), task_of(handler_for(kind, "works")))
    await events.aclose()
    await events.aclose()
    await until(lambda: not sum(view.active for view in engine.workers().values()))
    with pytest.raises(StopAsyncIteration):
        await anext(events)


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


@each_engine
async def test_it_beats_while_the_handler_says_nothing(
    kind: type[LocalEngine], tmp_path: Path
) -> None:
    """Long work would look like a death."""
    async with offered(
        kind(1), task_of(handler_for(kind, "waits"), row=tmp_path, heartbeat_s=0.05)
    ) as events:
        async with asyncio.timeout(HANG_S_MAX):
            first = [await anext(events) for _ in range(6)]
        (tmp_path / "go on").touch()
    assert sum(event == Heartbeat() for event in first) >= 5


@each_engine
async def test_to_close_is_to_cancel(kind: type[LocalEngine], tmp_path: Path) -> None:
    """What nobody wants any more would run to its end, and keep its worker."""
    engine = kind(1)
    async with offered(engine, task_of(handler_for(kind, "waits"), row=tmp_path)) as events:
        async with asyncio.timeout(HANG_S_MAX):
            while not isinstance(await anext(events), Progress):
                pass
        (tmp_path / "go on").touch()
    await until(lambda: not sum(view.active for view in engine.workers().values()))
    # A process is killed, and has no time for anything.
    assert (tmp_path / "ended").exists() or kind is ProcessEngine


@each_engine
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


# ---------------------------------------------------------------- what only processes promise
