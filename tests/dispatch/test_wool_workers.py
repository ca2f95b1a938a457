"""Workers of wool that come, freeze, die and are stopped, as the engine sees it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import wool

from rowlock.dispatch import Completed, WorkerGone
from rowlock.dispatch.engines import wool as wool_line
from rowlock.dispatch.engines.wool import WoolEngine

from ..host import HANG_S_MAX
from . import handlers
from .test_engines import heard, task_of, until
from .test_engines_own import falls_silent
from .wool_farm import farm
from .wool_scene import heard_until_progress, offered, offering, opened

# Now and then its loop ends without what it does at the end of a task, and the stream stays open
# for as long as the worker has to end. A pipeline hears no beats and gives the worker up.
UNTOLD = pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="wool may not tell of a stopped worker if nobody waits for its next event",
)


async def test_a_worker_that_is_killed_is_noticed(tmp_path: Path) -> None:
    """An attempt whose worker is gone would hang until its time limit."""
    name = f"rowlock-{uuid.uuid4().hex}"
    with farm(name, workers=1) as [victim]:
        async with opened(name, workers=1) as engine:
            async with offering(engine, handlers.waits, tmp_path) as events:
                await heard_until_progress(events)
                os.kill(victim, signal.SIGKILL)
                with pytest.raises(WorkerGone, match="connection broke"):
                    await heard(events)
            with pytest.raises(WorkerGone):
                await offered(engine, handlers.works)


async def test_a_worker_that_stands_still_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen machine would hold whoever offers it something, and be taken for one that works."""
    name = f"rowlock-{uuid.uuid4().hex}"
    with farm(name, workers=1, threshold=2) as [frozen]:
        async with opened(name, workers=1) as engine:
            task = task_of(handlers.waits, tmp_path, heartbeat_s=0.05)
            async with aclosing(await engine.offer(min(engine.workers()), task)) as events:
                await heard_until_progress(events)
                monkeypatch.setattr(wool_line, "OFFER_S_MAX", 1.0)
                os.kill(frozen, signal.SIGSTOP)
                try:
                    assert await falls_silent(events, silence_s=1.0)
                    with pytest.raises(WorkerGone, match="DEADLINE"):
                        async with asyncio.timeout(HANG_S_MAX):
                            await offered(engine, handlers.works)
                finally:
                    os.kill(frozen, signal.SIGCONT)


@pytest.mark.parametrize("waited_for", [True, pytest.param(False, marks=UNTOLD)])
async def test_a_worker_that_is_stopped_is_gone(tmp_path: Path, waited_for: bool) -> None:
    """The end of a worker would look like a cancellation, which ends the pipeline's own task."""
    name = f"rowlock-{uuid.uuid4().hex}"
    with farm(name, workers=1) as [leaving]:
        async with (
            opened(name, workers=1) as engine,
            offering(engine, handlers.waits, tmp_path) as events,
        ):
            await heard_until_progress(events)
            rest = asyncio.create_task(heard(events))
            if waited_for:
                await until((tmp_path / "gone on").exists)
            os.kill(leaving, signal.SIGTERM)
            with pytest.raises(WorkerGone):
                await rest


async def test_workers_that_come_later_are_seen_and_those_that_leave_are_not(
    namespace: str,
) -> None:
    """A fleet could not grow while the service runs, or shrink."""
    async with opened(namespace) as engine:
        with farm(namespace, workers=1) as [late]:
            await until(lambda: len(engine.workers()) == 3)
            found = set()
            for worker in engine.workers():
                async with aclosing(await engine.offer(worker, task_of(handlers.works))) as events:
                    *_, last = await heard(events)
                    assert isinstance(last, Completed)
                    found.add(last.values["pid"])
            assert late in found
        await until(lambda: len(engine.workers()) == 2)


async def test_a_discovery_that_fails_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    """After one error, or when it was opened too early, an engine would never again see a worker
    come.
    """
    monkeypatch.setattr("rowlock.dispatch.engines.wool.DISCOVER_AGAIN_S", 0.01)

    class Shaky:
        asked = 0

        @property
        def subscriber(self) -> Any:
            Shaky.asked += 1
            if Shaky.asked < 3:
                raise FileNotFoundError("not yet")
            return wool.LocalDiscovery(namespace).subscriber

    async with WoolEngine(Shaky()) as engine:
        await until(lambda: len(engine.workers()) == 2)
    assert Shaky.asked == 3
