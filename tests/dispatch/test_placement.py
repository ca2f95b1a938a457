"""Tests of who is asked: order, refusals, evictions, and what is not the wing's to judge; and of
the provisioner: asked after an overflow only, within bounds, and its failures harm nobody.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rowlock import NoWorkersAvailable, PipelineManager, SettingsError
from rowlock.dispatch import (
    PENDING,
    Backpressure,
    BackpressureContext,
    Balancer,
    DispatchPipeline,
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
from rowlock.dispatch.placement import COMES_S_MAX, EVICTED_S, Placement, Provisioner
from rowlock.dispatch.settings import PROVISIONS_MAX
from rowlock.testing import TemporaryDatabase, virtual_time

from .renders import Fleet, Render, Scenes, all_renders, settled, submit

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


@virtual_time
async def test_it_is_asked_after_an_overflow_only(virtual_database: TemporaryDatabase) -> None:
    """Each submission would start a machine, whether there is room or not."""
    fleet, asked = Fleet(1), list[str]()

    async def provision(key: str) -> None:
        asked.append(key)
        fleet.hire(1)

    renders = DispatchPipeline(Render, handler=Scenes(20), engine=fleet, provision=provision)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(10)
        assert asked == []
        await submit(virtual_database, renders, "b")
        await asyncio.sleep(10)
        assert asked == ["b"]
        assert fleet.running == 2
        await settled(virtual_database)


@virtual_time
async def test_its_failures_are_logged_and_nothing_else(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A cloud that says no would fail rows that only had to wait."""

    async def provision(_key: str) -> None:
        raise ConnectionError("the cloud is full")

    renders = DispatchPipeline(Render, handler=Scenes(), engine=Fleet(), provision=provision)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(10)
        assert [row.status for row in await all_renders(virtual_database)] == [PENDING]
    assert "A worker could not be provisioned" in caplog.text
    caplog.clear()


@virtual_time
async def test_calls_in_flight_are_bounded() -> None:
    """A flood would start a thousand machines at once."""
    fleet, gate, asked = Fleet(), asyncio.Event(), list[str]()

    async def provision(key: str) -> None:
        asked.append(key)
        await gate.wait()

    provisioner = Provisioner(provision, engine=fleet)
    assert [provisioner.ask("a"), provisioner.ask("a")] == [True, False]
    assert [provisioner.ask(f"{number}") for number in range(PROVISIONS_MAX)] == [True] * (
        PROVISIONS_MAX - 1
    ) + [False]
    await asyncio.sleep(0)
    assert len(asked) == len(provisioner) == PROVISIONS_MAX
    gate.set()
    await asyncio.sleep(0.1)
    assert len(provisioner) == 0
    assert provisioner.ask("another")
    await provisioner.stop(timedelta(seconds=5))
    assert len(provisioner) == 0


@virtual_time
async def test_the_fleet_has_a_cap() -> None:
    """Nobody could say what it may cost."""
    fleet = Fleet(2)

    async def provision(_key: str) -> None:
        await asyncio.sleep(1)

    provisioner = Provisioner(provision, engine=fleet, fleet_cap=3)
    assert [provisioner.ask("a"), provisioner.ask("b")] == [True, False]
    await asyncio.sleep(2)
    fleet.hire(1)
    assert not provisioner.ask("c")
    await provisioner.stop(timedelta(seconds=5))


@virtual_time
async def test_machines_that_are_on_their_way_count() -> None:
    """Calls that return when the machine was asked for would ask for ten machines where two are
    allowed.
    """
    fleet, asked = Fleet(1), list[str]()

    async def provision(key: str) -> None:
        asked.append(key)

    provisioner = Provisioner(provision, engine=fleet, fleet_cap=3)
    answers = []
    for key in ("a", "b", "c"):
        answers.append(provisioner.ask(key))
        await asyncio.sleep(60)
    assert answers == [True, True, False]
    fleet.hire(1)
    assert not provisioner.ask("c"), "two are here, and one is on its way"
    await asyncio.sleep(COMES_S_MAX)
    assert provisioner.ask("c"), "it did not come"
    await asyncio.sleep(1)
    assert asked == ["a", "b", "c"]


@virtual_time
async def test_a_key_is_asked_for_once_until_its_machine_comes() -> None:
    """A row that overflows every two minutes would have three machines started, where each takes
    six minutes to come.
    """
    fleet, asked = Fleet(), list[str]()

    async def provision(key: str) -> None:
        asked.append(key)

    provisioner = Provisioner(provision, engine=fleet)
    assert provisioner.ask("a")
    await asyncio.sleep(120)
    assert not provisioner.ask("a")
    fleet.hire(1)
    assert provisioner.ask("a"), "the machine has come, and somebody else has it"


@virtual_time
async def test_one_that_said_no_is_asked_again() -> None:
    """A cloud that is full for a moment would be taken for one that has promised."""
    answers = iter([ConnectionError("full"), None])

    async def provision(_key: str) -> None:
        if (answer := next(answers)) is not None:
            raise answer

    provisioner = Provisioner(provision, engine=Fleet(), fleet_cap=1)
    assert provisioner.ask("a")
    await asyncio.sleep(1)
    assert provisioner.ask("a")
    await asyncio.sleep(1)
    assert not provisioner.ask("b")


@virtual_time
async def test_a_worker_that_was_out_of_sight_is_no_new_machine() -> None:
    """Each hiccup of the discovery would have as many machines started as it has hidden."""
    fleet, asked = Fleet(1), list[str]()

    async def provision(key: str) -> None:
        asked.append(key)

    provisioner = Provisioner(provision, engine=fleet, fleet_cap=2)
    assert provisioner.ask("a")
    fleet.dismiss_all()
    assert not provisioner.ask("a")
    fleet.hire(1)
    assert not provisioner.ask("b"), "worker-1 is back, and one more is on its way"
