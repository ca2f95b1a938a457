"""A node that breaks fails the values inside; the next value gets fresh nodes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rowlock.errors import GraphDeadlockError, GraphError, HostCodeError
from rowlock.graph import Flow, GraphRuntime, NodeStatus, StandingGraph
from rowlock.graph.stock.carriers import DuplicateProcessor
from rowlock.testing import virtual_time

from .scenes import Gate, Heard, custom, doubled, outcomes, settled


def breaking(value: Any) -> NodeStatus | None:
    if value == "break":
        msg = "broken"
        raise RuntimeError(msg)
    return NodeStatus.NEED_CONSUME if value == "stick" else None


class Scene:
    """A graph with a node that can break, and a gate before it."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.built = 0
        self.fails_with: BaseException | None = None
        self.graph = Heard(self.build, name="pages")

    def build(self, flow: Flow[Any]) -> Flow[Any]:
        self.built += 1
        if self.fails_with is not None:
            raise self.fails_with
        return custom(flow.amap(self.passed, lanes=4), breaking)

    async def passed(self, value: Any) -> Any:
        return await self.gate.passed(value) if value == "gated" else value


async def test_a_broken_node_fails_the_values_inside() -> None:
    """One mistake would stop the work of a replica for good, or leave callers waiting."""
    scene = Scene()
    async with scene.graph as graph:
        assert await graph.submit(1) == 1
        inside = [asyncio.create_task(graph.submit("gated")) for _ in range(2)]
        await settled()
        with pytest.raises(RuntimeError, match="broken"):
            await graph.submit("break")
        assert [str(one) for one in await outcomes(inside)] == ["broken"] * 2
        assert scene.gate.cancelled == ["gated"] * 2
        assert (scene.built, scene.graph.rebuilt_after) == (1, [])
        assert await graph.submit(2) == 2
        assert [str(one) for one in scene.graph.rebuilt_after] == ["broken"]
        assert scene.built == 2
        assert await graph.submit(3) == 3
    assert (scene.built, len(scene.graph.rebuilt_after)) == (2, 1)


async def test_nodes_that_wait_for_each_other_are_replaced() -> None:
    """Callers of a deadlocked graph would wait for ever."""
    scene = Scene()
    async with scene.graph as graph:
        with pytest.raises(GraphDeadlockError, match=r"pages.* cannot go on"):
            await graph.submit("stick")
        assert ["custom: NEED_CONSUME" in one.text for one in scene.graph.deadlocks] == [True]
        assert await graph.submit(2) == 2
        assert len(scene.graph.rebuilt_after) == 1


async def test_a_build_that_fails_later_fails_its_caller() -> None:
    """A replica would run without nodes, or end with an exit in the host's function."""
    scene = Scene()
    async with scene.graph as graph:
        with pytest.raises(RuntimeError):
            await graph.submit("break")
        scene.fails_with = SystemExit()
        with pytest.raises(HostCodeError, match="SystemExit"):
            await graph.submit(1)
        scene.fails_with = KeyError("no")
        with pytest.raises(KeyError):
            await graph.submit(1)
        assert scene.graph.rebuilt_after == []
        scene.fails_with = None
        assert await graph.submit(1) == 1
        assert len(scene.graph.rebuilt_after) == 1


def sink(flow: Flow[Any]) -> Any:
    return flow.sink(doubled)


def other_source(flow: Flow[Any]) -> Flow[Any]:
    flow.graph.source([1]).sink(doubled)
    return flow


def with_hook(flow: Flow[Any]) -> Flow[Any]:
    flow.graph.on_end(print)
    return flow


def left_open(flow: Flow[Any]) -> Flow[Any]:
    flow.graph.add([DuplicateProcessor(1)], name="left")
    return flow


def used_twice(flow: Flow[Any]) -> Flow[Any]:
    flow.map(doubled)
    return flow


def of_another(_flow: Flow[Any]) -> Flow[Any]:
    found: list[Flow[Any]] = []
    StandingGraph(lambda flow: found.append(flow) or flow.map(doubled))
    return found[0]


MISTAKES: dict[str, tuple[Any, str]] = {
    "no flow": (lambda _flow: None, "returns the flow that it was given, or one behind it"),
    "another graph's flow": (of_another, "returns the flow that it was given"),
    "a flow with a reader": (used_twice, "has a reader"),
    "a flow without a reader": (left_open, "input 0 of left .* is not connected"),
    "a sink": (sink, r"sink\(\) cannot be used where each value needs a result"),
    "a limit": (lambda flow: flow.limit(3), r"limit\(\) cannot be used"),
    "a filter": (lambda flow: flow.filter(bool), r"filter\(\) cannot be used"),
    "a value dropped": (lambda flow: flow.map(doubled, on_error=print), "on_error cannot be used"),
    "an await dropped": (
        lambda flow: flow.amap(Gate().passed, on_error=print),
        "on_error cannot be used",
    ),
    "a batch that waits": (
        lambda flow: flow.map_batch(list, size=3, name="embed"),
        "embed of 'pages' needs within=",
    ),
    "a batch of parts that waits": (
        lambda flow: flow.fan_out(range, lambda parts: parts.map_batch(list, size=3)),
        "needs within=",
    ),
    "a source": (other_source, "has another source"),
    "a hook": (with_hook, "no hooks"),
}


@pytest.mark.parametrize(("build", "text"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_found_at_construction(build: Any, text: str) -> None:
    """A host would learn of its mistake from the first row, or from rows that never end."""
    with pytest.raises(GraphError, match=text):
        StandingGraph(build, name="pages")


async def test_parts_may_be_dropped() -> None:
    """A filter among the parts of a value would be refused, though its value has a result."""
    async with StandingGraph(
        lambda flow: flow.fan_out(range, lambda parts: parts.filter(lambda part: part % 2))
    ) as graph:
        assert await graph.submit(6) == (6, [1, 3, 5])


def test_a_graph_is_complete_when_it_is_built() -> None:
    """An operator that is added later would never get a value."""
    found: list[Flow[Any]] = []
    StandingGraph(lambda flow: found.append(flow) or flow.map(doubled), name="pages")
    with pytest.raises(GraphError, match="has run"):
        found[0].graph.source([1])


@virtual_time
async def test_a_call_is_not_reported_before_its_time() -> None:
    """Each quick call that happens to run when calls are looked at would be a warning."""
    gate = Gate()
    one = Heard(lambda flow: flow.amap(gate.passed, lanes=2))
    async with one:
        submits = [asyncio.create_task(one.submit(1))]
        await asyncio.sleep(3)
        submits.append(asyncio.create_task(one.submit(2)))
        await asyncio.sleep(3)
        (first, seconds), *others = one.long
        assert (seconds, others) == (5, [])
        await asyncio.sleep(6)
        gate.open()
        await outcomes(submits)
    assert one.long[1:] in ([(first, 10), (1 - first, 7)], [(1 - first, 7), (first, 10)])


@virtual_time
async def test_each_call_of_a_lane_has_its_own_time() -> None:
    """A lane that is busy for an hour with quick calls would look as if one hung."""

    async def quick(value: int) -> int:
        await asyncio.sleep(4)
        return value

    graph = Heard(lambda flow: flow.amap(quick))
    async with graph:
        await asyncio.gather(*map(graph.submit, range(20)))
    assert graph.long == []


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
