"""One schedule: a random disturbance of everything at once, then calm, in which all must settle in
a bounded time.

The one idea: whatever happens is drawn from one number, on a loop whose time is virtual, with a
database that runs in the loop; so the number replays it. Two replicas with an engine each work on a
few rows, while services hold, change and delete them, replicas are killed between any two
statements, shut down, or lose their line to the database for a while.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from rowlock.testing import DatabaseClock

from .book import Book, Place
from .line import Exchange, Line
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
from .replicas import GRACES_S, Replica, SteppedReplica
from .services import Services
from .tables import Fleet, Instance, Job, Mount, fill, orphans
from .verdict import judge, unsettled

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
TICK_S: Final = 0.3
SETTLE_S_MAX: Final = 60.0
"""In what time all must have settled once the disturbance is over. The longest way there: an
attempt that hangs (12 s) and ignores its cancellation (1 s) leaves its lease behind (6 s),
nobody comes back for it, and a sweep clears it (15 s and a period of 15 s, with jitter).
**Unit** virtual seconds.
"""
GHOST_S: Final = 15.0
"""How long a process that ignores its cancellation goes on. **Unit** virtual seconds."""


@dataclass(slots=True)
class Ground:
    """What schedules are played on, one after the other.

    Attributes:
        file: a connection of the judge's own.
        clock: the database's time, which follows the loop's.
        exchanges: engines that nobody uses now.
    """

    file: sqlite3.Connection
    clock: DatabaseClock
    exchanges: list[Exchange]


class Schedule:
    """Plays what was drawn from `seed`.

    Attributes:
        book: what happened.
    """

    def __init__(self, seed: int, ground: Ground) -> None:
        self.book = Book()
        self._ground = ground
        self._rng = rng = Random(seed)
        self._director = Director(rng, self.book, self._exists)
        self._services = Services(self.book)
        self._lives: list[Replica] = []
        self._busy: list[Exchange] = []
        self._asked = 0
        self._kinds = with_graphs(rng.choice(KINDS), seed)
        self._rows = draw_rows(rng, self._kinds)

    async def play(self) -> None:
        random.seed(self._rng.random())
        fill(self._ground.file, self._rows, self._ground.clock.now)
        for _ in range(2):
            self._new_life()
        actions = self._actions()
        weights = [weight for weight, _ in actions]
        for _ in range(self._rng.randint(5, 14)):
            _, act = self._rng.choices(actions, weights)[0]
            await act()
        await self._settle()
        await self._end()
        judge(self.book, self._ground.file, self._services)

    def _actions(self) -> list[tuple[float, Callable[[], Awaitable[None]]]]:
        return [
            (8, self._fetch),
            (5, self._wait),
            (1.5, self._hold),
            (1, self._ask),
            (0.5, self._remove),
            (0.5, self._kill),
            (1.2, self._kill_soon),
            (0.6, self._shut_down),
            (0.7, self._cut),
            (0.4, self._lose_answer),
            (0.4, self._sweep),
        ]

    async def _fetch(self) -> None:
        replica, index = self._any_alive(), self._rng.randrange(len(self._kinds))
        self.book.note(f"{replica.name} fetches for {self._kinds[index].__name__}")
        await replica.fetch(index)

    async def _wait(self) -> None:
        await asyncio.sleep(self._rng.choice((0, 0.02, 0.3, 1, 3, 7)))

    async def _hold(self) -> None:
        table = self._rng.choice(sorted(self._rows))
        count = min(len(self._rows[table]), self._rng.choice((1, 1, 2)))
        places = [(table, row["id"]) for row in self._rng.sample(self._rows[table], count)]
        exchange = self._exchange()
        if self._rng.random() < 0.3:
            exchange.line.die_in(self._rng.randint(4, 16), lambda: self.book.note("a service died"))
        wait_s, hold_s = self._rng.choice((0, 1, 4)), self._rng.choice((0, 0.5, 4))
        line, sessions = exchange.line, exchange.session_factory
        holding = self._services.hold(
            sessions, places, lambda: not line.is_cut, wait_s=wait_s, hold_s=hold_s
        )
        self._services.start(holding, name="hold")

    async def _ask(self) -> None:
        self._asked += 1
        await self._services.ask(self._exchange().session_factory, self._any_place(), self._asked)

    async def _remove(self) -> None:
        await self._services.remove(self._exchange().session_factory, self._any_place())

    async def _kill(self) -> None:
        replica = self._any_alive()
        self.book.note(f"{replica.name} is killed")
        replica.die()
        self._new_life()

    async def _kill_soon(self) -> None:
        replica, statements = self._any_alive(), self._rng.randint(0, 12)
        self.book.note(f"{replica.name} will die after {statements} statements")
        loop = asyncio.get_running_loop()
        replica.line.die_in(statements, lambda: loop.call_soon(self._died, replica))

    def _died(self, replica: Replica) -> None:
        self.book.note(f"{replica.name} dies")
        replica.die()

    async def _shut_down(self) -> None:
        replica, grace_s = self._any_alive(), self._rng.choice(GRACES_S)
        self.book.note(f"{replica.name} is shut down, with a grace of {grace_s} s")
        replica.shut_down(grace_s)
        self._new_life()

    async def _cut(self) -> None:
        replica, seconds = self._any_alive(), self._rng.choice((0.1, 1, 7))
        self.book.note(f"{replica.name} cannot reach the database for {seconds} s")
        replica.line.is_cut = True
        asyncio.get_running_loop().call_later(seconds, self._heal, replica)

    def _heal(self, replica: Replica) -> None:
        if not any(pipeline.is_dead for pipeline in replica.pipelines):
            replica.line.recover()

    async def _lose_answer(self) -> None:
        replica = self._any_alive()
        self.book.note(f"{replica.name} will not hear of its next commit")
        replica.line.loses_answer = True

    async def _sweep(self) -> None:
        await self._any_alive().sweep(self._rng.randrange(len(self._kinds)))

    async def _settle(self) -> None:
        """Wait until nothing is left to do and no lock column is set; nobody disturbs any more."""
        self.book.note("the disturbance is over")
        self._director.is_calm = True
        for replica in self._lives:
            self._heal(replica)
        while len(self._alive()) < 2:
            self._new_life()
        loop = asyncio.get_running_loop()
        ends_at, pause_s, sweeps_at = loop.time() + SETTLE_S_MAX, TICK_S, loop.time()
        while left := unsettled(self._ground.file):
            if loop.time() > ends_at:
                self.book.wrong(f"after {SETTLE_S_MAX:g} s these have not settled: {left}")
                return
            replica = self._any_alive()
            for index, kind in enumerate(self._kinds):
                if any(place == kind.model.__tablename__ for place, *_ in left):
                    await replica.fetch(index)
            if loop.time() >= sweeps_at + 15:
                sweeps_at = loop.time()
                for index in range(len(self._kinds)):
                    await self._any_alive().sweep(index)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 2.0)
        self.book.note("all has settled")

    async def _end(self) -> None:
        for replica in self._alive():
            replica.shut_down(GRACES_S[-1])
        endings = [replica.ending for replica in self._lives if replica.ending is not None]
        await asyncio.gather(*endings, *self._services.tasks)
        if self._director.left_behind:
            await asyncio.wait(self._director.left_behind)
            for task in self._director.left_behind:
                task.exception()
        if len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(GHOST_S)
        # A connection that is opened takes more turns of the loop than one from the pool: each
        # schedule must begin without any.
        for exchange in self._busy:
            await exchange.engine.dispose()

    def _alive(self) -> list[Replica]:
        return [replica for replica in self._lives if replica.is_alive]

    def _any_alive(self) -> Replica:
        if not self._alive():
            self._new_life()
        return self._rng.choice(self._alive())

    def _any_place(self) -> Place:
        table = self._rng.choice(sorted(self._rows))
        return table, self._rng.choice(self._rows[table])["id"]

    def _new_life(self) -> None:
        name = f"replica {len(self._lives) + 1}"
        pipelines = [kind(name, self._director) for kind in self._kinds]
        exchange = self._exchange()
        self.book.note(f"{name} starts")
        self._lives.append(SteppedReplica(name, exchange, exchange.line, pipelines, rng=self._rng))

    def _exchange(self) -> Exchange:
        exchange = self._ground.exchanges.pop()
        exchange.line = Line(self._look_for_orphans)
        self._busy.append(exchange)
        return exchange

    def _look_for_orphans(self) -> None:
        for table, key, owner in orphans(self._ground.file):
            self.book.wrong(
                f"{table} {key} is locked by {owner}, which holds no main row under that token"
            )

    def _exists(self, table: str, column: str, value: int) -> set[Place]:
        rows = self._ground.file.execute(f"SELECT id FROM {table} WHERE {column} = ?", (value,))
        return {(table, key) for (key,) in rows}


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
