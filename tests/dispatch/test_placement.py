"""Tests of who is asked: order, refusals, evictions, and what is not the wing's to judge."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rowlock import NoWorkersAvailable, SettingsError
from rowlock.dispatch import (
    Backpressure,
    BackpressureContext,
    Balancer,
    LeastBusy,
    PriorityLoadBalancer,
    RoundRobin,
    Task,
    TaskCountBackpressure,
    WorkerBusy,
    WorkerGone,
    WorkerView,
)
from rowlock.dispatch.engine import Events
from rowlock.dispatch.placement import EVICTED_S, Placement
from rowlock.testing import virtual_time

TASK: Task[Any] = Task(
    id=1,
    attempt=1,
    nonce="",
    row=None,
    workdir=Path(),
    stages={},
    handler=lambda _: iter(()),
    heartbeat_s=1,
)


class Desk:
    """An engine that answers as it is told, and notes who was asked."""

    def __init__(self, **answers: object) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def workers(self) -> Mapping[str, WorkerView]:
        return {worker: WorkerView(len(worker)) for worker in self.answers}

    async def offer(self, worker: str, task: Task[Any]) -> Events:
        self.asked.append(worker)
        answer: Any = self.answers[worker]
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]


@virtual_time
async def test_the_first_in_order_is_asked_first_each_time() -> None:
    """Load would spread over all workers, and none would ever be idle enough to end."""
    desk = Desk(c="c", a="a", b="b")
    placement = Placement(desk, PriorityLoadBalancer())  # type: ignore[arg-type]
    for _ in range(3):
        assert await placement.place(TASK) == ("a", "a")
    assert desk.asked == ["a"] * 3


@virtual_time
async def test_a_refusal_goes_on_to_the_next() -> None:
    """One busy worker would keep all work waiting."""
    desk = Desk(a=WorkerBusy("a"), b=WorkerBusy("b"), c="c")
    placement = Placement(desk, PriorityLoadBalancer())  # type: ignore[arg-type]
    for _ in range(2):
        assert await placement.place(TASK) == ("c", "c")
    # A refusal is for once: it is asked again the next time.
    assert desk.asked == ["a", "b", "c"] * 2


@virtual_time
async def test_a_worker_that_is_gone_is_not_asked_for_a_while() -> None:
    """Each offer would wait for a dead machine; or one that came back would never be asked
    again.
    """
    desk = Desk(a=WorkerGone("a", "no route"), b="b")
    placement = Placement(desk, PriorityLoadBalancer())  # type: ignore[arg-type]
    for _ in range(3):
        assert (await placement.place(TASK))[0] == "b"
    assert desk.asked == ["a", "b", "b", "b"]
    await asyncio.sleep(EVICTED_S + 1)
    desk.answers["a"] = "a"
    assert (await placement.place(TASK))[0] == "a"


@virtual_time
@pytest.mark.parametrize("error", [ValueError("a slip"), KeyError("x")], ids=repr)
async def test_anything_else_is_not_ours_to_judge(error: BaseException) -> None:
    """A slip in an engine would look like a fleet that is busy."""
    placement = Placement(Desk(a=error, b="b"), PriorityLoadBalancer())  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        await placement.place(TASK)


@virtual_time
async def test_nobody() -> None:
    """An overflow could not be told from a placement."""
    with pytest.raises(NoWorkersAvailable, match="there is no worker") as nobody:
        await Placement(Desk(), PriorityLoadBalancer()).place(TASK)  # type: ignore[arg-type]
    assert nobody.value.asked == 0
    busy = Desk(a=WorkerBusy("a"), b=WorkerGone("b"))
    with pytest.raises(NoWorkersAvailable, match="none of 2 workers accepted") as nobody:
        await Placement(busy, PriorityLoadBalancer()).place(TASK)  # type: ignore[arg-type]
    assert nobody.value.asked == 2


@pytest.mark.parametrize(
    ("balancer", "orders"),
    [
        (PriorityLoadBalancer(), ["abc", "abc", "abc", "abc"]),
        (RoundRobin(), ["abc", "bca", "cab", "abc"]),
        (LeastBusy(), ["bca", "bca", "bca", "bca"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_orders(balancer: Balancer, orders: list[str]) -> None:
    """A balancer would leave workers out, or ask one twice."""
    workers = {"c": WorkerView(1), "a": WorkerView(2), "b": WorkerView(0)}
    assert ["".join(balancer.order(workers)) for _ in orders] == orders
    assert list(balancer.order({})) == []


@pytest.mark.parametrize(("threshold", "refused_from"), [(0, None), (1, 1), (3, 3)])
def test_backpressure(threshold: int, refused_from: int | None) -> None:
    """A worker would take one task too many, or none."""
    hook: Backpressure = pickle.loads(pickle.dumps(TaskCountBackpressure(threshold)))
    refusals = [hook(BackpressureContext(active)) for active in range(6)]
    assert refusals == [refused_from is not None and active >= refused_from for active in range(6)]


@pytest.mark.parametrize("threshold", [-1, 10_001, 1.5, "1"])
def test_a_threshold_that_is_none_is_refused(threshold: Any) -> None:
    """A slip would switch backpressure off, without a word."""
    with pytest.raises(SettingsError, match="0 \\(refuse nothing\\) to"):
        TaskCountBackpressure(threshold)


def test_refusals_of_workers_travel() -> None:
    """A refusal could not come back from another process."""
    for refusal in (WorkerGone("a", "no route"), WorkerBusy("a")):
        again = pickle.loads(pickle.dumps(refusal))
        assert (type(again), str(again)) == (type(refusal), str(refusal))


@virtual_time
async def test_room_that_is_freed_during_the_offers_is_not_forgotten() -> None:
    """A worker that fell idle while the others were asked would stay idle for a whole interval,
    with a row that waits.
    """

    class Busy(Desk):
        async def offer(self, worker: str, task: Task[Any]) -> Events:
            if worker == "b":
                placement.capacity.freed()
            return await super().offer(worker, task)

    busy = Busy(a=WorkerBusy("a"), b=WorkerBusy("b"))
    placement = Placement(busy, PriorityLoadBalancer())  # type: ignore[arg-type]
    placement.capacity.look(busy.workers())
    with pytest.raises(NoWorkersAvailable):
        await placement.place(TASK)
    assert placement.capacity.look(busy.workers()) == 1
    del busy.answers["b"]
    with pytest.raises(NoWorkersAvailable):
        await placement.place(TASK)
    assert placement.capacity.look(busy.workers()) == 0
