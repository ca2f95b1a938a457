"""Tests of the provisioner: asked after an overflow only, within bounds, and its failures harm
nobody.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from rowlock import PipelineManager
from rowlock.dispatch import PENDING, DispatchPipeline
from rowlock.dispatch.placement import COMES_S_MAX, Provisioner
from rowlock.dispatch.settings import PROVISIONS_MAX
from rowlock.testing import TemporaryDatabase, virtual_time

from .renders import Fleet, Render, Scenes, all_renders, settled, submit


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
