"""Tests of handlers on the loop: each runs in one task from its first step to its last, as it
would anywhere else. And of silence: what is not heard because nobody listened is none.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from rowlock import PipelineManager
from rowlock.dispatch import (
    COMPLETED,
    FAILED,
    AttemptEvent,
    Completed,
    Failed,
    Heartbeat,
    LoopEngine,
    Progress,
    Task,
    ThreadEngine,
    WorkerGone,
)
from rowlock.dispatch.attempt import CATCH_UP_S, next_event
from rowlock.testing import TemporaryDatabase, virtual_time

from .renders import Fleet, Render, Scenes, pipeline_of, settled, submit
from .test_engines import offered, task_of

WHO: ContextVar[str] = ContextVar("who")


async def gives_up(_task: Task[Any]) -> AsyncIterator[AttemptEvent]:
    """Wait for something that does not come, for five seconds."""
    try:
        async with asyncio.timeout(5):
            yield Progress("asked")
            await asyncio.sleep(1000)
    except TimeoutError:
        yield Completed({"url": "nobody answered"})


@virtual_time
@pytest.mark.parametrize(
    "recorded_after_s", [0, 20], ids=["in the handler", "while its event is recorded"]
)
async def test_a_timeout_goes_off_across_a_yield(recorded_after_s: float) -> None:
    """A deadline that a handler sets itself would never come, without a word."""
    async with offered(LoopEngine(1), task_of(gives_up)) as events:
        heard = []
        async for event in events:
            heard.append(event)
            if isinstance(event, Progress):
                await asyncio.sleep(recorded_after_s)
    assert [each for each in heard if each != Heartbeat()] == [
        Progress("asked"),
        Completed({"url": "nobody answered"}),
    ]


@virtual_time
async def test_a_task_group_ends_the_handler_when_a_member_fails() -> None:
    """A handler would go on for hours beside a part of it that has failed."""

    async def breaks() -> None:
        await asyncio.sleep(1)
        raise ValueError("broken")

    async def works(_task: Task[Any]) -> AsyncIterator[AttemptEvent]:
        async with asyncio.TaskGroup() as group:
            group.create_task(breaks())
            yield Progress("begun")
            await asyncio.sleep(1000)
        yield Completed()

    began = asyncio.get_running_loop().time()
    async with offered(LoopEngine(1), task_of(works)) as events:
        *_, last = [event async for event in events]
    assert isinstance(last, Failed)
    assert "ExceptionGroup" in last.text
    assert asyncio.get_running_loop().time() - began == 1


@virtual_time
async def test_context_goes_on_across_a_yield() -> None:
    """Traces and log contexts that a handler opens would be lost with its first event, and could
    not be closed.
    """

    async def works(_task: Task[Any]) -> AsyncIterator[AttemptEvent]:
        token = WHO.set("me")
        yield Progress("begun")
        who = WHO.get("nobody")
        WHO.reset(token)
        yield Completed({"who": who})

    async with offered(LoopEngine(1), task_of(works)) as events:
        *_, last = [event async for event in events]
    assert last == Completed({"who": "me"})


@virtual_time
async def test_a_handler_that_tidies_up_is_waited_for() -> None:
    """What it does in its `finally` would be cut off, or go on beside the next attempt."""
    ends: list[str] = []

    async def works(_task: Task[Any]) -> AsyncIterator[AttemptEvent]:
        try:
            yield Progress("begun")
            await asyncio.sleep(1000)
            yield Completed()
        finally:
            await asyncio.sleep(5)
            ends.append("tidied")

    for seconds in (0, 1):
        async with offered(LoopEngine(1), task_of(works)) as events:
            while not isinstance(await anext(events), Progress):
                pass
            if seconds:
                hearing = asyncio.ensure_future(anext(events))  # type: ignore[arg-type]
                await asyncio.sleep(seconds)
                hearing.cancel()
    assert ends == ["tidied"] * 2


@virtual_time
async def test_where_a_handler_failed_stands_in_the_log(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody could find the line that failed a customer's work: clients are told the error, and
    it is written nowhere else.
    """
    scenes = Scenes()

    async def slips(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("x")
        raise ValueError("deep down")

    async def says_no(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Failed("input", "no such scene")

    scenes.answers |= {"a": slips, "b": says_no}
    renders = pipeline_of(Fleet(2), scenes)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a", "b", "c")
        rows = await settled(virtual_database)
    assert [row.status for row in rows] == [FAILED, FAILED, COMPLETED]
    told = [record for record in caplog.records if "A handler failed" in record.message]
    assert [record.rowlock_row_id for record in told] == [rows[0].id]  # type: ignore[attr-defined]
    assert 'raise ValueError("deep down")' in told[0].message
    assert all("Traceback" not in (row.error or "") for row in rows)


async def test_a_function_that_works_before_it_returns_its_events_blocks_nobody() -> None:
    """The event loop, and every other attempt, would stand still for as long as it works."""
    called_in: list[threading.Thread] = []

    def works(_task: Task[Any]) -> Iterator[AttemptEvent]:
        called_in.append(threading.current_thread())
        return iter([Completed()])

    async with offered(ThreadEngine(1), task_of(works)) as events:
        *_, last = [event async for event in events]
    assert last == Completed()
    assert called_in != [threading.current_thread()]


TURNS = 20
"""How many turns of the loop an event may take from a socket to whoever waits for it."""


async def said(after: asyncio.Event) -> AsyncGenerator[AttemptEvent, None]:
    """Say something when it is time to; it takes a few turns to arrive."""
    await after.wait()
    for _ in range(TURNS):
        await asyncio.sleep(0)
    yield Heartbeat()


async def test_a_loop_that_was_blocked_listens_once_more() -> None:
    """Three slips of the host that block its loop would fail every row under way, whose workers
    are all well.
    """
    spoken = asyncio.Event()

    def block() -> None:
        spoken.set()
        time.sleep(0.3)

    asyncio.get_running_loop().call_later(0.02, block)
    assert isinstance(await next_event(said(spoken), within_s=0.1), Heartbeat)


async def test_a_loop_that_is_blocked_again_while_it_catches_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that blocks its loop twice in a row would lose its attempts all the same."""
    monkeypatch.setattr("rowlock.dispatch.attempt.CATCH_UP_S", 0.1)
    spoken = asyncio.Event()
    loop = asyncio.get_running_loop()

    def block() -> None:
        spoken.set()
        time.sleep(0.3)

    loop.call_later(0.12, block)
    assert isinstance(await next_event(said(spoken), within_s=0.1), Heartbeat)


@virtual_time
async def test_silence_has_an_end() -> None:
    """A worker that is frozen would keep its row for ever; and its attempt would not know that
    nobody listens any more.
    """
    began, events = asyncio.get_running_loop().time(), said(asyncio.Event())
    with pytest.raises(TimeoutError):
        await next_event(events, within_s=30)
    assert asyncio.get_running_loop().time() - began == 30 + CATCH_UP_S
    with pytest.raises(StopAsyncIteration):
        await anext(events)


@virtual_time
async def test_who_is_cancelled_again_and_again_listens_no_more() -> None:
    """A generator that is still being read cannot be closed: its row would be failed, and given
    away while it cleans up.
    """
    ends: list[str] = []

    async def tidies() -> AsyncGenerator[AttemptEvent, None]:
        try:
            await asyncio.Event().wait()
            yield Heartbeat()
        finally:
            await asyncio.sleep(5)
            ends.append("tidied")

    hearing = asyncio.create_task(next_event(tidies(), within_s=30))
    for _ in range(3):
        await asyncio.sleep(1)
        hearing.cancel()
    await asyncio.wait({hearing})
    assert ends == ["tidied"]


async def test_who_is_cancelled_as_the_worker_is_lost_leaves_no_error_behind() -> None:
    """asyncio would log that an exception was never retrieved, and hosts that watch for it would
    be alarmed by each attempt that ends twice in one moment.
    """
    told: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: told.append(context))
    is_gone = asyncio.Event()

    async def lost() -> AsyncGenerator[AttemptEvent, None]:
        await is_gone.wait()
        raise WorkerGone("a", "gone")
        yield Heartbeat()

    async def hear() -> None:
        hearing = asyncio.create_task(next_event(lost(), within_s=30))
        await asyncio.sleep(0)
        [coming] = [task for task in asyncio.all_tasks() if task.get_name().endswith("an attempt")]
        coming.add_done_callback(lambda _task: hearing.cancel())
        is_gone.set()
        await asyncio.wait({hearing})
        assert hearing.cancelled()

    await hear()
    gc.collect()
    assert not told
