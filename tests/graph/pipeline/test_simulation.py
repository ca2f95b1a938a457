"""Rows in a graph under all faults at once: replicas that are killed, frozen and cut off.

``ROWLOCK_GRAPH_SEEDS`` says how many runs are played.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from rowlock import Pipeline

from ...lengths import at_length
from ...simulator.scenario import Scenario, World
from ...simulator.simulation import simulate
from .documents import Document, Ingest, Outside

SEEDS = int(os.environ.get("ROWLOCK_GRAPH_SEEDS", at_length(2, 4)))


class Unreliable(Outside):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    async def step(self, name: str, url: str) -> None:
        random, is_calm = self._world.random, self._world.is_calm
        await asyncio.sleep(0.05 if is_calm else random.choice((0, 0.05, 0.4, 2, 5)))
        self.calls[name, url] += 1
        if not is_calm and random.random() < 0.1:
            raise ConnectionError(name)


class Documents(Scenario):
    """A few documents, and replicas that index them."""

    models = (Document,)
    settle_within = timedelta(minutes=5)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.outside = Unreliable(world)
        self._rows_num = world.random.randint(1, 12)

    def pipelines(self) -> Sequence[Pipeline[Any]]:
        return [
            Ingest(
                self.outside,
                min_processing_interval=0.5,
                lock_timeout=6,
                heartbeat_trigger=3,
                heartbeat_interval=0.4,
                renew_timeout=1,
                fetch_delays=(0.5, 2),
                database_timeout=3,
                process_timeout=20,
                cancel_grace=1,
                retry_delay=0.5,
                retry_delay_max=2,
                max_attempts=100,
                orphaned_after=15,
            )
        ]

    def rows(self) -> Iterable[object]:
        return [Document(id=number, url=f"page-{number}") for number in range(self._rows_num)]

    def check(self) -> None:
        """Each is indexed with its own text and its own vectors."""
        for row in self.world.read(Document):
            assert row.status == "indexed", row.url
            assert row.text == f"text of {row.url}"
            assert self.outside.stored[row.url] == [4, 2, len(row.url)]


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_documents(seed: int) -> None:
    """A row would be lost in a graph, stay leased, or get the result of another."""
    simulate(Documents, seed=seed)
