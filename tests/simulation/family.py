"""Fleets of instances of jobs, mounts that share volumes, and their services, on whole managers.

The one idea: what the attempts do is drawn in ``pipelines.py``; what happens to the replicas is
`tests/simulator`'s business. What each attempt had in mind is judged in ``verdict.py``; what
becomes of leases, by the simulation itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from rowlock import Pipeline

from ..simulator.scenario import Scenario, World
from .book import Book, Place
from .pipelines import (
    Director,
    FleetPipeline,
    InstancePipeline,
    JobGraphPipeline,
    JobPipeline,
    MountPipeline,
    SimulatedPipeline,
    VolumeGraphPipeline,
    VolumePipeline,
)
from .services import Services
from .tables import MODELS, TABLES, WATCHED, Fleet, Instance, Job, Mount, orphans
from .verdict import judge_writes, noted

LEVELS: Final = (FleetPipeline, InstancePipeline, JobPipeline)
SHARING: Final = (MountPipeline, VolumePipeline)
KINDS: Final = ((*LEVELS,), LEVELS[:2], LEVELS[1:], SHARING, SHARING, (*LEVELS, *SHARING))
"""Which pipelines work beside each other."""
IN_GRAPHS: Final[dict[type[SimulatedPipeline], type[SimulatedPipeline]]] = {
    JobPipeline: JobGraphPipeline,
    VolumePipeline: VolumeGraphPipeline,
}
GRAPHS_EVERY: Final = 5
"""In each fifth run rows pass through graphs."""
RESTS_S: Final = (0, 0.02, 0.3, 1, 3)
CALM_S_MAX: Final = 60.0
"""How long a service goes on at most. **Unit** virtual seconds."""


class Family(Scenario):
    """Pipelines that lock each other's rows, and services that hold, change and delete them."""

    models = tuple(MODELS.values())
    watched = dict.fromkeys(MODELS.values(), WATCHED)

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.book = WorldBook(world)
        self.director = Director(world.random, self.book, self._exists, lambda: world.is_calm)
        self.kinds = with_graphs(world.random.choice(KINDS), world.seed)
        self.drawn = draw_rows(world.random, self.kinds)
        self.service = Services(self.book)
        self._asked = 0

    def pipelines(self) -> Sequence[Pipeline[Any]]:
        process = self.world.process
        built = [
            kind("nobody" if process is None else process.name, self.director)
            for kind in self.kinds
        ]
        for pipeline in built:
            if process is not None:
                pipeline.is_gone = lambda: not process.is_running
        return built

    def rows(self) -> Iterable[object]:
        return [MODELS[table](**row) for table in TABLES for row in self.drawn.get(table, ())]

    def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """One that asks and one that deletes, so that the order of what they did is known, and
        some that hold rows.
        """
        holding = self.world.random.randint(0, 3)
        return [self.ask, self.remove, *[self.hold] * holding]

    async def ask(self) -> None:
        await self._now_and_then(self._ask_once, most=4)

    async def remove(self) -> None:
        await self._now_and_then(
            lambda: self.service.remove(self.world.session_factory, self._any_place()), most=1
        )

    async def hold(self) -> None:
        await self._now_and_then(self._hold_once, most=2)

    def always(self) -> None:
        for table, key, owner in orphans(self.world.file):
            raise AssertionError(
                f"{table} {key} is locked by {owner}, which holds no main row under that token"
            )

    def check(self) -> None:
        judge_writes(self.book, noted(self.world.file), self.service)

    async def _now_and_then(
        self, act: Callable[[], Coroutine[Any, Any, None]], *, most: int
    ) -> None:
        random = self.world.random
        for _ in range(random.randint(0, most)):
            await asyncio.sleep(random.choice(RESTS_S))
            async with asyncio.timeout(CALM_S_MAX):
                await act()

    async def _ask_once(self) -> None:
        self._asked += 1
        await self.service.ask(self.world.session_factory, self._any_place(), self._asked)

    async def _hold_once(self) -> None:
        random, process = self.world.random, self.world.process
        assert process is not None
        table = random.choice(sorted(self.drawn))
        count = min(len(self.drawn[table]), random.choice((1, 1, 2)))
        places = [(table, row["id"]) for row in random.sample(self.drawn[table], count)]
        alive = partial(getattr, process, "is_running")
        wait_s, hold_s = random.choice((0, 1, 4)), random.choice((0, 0.5, 4))
        await self.service.hold(
            self.world.session_factory, places, alive, wait_s=wait_s, hold_s=hold_s
        )

    def _any_place(self) -> Place:
        table = self.world.random.choice(sorted(self.drawn))
        return table, self.world.random.choice(self.drawn[table])["id"]

    def _exists(self, table: str, column: str, value: int) -> set[Place]:
        found = self.world.file.execute(f"SELECT id FROM {table} WHERE {column} = ?", (value,))
        return {(table, key) for (key,) in found}


class WorldBook(Book):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def note(self, text: str) -> None:
        self._world.note(text)

    def wrong(self, text: str) -> None:
        self._world.wrong(text)


def with_graphs(
    kinds: tuple[type[SimulatedPipeline], ...], seed: int
) -> tuple[type[SimulatedPipeline], ...]:
    """Return the pipelines of a run: in some, those whose rows pass through graphs."""
    return kinds if seed % GRAPHS_EVERY else tuple(IN_GRAPHS.get(kind, kind) for kind in kinds)


def draw_rows(rng: Random, kinds: tuple[type[Any], ...]) -> dict[str, list[dict[str, int]]]:
    """Return a few rows for the pipelines of `kinds`, by table."""
    rows: dict[str, list[dict[str, int]]] = {}
    models = {kind.model for kind in kinds}
    if Instance in models:
        fleets = rng.randint(1, 2)
        instances = [
            {"id": n, "fleet_id": rng.randint(1, fleets)} for n in range(1, rng.randint(2, 3) + 1)
        ]
        rows["instances"] = instances
        if Fleet in models:
            rows["fleets"] = [{"id": n} for n in range(1, fleets + 1)]
        if Job in models:
            rows["jobs"] = [
                {"id": n, "instance_id": rng.choice(instances)["id"]}
                for n in range(1, rng.randint(2, 4) + 1)
            ]
    if Mount in models:
        rows["volumes"] = [{"id": 1}]
        rows["mounts"] = [{"id": n, "volume_id": 1} for n in (1, 2)]
    return rows
