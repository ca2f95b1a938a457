"""Plays many schedules on one database file, each on a loop of its own, and tells how to replay
what failed.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock.testing import DatabaseClock, inline_sqlite_engine, run_virtual, virtual_time_now
from rowlock.testing.databases.clock import follow_on_connection

from .line import Exchange
from .schedule import Ground, Schedule
from .tables import create_tables

ENGINES: Final = 24
"""Most replicas and services of one schedule."""
VIRTUAL_S_MAX: Final = 600.0


@dataclass(frozen=True, slots=True)
class Played:
    """One schedule that was played: its number, the promises it broke, and what happened."""

    seed: int
    wrongs: list[str]
    steps: list[str]

    def __str__(self) -> str:
        lines = [
            f"schedule {self.seed} broke a promise: {self.wrongs[0]}",
            f"replay it: python tests/simulation --of steps --seed {self.seed} --seeds 1 --story",
            *self.steps,
        ]
        return "\n".join(lines)


@contextmanager
def ground(folder: Path) -> Iterator[Ground]:
    path = folder / "simulation.db"
    clock = DatabaseClock(source=virtual_time_now)
    file = sqlite3.connect(path, isolation_level=None)
    follow_on_connection(file, clock)
    create_tables(file)
    engines = [inline_sqlite_engine(path, clock=clock, pool_size=20) for _ in range(ENGINES)]
    for engine in engines:
        event.listen(engine.sync_engine, "connect", _hurry)
    # An engine asks some questions when it connects for the first time, which takes turns: no
    # schedule may be the first.
    run_virtual(lambda: _each(engines, _connect))
    level = logging.getLogger("rowlock").level
    logging.getLogger("rowlock").setLevel(logging.CRITICAL)
    try:
        yield Ground(file, clock, [Exchange(engine) for engine in reversed(engines)])
    finally:
        logging.getLogger("rowlock").setLevel(level)
        file.close()
        run_virtual(lambda: _each(engines, AsyncEngine.dispose))


def play(seeds: Iterable[int], folder: Path) -> Iterator[Played]:
    with ground(folder) as place:
        for seed in seeds:
            yield play_one(seed, place)


def play_one(seed: int, place: Ground) -> Played:
    """Play one schedule; an exception out of it is a broken promise, too."""
    schedule = Schedule(seed, place)
    exchanges = list(place.exchanges)
    try:
        run_virtual(schedule.play, max_virtual_s=VIRTUAL_S_MAX)
    except (Exception, ExceptionGroup) as error:  # noqa: BLE001 - also a loop that cannot go on
        schedule.book.wrongs.append(f"{type(error).__name__}: {error}")
    place.exchanges[:] = exchanges
    return Played(seed, schedule.book.wrongs, schedule.book.steps)


async def _each(
    engines: Iterable[AsyncEngine], act: Callable[[AsyncEngine], Awaitable[None]]
) -> None:
    for engine in engines:
        await act(engine)


async def _connect(engine: AsyncEngine) -> None:
    async with engine.connect():
        pass
    await engine.dispose()


def _hurry(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=OFF")
    cursor.close()
