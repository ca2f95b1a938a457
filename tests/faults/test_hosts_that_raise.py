"""Host code that raises anything there is, from every hook: its own row pays for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import ColumnElement
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock import Apply, Outcome, PipelineItem, PipelineManager, events, subscribe
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Run, RunPipeline, heard_events
from ..pipelines.scenes import add, is_free, read_all, until

BAD = 2
"""The row that has the trouble."""
ERRORS: dict[str, Callable[[], BaseException]] = {
    "RecursionError": lambda: RecursionError("maximum recursion depth exceeded"),
    "CancelledError": asyncio.CancelledError,
    "ExceptionGroup": lambda: ExceptionGroup("two", [ValueError("one"), OSError("other")]),
    "StopAsyncIteration": StopAsyncIteration,
    "TimeoutError": lambda: TimeoutError("of the host"),
}
any_error = pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)


class HostPipeline(RunPipeline):
    """Raises from the hook that it is told to.

    Attributes:
        where: the hook.
        raised: how often it did.
    """

    def __init__(
        self, where: str, error: Callable[[], BaseException], *, times: int = 3, **settings: Any
    ) -> None:
        super().__init__(
            retry_delay=0.1, fetch_delays=(0.2,), min_processing_interval=0.1, **settings
        )
        self.where, self.error, self.times = where, error, times
        self.raised = 0

    def fail(self, where: str) -> None:
        if where == self.where and self.raised < self.times:
            self.raised += 1
            raise self.error()

    def ready(self) -> ColumnElement[bool]:
        # The pipeline's own construction asks once, and may be told of it.
        if hasattr(self, "raised"):
            self.fail("ready")
        return super().ready()

    def options(self) -> Sequence[LoaderOption]:
        self.fail("options")
        return ()

    async def process(self, item: PipelineItem[Any]) -> Any:
        self.items.append(item)
        if item.id != BAD:
            return Apply({"status": "done"})
        self.fail("process")
        if self.where == "on_stale":
            values = {"status": None if self.raised < self.times else "done"}
            return Apply(values)
        return Apply({"status": "done"}, also=self.also)

    async def also(self, _session: Any, _now: Any) -> None:
        self.fail("also")

    async def on_stale(self, item: PipelineItem[Any], outcome: Outcome) -> None:  # type: ignore[override]
        super().on_stale(item, outcome)
        self.fail("on_stale")


def play(
    database: TemporaryDatabase,
    pipeline: HostPipeline,
    *,
    listener: Callable[[Any], None] | None = None,
) -> None:
    """Have three runs worked on, and see that all are done, that every loop lives, and that the
    trouble is told.
    """

    @virtual_time
    async def scene() -> None:
        await add(database, *(Run(id=number) for number in (1, 2, 3)))
        unsubscribe = subscribe(listener) if listener is not None else lambda: None
        try:
            with heard_events() as heard:
                async with PipelineManager(database.session_factory, [pipeline]) as manager:
                    await until(
                        lambda: manager.statistics()[pipeline.name].counters["applied"] >= 3
                    )
                    await until(lambda: manager.health().healthy)
                    assert manager.statistics()[pipeline.name].tracked == 0
        finally:
            unsubscribe()
        assert heard.of(events.LoopReplaced) == []
        rows = await read_all(database, Run)
        assert [(row.status, is_free(row)) for row in rows] == [("done", True)] * 3

    scene()


@any_error
@pytest.mark.parametrize("where", ["process", "also", "on_stale", "options", "ready"])
def test_whatever_a_hook_raises(
    virtual_database: TemporaryDatabase, where: str, error: Callable[[], BaseException]
) -> None:
    """An exception of the host would end the service, a loop, or the work on other rows."""
    pipeline = HostPipeline(where, error)
    play(virtual_database, pipeline)
    assert pipeline.raised == pipeline.times


@any_error
def test_a_plain_function_raises(
    virtual_database: TemporaryDatabase, error: Callable[[], BaseException]
) -> None:
    """What is raised in a thread cannot be carried by every future, and would be waited for
    without an end.
    """

    class PlainPipeline(HostPipeline):
        def process(self, item: PipelineItem[Any]) -> Any:  # type: ignore[override]
            if item.id == BAD:
                self.fail("process")
            return Apply({"status": "done"})

    pipeline = PlainPipeline("process", error)
    play(virtual_database, pipeline)
    assert pipeline.raised == pipeline.times


@any_error
def test_whatever_a_listener_raises(
    virtual_database: TemporaryDatabase, error: Callable[[], BaseException]
) -> None:
    """A meter or a log handler of the host would stop the outcomes of a whole batch from being
    told and settled.
    """
    heard: list[Any] = []

    def listen(event: Any) -> None:
        heard.append(event)
        raise error()

    play(virtual_database, HostPipeline("nowhere", error), listener=listen)
    assert {type(event) for event in heard} >= {
        events.RowsClaimed,
        events.ItemStarted,
        events.ItemApplied,
    }


@any_error
def test_an_error_is_stored_and_told(
    virtual_database: TemporaryDatabase, error: Callable[[], BaseException]
) -> None:
    """A row that fails again and again would not say why."""

    @virtual_time
    async def scene() -> None:
        await add(virtual_database, Run(id=BAD))
        pipeline = HostPipeline("process", error, times=100, max_attempts=3)
        with heard_events() as heard:
            async with PipelineManager(virtual_database.session_factory, [pipeline]) as manager:
                await until(lambda: manager.statistics()[pipeline.name].counters["parked"] == 1)
        [row] = await read_all(virtual_database, Run)
        assert (row.attempts, is_free(row), row.parked_at is not None) == (3, True, True)
        name = type(error()).__name__.replace("CancelledError", "ProcessCancelledError")
        assert row.last_error.startswith(f"gave up after 3 attempts: {name}")
        assert [told.error.split(":")[0] for told in heard.of(events.ItemFailed)] == [name] * 3

    scene()
