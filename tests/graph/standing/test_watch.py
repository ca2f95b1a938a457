"""Calls that take long are reported, and their threads replaced once no caller waits for them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rowlock.graph import GraphRuntime, StandingGraph, StandingReports
from rowlock.testing import virtual_time

from .scenes import Gate, outcomes, settled


class LongCalls(StandingReports):
    """Keeps how long calls had run when they were reported."""

    def __init__(self) -> None:
        self.seconds: list[tuple[int, int]] = []

    def call_took_long(self, graph: str, *, operator: str, lane: int, seconds: float) -> None:
        self.seconds.append((lane, round(seconds)))


@virtual_time
async def test_a_call_is_not_reported_before_its_time() -> None:
    """Each quick call that happens to run when calls are looked at would be a warning."""
    gate, reports = Gate(), LongCalls()
    async with StandingGraph(lambda flow: flow.amap(gate.passed, lanes=2), reports=reports) as one:
        submits = [asyncio.create_task(one.submit(1))]
        await asyncio.sleep(3)
        submits.append(asyncio.create_task(one.submit(2)))
        await asyncio.sleep(3)
        (first, seconds), *others = reports.seconds
        assert (seconds, others) == (5, [])
        await asyncio.sleep(6)
        gate.open()
        await outcomes(submits)
    assert reports.seconds[1:] in ([(first, 10), (1 - first, 7)], [(1 - first, 7), (first, 10)])


@virtual_time
async def test_each_call_of_a_lane_has_its_own_time() -> None:
    """A lane that is busy for an hour with quick calls would look as if one hung."""
    reports = LongCalls()

    async def quick(value: int) -> int:
        await asyncio.sleep(4)
        return value

    async with StandingGraph(lambda flow: flow.amap(quick), reports=reports) as graph:
        await asyncio.gather(*map(graph.submit, range(20)))
    assert reports.seconds == []


@pytest.mark.timeout(60, method="thread")
async def test_a_thread_that_no_caller_waits_for_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call that hangs for a row that is lost would keep all other rows from the threads."""
    monkeypatch.setattr("rowlock.graph.standing.LONG_S", 0.01)
    begun, go_on = threading.Event(), threading.Event()
    runtime = GraphRuntime(threads_max=1)

    def work(value: Any) -> Any:
        if value == "hangs":
            begun.set()
            go_on.wait()
        return value

    graph: StandingGraph[Any, Any] = StandingGraph(
        lambda flow: flow.map(work, lanes=2), runtime=runtime
    )
    async with graph:
        hangs = asyncio.create_task(graph.submit("hangs"))
        await asyncio.to_thread(begun.wait)
        waits = asyncio.create_task(graph.submit("waits"))
        await settled()
        assert not waits.done()
        hangs.cancel()
        assert await waits == "waits"
        assert (runtime.abandoned, hangs.done()) == (1, False)
        go_on.set()
        assert [type(one) for one in await outcomes([hangs])] == [asyncio.CancelledError]
