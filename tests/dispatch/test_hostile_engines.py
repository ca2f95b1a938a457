"""Engines and provisioners of the host's own: whatever their calls raise ends no event loop, and
passes for no shutdown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from rowlock import PipelineManager
from rowlock.dispatch import (
    COMPLETED,
    FAILED,
    PENDING,
    AttemptEvent,
    Completed,
    DispatchPipeline,
    Heartbeat,
    Task,
    WorkerGone,
    WorkerView,
)
from rowlock.dispatch.engine import Events
from rowlock.dispatch.engines.local import LocalEngine
from rowlock.dispatch.placement import Provisioner
from rowlock.testing import TemporaryDatabase, virtual_time

from .renders import Fleet, Render, Scenes, all_renders, one_render, settled, submit


class Slips:
    """An engine of one worker, of which the step called `slips` is cancelled by nobody.

    Attributes:
        offers: how often it was asked.
        is_gone: its worker dies within each attempt.
    """

    def __init__(self, slips: str, *, is_gone: bool = False) -> None:
        self.slips, self.offers, self.is_gone = slips, 0, is_gone
        self._said = 0

    def workers(self) -> Mapping[str, WorkerView]:
        return {"w1": WorkerView()}

    async def offer(self, worker: str, task: Task[Any]) -> Events:
        self.offers += 1
        self._may_slip("offer")
        self._said = 0
        return self

    def __aiter__(self) -> Slips:
        return self

    async def __anext__(self) -> AttemptEvent:
        self._said += 1
        if self._said == 1:
            return Heartbeat()
        await asyncio.sleep(1)
        self._may_slip("next")
        if self.is_gone:
            raise WorkerGone("w1", "killed")
        return Completed()

    async def aclose(self) -> None:
        self._may_slip("close")

    def _may_slip(self, step: str) -> None:
        if self.slips == step:
            raise asyncio.CancelledError


@virtual_time
async def test_events_that_end_in_a_stray_cancellation_fail_their_row(
    virtual_database: TemporaryDatabase,
) -> None:
    """A stray cancellation would begin its row twice a second."""
    engine = Slips("next")
    renders = DispatchPipeline(Render, handler=Scenes(), engine=engine, dispatch_deadline=60)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        [row] = await settled(virtual_database)
    assert (row.status, engine.offers) == (FAILED, 1)
    assert row.error is not None
    assert row.error.startswith("internal: HostCodeError: ")


@pytest.mark.parametrize("is_gone", [False, True])
@virtual_time
async def test_a_close_that_is_cancelled_fails_no_row(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, is_gone: bool
) -> None:
    """What is done would be failed; or a worker that dies, and whose line cannot be closed either,
    would fail its row for good where it should cost a loss.
    """
    engine = Slips("close", is_gone=is_gone)
    renders = DispatchPipeline(Render, handler=Scenes(), engine=engine, retry_delay=60)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(10)
        row = await one_render(virtual_database)
    expected = (PENDING, 1, None) if is_gone else (COMPLETED, 0, None)
    assert (row.status, row.losses, row.error) == expected
    assert "An attempt failed while it was closed" in caplog.text
    caplog.clear()


@virtual_time
async def test_an_offer_that_is_cancelled_by_nobody_is_a_failed_attempt(
    virtual_database: TemporaryDatabase,
) -> None:
    """A stray cancellation would pass for a shutdown: its row was offered twice a second, and
    nobody counted.
    """
    engine = Slips("offer")
    renders = DispatchPipeline(Render, handler=Scenes(), engine=engine, retry_delay=60)
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(10)
        row = await one_render(virtual_database)
        assert (row.status, row.attempts, engine.offers) == (PENDING, 1, 1)


@virtual_time
async def test_a_provisioner_that_is_cancelled_by_nobody_is_asked_again(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """No machine would be asked for within ten minutes."""
    asked: list[str] = []

    async def provision(key: str) -> None:
        asked.append(key)
        raise asyncio.CancelledError

    renders = DispatchPipeline(
        Render, handler=Scenes(), engine=Fleet(), provision=provision, retry_interval=5
    )
    async with PipelineManager(virtual_database.session_factory, [renders]):
        await submit(virtual_database, renders, "a")
        await asyncio.sleep(60)
        assert [row.status for row in await all_renders(virtual_database)] == [PENDING]
    assert len(asked) > 2
    assert "A worker could not be provisioned" in caplog.text
    caplog.clear()


class CannotBegin(LocalEngine):
    """Workers that need something, and fail for want of it."""

    kind: ClassVar[str] = "cannot-begin"
    needs_something: ClassVar[bool] = True

    async def run(self, worker: str, task: Task[Any]) -> AsyncGenerator[AttemptEvent, None]:
        raise OSError("no room")
        yield Heartbeat()


@virtual_time
async def test_an_attempt_that_fails_before_it_begins_is_the_offers_error() -> None:
    """The worker would be busy for ever."""
    engine = CannotBegin()
    with pytest.raises(OSError, match="no room"):
        await engine.offer("cannot-begin-1", _TASK)
    assert engine.workers()["cannot-begin-1"].active == 0


_TASK: Any = type("AnyTask", (), {"heartbeat_s": 1.0})()


@virtual_time
async def test_a_call_that_ignores_its_cancellation_does_not_hold_up_a_drain(
    virtual_database: TemporaryDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """A deployment would wait for a cloud, for as long as that takes: a purchase that may not be
    left half done.
    """
    bought = asyncio.Event()

    async def provision(_key: str) -> None:
        buying = asyncio.create_task(bought.wait())
        while not buying.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({buying})

    renders = DispatchPipeline(
        Render, handler=Scenes(), engine=Fleet(), provision=provision, cancel_grace=7
    )
    manager = PipelineManager(virtual_database.session_factory, [renders])
    manager.start()
    await submit(virtual_database, renders, "a")
    await asyncio.sleep(5)
    began = asyncio.get_running_loop().time()
    await manager.drain(1)
    assert 7 <= asyncio.get_running_loop().time() - began < 10
    assert "provision ignored its cancellation and was left behind with key a" in caplog.text
    caplog.clear()
    bought.set()
    await asyncio.sleep(1)


@virtual_time
async def test_a_call_that_obeys_is_left_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """Each drain would tell of a call that is over."""
    ends: list[str] = []

    async def provision(key: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(2)
            ends.append(key)

    provisioner = Provisioner(provision, engine=Fleet())
    provisioner.ask("a")
    await asyncio.sleep(1)
    await provisioner.stop(timedelta(seconds=5))
    assert (ends, len(provisioner)) == (["a"], 0)
    assert caplog.text == ""
