"""The drain beside a transaction of the host that holds an old snapshot open, as a long report or a
forgotten session does.

While it is there no dead version can be cleared away, neither by vacuum nor in passing, so each
claim reads past the versions of all rows that were settled before. The longer the drain, the worse
it becomes: hence the pace of the first and of the last fifth. The smaller the claims, the more of
them pay: hence two numbers of workers.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from drain import drain_once
from host import Host
from limits import raw_pairs
from measure import Figures, Place, Scale
from sqlalchemy import text

from rowlock import subscribe
from rowlock.events import Event, ItemApplied

ROWS = 25_000
FIFTHS = 5


async def old_snapshot(place: Place, scale: Scale, *, workers: int) -> Figures:
    """Return rows per second, and those of the driver alone, each without a snapshot and with
    one.
    """
    rows, figures = scale.pick(ROWS, scale.rows), dict[str, float]()
    for held in (True, False) if scale.limit_first else (False, True):
        figures |= await _drained(place, rows, workers=workers, held=held)
    shares = {
        "with / without": figures["with, rows/s"] / figures["without, rows/s"],
        "limit with / without": figures["with, limit rows/s"] / figures["without, limit rows/s"],
    }
    return figures | shares


async def _drained(place: Place, rows: int, *, workers: int, held: bool) -> Figures:
    pace = Pace(rows)
    async with _snapshot(place, held=held):
        unsubscribe = subscribe(pace)
        try:
            drained = await drain_once(place, rows=rows, workers=workers)
        finally:
            unsubscribe()
    async with _snapshot(place, held=held), Host.opened(place.url) as host:
        await host.add(rows)
        raw = await raw_pairs(host, total=rows)
    figures = {
        "rows/s": drained["rows/s"],
        "first fifth, rows/s": pace.of_fifth(0),
        "last fifth, rows/s": pace.of_fifth(FIFTHS - 1),
        "limit rows/s": raw["rows/s"],
    }
    return {f"{'with' if held else 'without'}, {name}": value for name, value in figures.items()}


class Pace:
    """Notes when each fifth of the rows was applied."""

    def __init__(self, rows: int) -> None:
        self._size = rows // FIFTHS
        self._applied = 0
        self._marks = [time.perf_counter()]

    def __call__(self, event: Event) -> None:
        if isinstance(event, ItemApplied):
            self._applied += 1
            if self._applied == 1:
                self._marks = [time.perf_counter()]
            elif self._applied % self._size == 0:
                self._marks.append(time.perf_counter())

    def of_fifth(self, number: int) -> float:
        return self._size / (self._marks[number + 1] - self._marks[number])


@asynccontextmanager
async def _snapshot(place: Place, *, held: bool) -> AsyncIterator[None]:
    async with Host.opened(place.url, empty=False) as host:
        if not held:
            yield
            return
        engine = host.engine.execution_options(isolation_level="REPEATABLE READ")
        async with engine.connect() as connection:
            # The first statement takes the snapshot; reading no table, it locks none.
            await connection.execute(text("SELECT 1"))
            yield
