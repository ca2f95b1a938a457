"""Tests of handlers on the loop: each runs in one task from its first step to its last, as it
would anywhere else.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
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
)
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
