"""What a manager surrounds every attempt with: spans and fields of log lines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from rowlock import Apply, Outcome, Park, PipelineItem, PipelineManager, Retry, events
from rowlock.pipelines.attempt import Attempt, Raised, Result, Returned, surrounded
from rowlock.testing import TemporaryDatabase

from ..host import Volume, VolumePipeline, heard_events
from .scenes import add, ticket

pytestmark = pytest.mark.either_database

SPAN: ContextVar[object] = ContextVar("SPAN", default=None)


class Spans:
    def __init__(self) -> None:
        self.seen: list[object] = []

    @contextmanager
    def __call__(self, item: PipelineItem[Any]) -> Iterator[None]:
        token = SPAN.set(item.id)
        try:
            yield
            self.seen.append("left")
        except BaseException as error:
            self.seen.append(type(error).__name__)
            raise
        finally:
            SPAN.reset(token)


class PlainPipeline(VolumePipeline):
    """Works in threads, and notes what it sees there."""

    def process(self, item: PipelineItem[Any]) -> Outcome:  # type: ignore[override]
        self.items.append(item)
        self.seen = (SPAN.get(), threading.current_thread() is threading.main_thread())
        return Apply({"status": "active"})


async def worked(database: TemporaryDatabase, pipeline: VolumePipeline, *surround: Any) -> None:
    await add(database, Volume())
    with heard_events() as heard:
        manager = PipelineManager(database.session_factory, [pipeline], surround=surround)
        async with manager:
            await heard.wait_for(events.ItemApplied)


async def attempted(surround: Sequence[Any], call: Callable[[], Any]) -> Result:
    around = partial(surrounded, call, surround, ticket())
    return await Attempt(around, timeout_s=None, grace_s=60).run()


async def test_process_runs_within_what_surrounds_it(database: TemporaryDatabase) -> None:
    """A line that `process` logs would not say of which row it is."""
    seen: list[object] = []

    def answer(item: PipelineItem[Any]) -> Outcome:
        seen.append(SPAN.get())
        return Apply({"status": "active"})

    spans, pipeline = Spans(), VolumePipeline(answer=answer)
    await worked(database, pipeline, spans)
    assert seen == [item.id for item in pipeline.items]
    assert spans.seen == ["left"]


async def test_a_plain_process_sees_it_in_its_thread(database: TemporaryDatabase) -> None:
    """Lines of plain functions would be the only ones without their row."""
    pipeline = PlainPipeline()
    await worked(database, pipeline, Spans())
    assert pipeline.seen == (pipeline.items[0].id, False)


async def test_what_process_raises_is_seen(database: TemporaryDatabase) -> None:
    """A span of an attempt that failed would look well."""
    await add(database, Volume())
    spans, pipeline = Spans(), VolumePipeline(answer=ValueError("no disk"))
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [pipeline], surround=[spans]):
            await heard.wait_for(events.ItemFailed)
    assert spans.seen == ["ValueError"]


@pytest.mark.parametrize("place", ["called", "entered", "left", "raises", "none", "cancelled"])
async def test_one_that_fails_harms_no_outcome(database: TemporaryDatabase, place: str) -> None:
    """A tracing library that is out of order would fail every row."""

    class Broken:
        def __init__(self, item: PipelineItem[Any]) -> None:
            if place == "called":
                raise OSError(place)

        def __enter__(self) -> None:
            if place == "entered":
                raise OSError(place)
            if place == "cancelled":
                raise asyncio.CancelledError

        def __exit__(self, *error: object) -> bool:
            if place == "left":
                raise OSError(place)
            return True

    spans = Spans()
    broken: Any = Broken if place != "none" else lambda item: None
    await worked(database, VolumePipeline(), broken, spans, broken)
    assert spans.seen == ["left"]


async def test_none_of_them_swallows_an_error() -> None:
    """An attempt that has failed would count as one that returned nothing."""

    class Swallows:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> bool:
            return True

    async def fails() -> None:
        raise Retry(error="no disk")

    result = await attempted([lambda item: Swallows()], fails)
    assert isinstance(result, Raised)
    assert isinstance(result.error, Retry)


async def test_they_are_left_in_the_other_order() -> None:
    """Context variables that two of them set would be reset to those of the wrong one."""
    order: list[str] = []

    @contextmanager
    def one(name: str) -> Iterator[None]:
        order.append(f"{name} entered")
        yield
        order.append(f"{name} left")

    async def works() -> Outcome:
        order.append("works")
        return Park("enough")

    surround = [lambda item: one("a"), lambda item: one("b")]
    assert await attempted(surround, works) == Returned(Park("enough"))
    assert order == ["a entered", "b entered", "works", "b left", "a left"]
