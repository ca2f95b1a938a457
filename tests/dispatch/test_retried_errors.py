"""Errors of a handler that pass, and handlers that could never be one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from functools import partial, wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rowlock import ConfigurationError, PipelineManager, SettingsError
from rowlock.dispatch import (
    COMPLETED,
    FAILED,
    PENDING,
    AttemptEvent,
    Completed,
    DispatchPipeline,
    Failed,
    LoopEngine,
    ProcessEngine,
    Progress,
    Task,
    ThreadEngine,
)
from rowlock.testing import TemporaryDatabase, virtual_time

from . import handlers
from .renders import Fleet, Render, Scenes, one_render, pipeline_of, settled, submit

pytestmark = pytest.mark.either_database


@pytest.mark.parametrize(
    ("handler", "engine"),
    [
        (handlers.meets_an_outage_on_a_loop, LoopEngine),
        (handlers.meets_an_outage, ThreadEngine),
        (handlers.meets_an_outage, ProcessEngine),
    ],
)
async def test_an_error_that_passes_does_not_end_the_work(
    database: TemporaryDatabase, tmp_path: Path, handler: Any, engine: Any
) -> None:
    """A handler is tried again after an error of `retry_on`, in whatever process it was raised."""
    renders = DispatchPipeline(
        Render,
        handler=handler,
        engine=engine(1),
        retry_on={ConnectionError: 0.01, handlers.Away: timedelta(0)},
    )
    async with PipelineManager(database.session_factory, [renders]):
        await submit(database, renders, str(tmp_path))
        row = (await settled(database, every_s=0.05))[0]
    assert (row.status, row.report, row.error) == (COMPLETED, ["raw"], None)
    assert (row.attempts, row.losses) == (0, 0)


@virtual_time
async def test_an_error_is_retried_with_backoff_until_the_deadline(
    virtual_database: TemporaryDatabase,
) -> None:
    """The rests grow as in pipelines; then the row fails with what the handler raised."""
    scenes, begun = Scenes(), list[float]()
    loop = asyncio.get_running_loop()

    async def is_refused(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        begun.append(loop.time())
        yield Progress("x")
        raise ConnectionRefusedError("no server")

    scenes.answers["a"] = is_refused
    renders = pipeline_of(
        Fleet(1), scenes, retry_on=(OSError,), retry_delay=10, dispatch_deadline=200
    )
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(5)
        row = await one_render(virtual_database)
        assert (row.status, row.error) == (PENDING, None)
        assert row.last_error == "internal: ConnectionRefusedError: no server"
        [row] = await settled(virtual_database)
    assert (row.status, row.error) == (FAILED, "internal: ConnectionRefusedError: no server")
    assert row.finished_at is not None
    assert row.finished_at - row.submitted_at < timedelta(seconds=200)
    rests = [later - earlier for earlier, later in pairwise(begun)]
    assert len(rests) > 2
    assert rests[-1] > 2 * rests[0]


@virtual_time
async def test_other_errors_stay_final(virtual_database: TemporaryDatabase) -> None:
    """Bad input would be worked on again and again, since a server was away beside it."""
    scenes, fleet = Scenes(), Fleet(1)

    async def raises(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("x")
        raise ValueError

    async def raises_both(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Progress("x")
        raise ExceptionGroup("both", [ConnectionResetError(), ValueError()])

    async def refuses(_task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        yield Failed("input", "ConnectionError")

    scenes.answers = {"raises": raises, "raises_both": raises_both, "refuses": refuses}
    renders = pipeline_of(fleet, scenes, retry_on=(ConnectionError,))
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, *scenes.answers)
        assert {row.status for row in await settled(virtual_database)} == {FAILED}
    assert set(fleet.begun.values()) == {1}


def returns_nothing(task: Task[Any]) -> None:
    """Do all of it, and yield nothing."""


def returns_the_end(task: Task[Any]) -> AttemptEvent:
    return Completed()


async def returns_later(task: Task[Any]) -> AttemptEvent:
    return Completed()


class Returning:
    """A handler with a name of its own."""

    def __call__(self, task: Task[Any]) -> AttemptEvent:
        return Completed()

    async def method(self, task: Task[Any]) -> AttemptEvent:
        return Completed()


@pytest.mark.parametrize("engine", [LoopEngine, ThreadEngine, ProcessEngine])
@pytest.mark.parametrize(
    "handler",
    [returns_nothing, returns_the_end, returns_later, Returning(), Returning().method],
    ids=lambda one: getattr(one, "__qualname__", "object"),
)
def test_a_handler_that_does_not_yield_is_refused(handler: Any, engine: Any) -> None:
    """It is refused at construction: each row of each customer would fail."""
    for given in (handler, partial(partial(handler))):
        with pytest.raises(ConfigurationError, match="handler must yield events"):
            DispatchPipeline(Render, handler=given, engine=engine(1))


@pytest.mark.parametrize(
    ("handler", "engine", "match"),
    [
        (handlers.works, ThreadEngine, "use LoopEngine"),
        (handlers.works_plainly, LoopEngine, "use ThreadEngine"),
        (partial(handlers.works_plainly), LoopEngine, "use ThreadEngine"),
        (partial(handlers.works, quality=lambda: 7), ProcessEngine, "be pickled"),
    ],
)
def test_a_handler_of_the_wrong_kind_is_refused(handler: Any, engine: Any, match: str) -> None:
    """It is refused at construction, however it is wrapped."""
    with pytest.raises(ConfigurationError, match=match):
        DispatchPipeline(Render, handler=handler, engine=engine(1))


def completes(work: Callable[[Task[Any]], Any]) -> Callable[[Task[Any]], Iterator[AttemptEvent]]:
    @wraps(work)
    def handler(task: Task[Any]) -> Iterator[AttemptEvent]:
        yield Completed({"report": work(task)})

    return handler


def test_a_decorator_may_yield_for_what_it_wraps() -> None:
    """A handler would be refused for the function that it wraps."""
    for work in (returns_the_end, returns_later):
        DispatchPipeline(Render, handler=completes(work), engine=ThreadEngine(1))


def test_a_delay_that_is_asked_of_the_error_is_refused() -> None:
    """The error of another process is not there to be asked, and the row would fail."""
    with pytest.raises(SettingsError, match=r"the delay of ConnectionError is a function"):
        pipeline_of(Fleet(1), retry_on={ConnectionError: lambda error: 1.0})


def test_errors_that_park_are_refused() -> None:
    """Settings without effect are refused: an error of a handler parks no row."""

    class ParkingRenders(DispatchPipeline[Render]):
        park_on = (FileNotFoundError,)

    with pytest.raises(SettingsError, match=r"park_on: FileNotFoundError parks no row"):
        ParkingRenders(Render, handler=handlers.works, engine=Fleet(1), retry_on=(OSError,))
