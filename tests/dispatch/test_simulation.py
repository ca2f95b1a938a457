"""The wing under all faults at once: replicas that are killed, frozen, cut off, with workers
that come, go and die.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import pytest

from rowlock import AdmissionRejected
from rowlock.dispatch import (
    COMPLETED,
    FAILED,
    AttemptEvent,
    Completed,
    DispatchPipeline,
    Failed,
    Progress,
    StageDone,
    Task,
    WorkerGone,
)

from ..lengths import at_length
from ..simulator.scenario import Scenario, World
from ..simulator.simulation import simulate
from .renders import Fleet, Render

SEEDS = int(os.environ.get("ROWLOCK_RENDER_SEEDS", at_length(2, 3)))
KEYS = [f"scene-{number}" for number in range(6)]
CEILING = 5


class Renders(Scenario):
    """Clients submit more than the ceiling allows; handlers are slow, fail, and lose their
    workers.
    """

    models = (Render,)
    settle_within = timedelta(minutes=10)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.admitted: Counter[str] = Counter()
        self.begun: Counter[str] = Counter()

    def pipelines(self) -> Sequence[DispatchPipeline[Any]]:
        return [
            DispatchPipeline(
                Render,
                handler=self.render,
                engine=Fleet(2),
                max_active=CEILING,
                retry_interval=3,
                dispatch_deadline=900,
                time_limit=60,
                heartbeat=1,
                max_losses=30,
                lock_timeout=6,
                heartbeat_trigger=3,
                heartbeat_interval=0.4,
                renew_timeout=1,
                fetch_delays=(0.5, 2),
                database_timeout=3,
                cancel_grace=1,
                retry_delay=0.5,
                retry_delay_max=2,
                orphaned_after=15,
                workers_num=4,
            )
        ]

    async def render(self, task: Task[Render]) -> AsyncIterator[AttemptEvent]:
        """Make a picture in two stages, if nothing comes between."""
        self.begun[task.row.dedup_key] += 1
        draw = self.world.random.random
        [row] = [row for row in self.world.read(Render) if row.id == task.id]
        assert set(row.stages) <= set(task.stages), "a stage that was recorded is done again"
        if not task.is_done("raw"):
            await asyncio.sleep(0.1 if self.world.is_calm else draw() * 5)
            yield StageDone("raw", self.begun[task.row.dedup_key])
        yield Progress("half")
        await asyncio.sleep(0.1 if self.world.is_calm else draw() * 5)
        if not self.world.is_calm and draw() < 0.15:
            raise WorkerGone("worker", "drawn")
        if not self.world.is_calm and draw() < 0.05:
            yield Failed("input", "drawn")
        yield Completed({"url": task.nonce})

    def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return [self.client, self.client]

    async def client(self) -> None:
        """Submit again and again, and count what was taken."""
        [renders] = self.pipelines()
        for _ in range(20):
            key = self.world.random.choice(KEYS)
            try:
                async with self.world.session_factory() as session:
                    row, fresh = await renders.submit(session, dedup_key=key, scene=key)
                    await session.commit()
                if fresh:
                    self.admitted[key] += 1
                    self.world.note("submitted", row=row)
            except AdmissionRejected:
                self.world.note("refused")
            await asyncio.sleep(self.world.random.random())

    def always(self) -> None:
        """One active row for a key, and no more than the ceiling and those who submit beside
        each other.
        """
        rows = self.world.read(Render)
        active = Counter(row.dedup_key for row in rows if row.status in ("pending", "running"))
        assert max(active.values(), default=0) <= 1, f"a key is active twice: {active}"
        assert active.total() <= CEILING + 1, f"{active.total()} are active"

    def check(self) -> None:
        """Everything that was taken has come to an end, and says so."""
        rows = self.world.read(Render)
        assert Counter(row.dedup_key for row in rows) >= self.admitted
        for row in rows:
            assert row.status in (COMPLETED, FAILED)
            assert row.finished_at is not None
            assert (row.status == COMPLETED) == (row.url is not None) == (row.error is None), (
                row.url,
                row.error,
            )
            expected = row.error is None or row.error.startswith(("input: ", "heartbeat lost: "))
            assert expected or is_of_host(row.error), row.error


def is_of_host(error: str) -> bool:
    """Whether a host's own code, such as `also`, raised what the fault has it raise: then the row
    has to end so, and say it.
    """
    return error.startswith("internal: HostCodeError: ") and "the host's own, in hooks" in error


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_renders(seed: int) -> None:
    """What was taken would be lost, done twice, or never come to an end."""
    simulate(Renders, seed=seed)
