"""Tests of context variables: plain functions of the host see in their threads what was set when
the manager was started.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from contextvars import ContextVar
from typing import Any

import pytest

from rowlock import Apply, Outcome, PipelineItem, PipelineManager, events
from rowlock.pipelines.attempt import Returned
from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX, Volume, VolumePipeline, heard_events
from .blocking import until_so
from .scenes import add, change
from .test_attempt import attempt_of

pytestmark = pytest.mark.either_database

TENANT: ContextVar[str] = ContextVar("TENANT", default="nobody")


async def test_a_plain_function_sees_the_context_variables() -> None:
    """A host's tenant, locale or trace would be there for an ``async def process`` and missing
    for a plain one.
    """
    TENANT.set("ours")
    seen: list[str] = []

    def process() -> None:
        seen.append(TENANT.get())
        TENANT.set("changed by a row")

    assert await attempt_of(process).run() == Returned(None)
    assert await attempt_of(process).run() == Returned(None)
    assert seen == ["ours", "ours"], "each call has a copy of its own"
    assert TENANT.get() == "ours"


async def test_plain_functions_see_the_context_variables_side_by_side() -> None:
    """One context cannot be entered twice: the second of two calls at a time would fail."""
    TENANT.set("ours")
    both = threading.Barrier(2, timeout=HANG_S_MAX)

    def process() -> str:
        both.wait()
        return TENANT.get()

    results = await asyncio.gather(*(attempt_of(process).run() for _ in range(2)))
    assert results == [Returned("ours")] * 2


@pytest.mark.parametrize("waits", [False, True])
async def test_a_row_has_its_variables_from_its_start_to_its_outcome(
    database: TemporaryDatabase, *, waits: bool
) -> None:
    """A tenant that `process` sets would be missing in the transaction of `also`, and one that a
    listener sets would meet the next row.
    """
    seen: list[str] = []

    async def also(_session: Any, _now: Any) -> None:
        seen.append(f"also: {TENANT.get()}")

    async def answer(item: PipelineItem[Any]) -> Outcome:
        if waits:
            await asyncio.sleep(0)
        seen.append(f"process: {TENANT.get()}")
        TENANT.set("of the row")
        return Apply({"status": "active"}, also=also)

    def listen(_event: events.ItemStarted) -> None:
        seen.append(f"listener: {TENANT.get()}")
        TENANT.set("of the listener")

    await add(database, Volume(), Volume())
    pipeline = VolumePipeline(answer=answer, workers_num=1)
    unsubscribe = events.subscribe(listen, events.ItemStarted)
    async with PipelineManager(database.session_factory, [pipeline]):
        await until_so(lambda: pipeline.statistics().counters["applied"] == 2)
    unsubscribe()
    of_each = ["listener: nobody", "process: of the listener", "also: of the row"]
    assert sorted(seen) == sorted(2 * of_each)


class PlainPipeline(VolumePipeline):
    """Works in threads, and notes what it sees there.

    Attributes:
        seen: the tenants of `process` and `on_stale`, in order.
        begun, go_on: hold up the second row.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.seen: list[str] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    def process(self, item: PipelineItem[Any]) -> Any:  # type: ignore[override]
        self.items.append(item)
        self.seen.append(f"process: {TENANT.get()}")
        TENANT.set("changed by a row")
        if len(self.items) == 2:
            self.begun.set()
            self.go_on.wait(HANG_S_MAX)
        return Apply({"status": "active"})

    def on_stale(self, item: PipelineItem[Any], outcome: Outcome) -> None:
        self.seen.append(f"on_stale: {TENANT.get()}")


async def test_a_pipelines_plain_functions_see_what_was_set_at_its_start(
    database: TemporaryDatabase,
) -> None:
    """Blocking code of a host would work for nobody, or for the tenant of another row."""
    await add(database, Volume(), Volume())
    pipeline = PlainPipeline(workers_num=1)
    TENANT.set("ours")
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [pipeline]):
            TENANT.set("somebody else's")
            await asyncio.to_thread(pipeline.begun.wait, HANG_S_MAX)
            await change(database, pipeline.items[1].row, lock_token=uuid.uuid4(), status="done")
            pipeline.go_on.set()
            await heard.wait_for(events.ItemStale)
    assert pipeline.seen == ["process: ours", "process: ours", "on_stale: ours"]
