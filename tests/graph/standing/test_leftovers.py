"""Nothing of a value is kept when its caller has returned."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from rowlock.graph import Flow, GraphRuntime, StandingGraph

from ..runs import count_references
from .scenes import Gate, settled


class Value:
    """A value that can be referred to weakly."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


@pytest.fixture
def without_collector() -> Iterator[None]:
    """Have nothing collected but by its count of references."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def called(value: Value) -> Value:
    if value.kind == "fails":
        raise ValueError(value)
    return Value(value.kind)


async def awaited(value: Value) -> Value:
    await asyncio.sleep(0)
    if value.kind == "waits":
        await asyncio.Event().wait()
    return called(value)


async def shared(values: Sequence[Value]) -> list[Value]:
    await asyncio.sleep(0)
    return [called(value) for value in values]


def parts(value: Value) -> Iterator[Value]:
    yield from (value, value)


BUILDS: dict[str, Any] = {
    "loop": lambda flow: flow.map(called, on="loop"),
    "thread": lambda flow: flow.map(called),
    "task": lambda flow: flow.amap(awaited),
    "shared": lambda flow: flow.amap_batch(shared, size=1, within=1),
    "parts": lambda flow: flow.fan_out(parts, lambda inside: inside.amap(awaited)).map(
        lambda found: found[1][0], on="loop"
    ),
    "order": lambda flow: flow.amap(awaited, lanes=2, keep_order=True),
    "key": lambda flow: flow.amap(awaited, lanes=2, keep_order=lambda value: value.kind),
}


async def submitted(graph: StandingGraph[Value, Value], kind: str) -> list[weakref.ref[Value]]:
    """Submit a value, and return references to it and to its result."""
    value = Value(kind)
    found = [weakref.ref(value)]
    submit = asyncio.create_task(graph.submit(value))
    del value
    if kind == "waits":
        await settled()
        submit.cancel()
    await asyncio.wait([submit])
    if not submit.cancelled() and submit.exception() is None:
        found.append(weakref.ref(submit.result()))
    return found


async def at_rest(runtime: GraphRuntime) -> None:
    """Wait until threads and loop have nothing to do: on a starved machine a thread may still have
    its value long after the caller has returned.
    """
    for _ in range(3):
        while len(runtime._sleepers) < runtime.threads:  # noqa: ASYNC110  # threads have no event
            await asyncio.sleep(0)
        await settled()


@pytest.mark.parametrize("kind", ["passes", "fails", "waits"])
@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
@pytest.mark.usefixtures("without_collector")
async def test_nothing_keeps_a_value(build: Any, kind: str) -> None:
    """A replica would keep the last bodies of each operator in memory for as long as it runs."""

    runtime = GraphRuntime()
    async with StandingGraph[Any, Any](build, runtime=runtime) as graph:
        found = await submitted(graph, kind)
        await at_rest(runtime)
        count_references()
        assert [one() for one in found] == [None] * len(found)


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
@pytest.mark.usefixtures("without_collector")
async def test_nothing_keeps_a_context(build: Any) -> None:
    """What a caller has in its context variables, a session say, would stay with each lane."""

    async def call(graph: StandingGraph[Value, Value]) -> weakref.ref[Value]:
        in_context = Value("context")
        carried.set(in_context)
        await graph.submit(Value("passes"))
        return weakref.ref(in_context)

    carried = ContextVar[Value]("carried")
    async with StandingGraph(build) as graph:
        found = await asyncio.create_task(call(graph))
        for _ in range(100_000):  # a thread may be slow to let go
            await asyncio.sleep(0)
            if found() is None:
                break
        assert found() is None


class Loud:
    """A value with code of the host that runs when it is dropped."""

    def __init__(self, flow: Flow[Any], seen: list[bool]) -> None:
        self.flow = flow
        self.seen = seen

    def __del__(self) -> None:
        self.seen.append(self.flow.graph.changes.asked is None)


async def test_no_value_is_dropped_under_the_mutex() -> None:
    """Code of the host that waits would stop the graph, or deadlock with it."""
    flows: list[Flow[Any]] = []
    seen: list[bool] = []

    async def passed(value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    def build(flow: Flow[Any]) -> Flow[Any]:
        flows.append(flow)
        return flow.amap(passed, lanes=2).buffer(2).amap_batch(shared_any, size=3, within=0.01)

    async def shared_any(values: Sequence[Any]) -> Sequence[Any]:
        await asyncio.sleep(0)
        return values

    async with StandingGraph(build) as graph:
        for steps in range(40):
            submits = [asyncio.create_task(graph.submit(Loud(flows[0], seen))) for _ in range(5)]
            for _ in range(steps % 20):
                await asyncio.sleep(0)
            for submit in submits[::2]:
                submit.cancel()
            await asyncio.gather(*submits, return_exceptions=True)
            del submits
    assert len(seen) > 150
    assert all(seen)


async def test_a_value_that_waits_outside_is_forgotten() -> None:
    """A full graph would keep the bodies of all callers that were cancelled meanwhile."""
    gate = Gate()
    async with StandingGraph[Any, Any](lambda flow: flow.amap(gate.passed)) as graph:
        inside = [asyncio.create_task(graph.submit(number)) for number in range(graph.capacity)]
        await settled()
        (found,) = await submitted(graph, "waits")
        await settled()
        assert found() is None
        assert not any(one.done() for one in inside)
        gate.open()
        await asyncio.gather(*inside)


async def test_a_late_result_is_not_dropped_under_the_mutex() -> None:
    """Code of the host that waits would stop the graph, or deadlock with it."""
    flows: list[Flow[Any]] = []
    seen: list[bool] = []
    begun, go_on = threading.Event(), threading.Event()

    def late(_value: Any) -> Loud:
        begun.set()
        go_on.wait()
        return Loud(flows[0], seen)

    def build(flow: Flow[Any]) -> Flow[Any]:
        flows.append(flow)
        return flow.map(late)

    async with StandingGraph(build) as graph:
        submit = asyncio.create_task(graph.submit(1))
        await asyncio.to_thread(begun.wait)
        submit.cancel()
        await settled()
        go_on.set()
        await asyncio.wait([submit])
        # Kept: its caller may drop it at any time, such as while a thread has the mutex.
        kept = await graph.submit(2)
    count_references()
    assert kept
    assert seen == [True]
