"""How long `explain` and `status` take beside many rows: a thousand that are due, and a million; a
tenth as many again are parked.

The same row is explained in both tables, the hundredth in line; and the last one, before which
10,000 are counted in the large table. The plain statement reads the same row by its key.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from host import Host, ScheduledJob, ScheduledNoOp
from measure import Figures, Place, Scale
from sqlalchemy import select

from rowlock import parked_index
from rowlock.insight import Insight

SMALL: Final = 1_000
PARKED_PART: Final = 10
"""One parked row for so many that are due."""
PARKED_AT: Final = datetime(2026, 1, 1, tzinfo=UTC)
HUNDREDTH: Final = 100


async def explained(place: Place, scale: Scale) -> Figures:
    """Return medians in milliseconds beside many rows, and their ratios to those beside few."""
    large, rounds = scale.pick(1_000_000, 20_000), scale.pick(40, 5)
    sizes = (large, SMALL) if scale.limit_first else (SMALL, large)
    with with_parked_index():
        told = {rows: await beside(place, rows, rounds) for rows in sizes}
    ratios = {
        f"{name}, many / few": told[large][name] / told[SMALL][name]
        for name in ("explain ms", "status ms")
    }
    of_plain = {"explain / plain": told[large]["explain ms"] / told[large]["plain ms"]}
    return told[large] | ratios | of_plain


@contextmanager
def with_parked_index() -> Iterator[None]:
    """Have the table an index of parked rows, as long as this is measured."""
    index = parked_index(ScheduledJob)
    try:
        yield
    finally:
        table: Any = ScheduledJob.__table__
        table.indexes.discard(index)


async def beside(place: Place, rows: int, rounds: int) -> Figures:
    async with Host.opened(place.url) as host:
        await host.add(rows, ScheduledJob)
        await host.add(rows // PARKED_PART, ScheduledJob, parked_at=PARKED_AT, attempts=1)
        insight = Insight(host.session_factory, [ScheduledNoOp()])
        plain = select(ScheduledJob).where(ScheduledJob.id == HUNDREDTH)

        async def read() -> Any:
            async with host.session_factory() as session:
                return (await session.execute(plain)).scalars().first()

        asked: dict[str, Callable[[], Awaitable[Any]]] = {
            "explain ms": lambda: insight.explain(ScheduledJob, HUNDREDTH),
            "explain the last ms": lambda: insight.explain(ScheduledJob, rows),
            "explain the pipeline ms": lambda: insight.explain_pipeline("ScheduledNoOp"),
            "status ms": insight.status,
            "plain ms": read,
        }
        times: dict[str, list[float]] = {name: [] for name in asked}
        for number in range(rounds + 1):
            for name, ask in asked.items():
                began = time.perf_counter()
                await ask()
                if number:  # the first one compiles its statements
                    times[name].append((time.perf_counter() - began) * 1000)
        [one] = (await insight.status()).pipelines
        assert one.counts.parked, "parked rows were not counted"
    return {name: statistics.median(found) for name, found in times.items()}
