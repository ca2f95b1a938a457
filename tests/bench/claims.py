"""What a claim costs as the table grows: settled rows, rows whose time has not come, and rows in
flight.

The library's claims are timed by itself (``RowsClaimed``) while it drains; so the figures hold the
transaction, and what else the process does meanwhile: the median, and the mean over the pass, which
counts the looks at the head of the order. Beside them, in the same state of the table, a plain
ordered claim of the driver alone, rolled back.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import asyncpg
from host import Asleep, Host, Job, NoOp, ScheduledAsleep, ScheduledJob, ScheduledNoOp, Watch
from limits import claim_statement, dsn
from measure import Figures, Place, Scale, until

from rowlock import PipelineManager, pipeline_hinter, subscribe
from rowlock.events import Event, RowsClaimed

DUE = 2_000
"""How many rows are there to be claimed."""
PER_CLAIM = 10
PLAIN_CLAIMS = 20
HOLDING = 50
"""Workers of the replica that holds the rows in flight."""
A_DAY = timedelta(days=1)


async def settled(place: Place, scale: Scale, *, scheduled: bool) -> Figures:
    """Return what a claim costs beside so many rows that are settled."""
    return await _by_size(place, scale, scheduled=scheduled, values={"status": "settled"})


async def idle_rows(place: Place, scale: Scale, *, scheduled: bool) -> Figures:
    """Return what a claim costs beside so many rows whose time has not come."""
    later = datetime.now(UTC) + A_DAY
    values = {"due_at": later} if scheduled else {"last_processed_at": later}
    return await _by_size(place, scale, scheduled=scheduled, values=values)


async def in_flight(
    place: Place, scale: Scale, *, scheduled: bool, hinted: bool = False
) -> Figures:
    """Return what a claim costs beside so many rows that another replica has leased before; with
    a hint for every claim, too.
    """
    figures: Figures = {}
    for size in (100, 10_000) if scale.quick else (100, 10_000, 50_000):
        async with Host.opened(place.url) as host:
            model = ScheduledJob if scheduled else Job
            await host.add(size, model)
            async with _held(host, size, scheduled=scheduled):
                await host.add(DUE, model)
                figures |= _labelled(size, await _claims(host, scheduled=scheduled, hinted=hinted))
    return figures | _growth(figures)


async def _by_size(
    place: Place, scale: Scale, *, scheduled: bool, values: dict[str, object]
) -> Figures:
    figures: Figures = {}
    for size in (10_000, 100_000) if scale.quick else (10_000, 100_000, 1_000_000):
        async with Host.opened(place.url) as host:
            model = ScheduledJob if scheduled else Job
            await host.add(size, model, **values)
            await host.add(DUE, model)
            figures |= _labelled(size, await _claims(host, scheduled=scheduled))
    return figures | _growth(figures)


@asynccontextmanager
async def _held(host: Host, size: int, *, scheduled: bool) -> AsyncIterator[None]:
    claiming, holding = (ScheduledNoOp, ScheduledAsleep) if scheduled else (NoOp, Asleep)
    # The name makes it another replica of the pipeline that claims. The leases are longer than the
    # measure lasts, so that no heartbeat is measured with it.
    pipeline = type(claiming.__name__, (holding,), {})(
        workers_num=min(HOLDING, size),
        queue_lower_limit_factor=max(1.0, size / HOLDING - 1),
        queue_upper_limit_factor=max(1.0, size / HOLDING - 1),
        lock_timeout=3600,
        heartbeat_trigger=1800,
        database_timeout=120,
    )
    manager = PipelineManager(host.session_factory, [pipeline])
    async with manager:
        await until(lambda: manager.statistics()[pipeline.name].tracked >= size)
        yield
        pipeline.may_end.set()


async def _claims(host: Host, *, scheduled: bool, hinted: bool = False) -> Figures:
    plain_ms = await _plain_claims(host, scheduled=scheduled)
    times_ms: list[float] = []
    watch = Watch(time.perf_counter, until=DUE)

    def note(event: Event) -> None:
        watch(event)
        if isinstance(event, RowsClaimed):
            times_ms.append(event.seconds * 1000)
            if hinted:
                pipeline_hinter.hint_fetch(pipeline.model)

    pipeline = (ScheduledNoOp if scheduled else NoOp)(
        workers_num=PER_CLAIM // 2, queue_upper_limit_factor=2
    )
    unsubscribe = subscribe(note)
    try:
        async with PipelineManager(host.session_factory, [pipeline]):
            await watch.done.wait()
    finally:
        unsubscribe()
    return {
        "ms": statistics.median(times_ms),
        "mean ms": statistics.mean(times_ms),
        "first ms": times_ms[0],
        "plain ms": statistics.median(plain_ms),
    }


async def _plain_claims(host: Host, *, scheduled: bool) -> list[float]:
    statement = claim_statement(is_postgresql=host.is_postgresql, scheduled=scheduled)
    times_ms: list[float] = []
    if not host.is_postgresql:
        assert host.engine.url.database is not None
        file = sqlite3.connect(host.engine.url.database, isolation_level=None)
        for _ in range(PLAIN_CLAIMS):
            file.execute("BEGIN IMMEDIATE")
            began = time.perf_counter()
            file.execute(statement, (uuid.uuid4().hex, PER_CLAIM)).fetchall()
            times_ms.append((time.perf_counter() - began) * 1000)
            file.execute("ROLLBACK")
        file.close()
        return times_ms
    connection = await asyncpg.connect(dsn(host.engine.url))
    for _ in range(PLAIN_CLAIMS):
        transaction = connection.transaction()
        await transaction.start()
        began = time.perf_counter()
        await connection.fetch(statement, PER_CLAIM)
        times_ms.append((time.perf_counter() - began) * 1000)
        await transaction.rollback()
    await connection.close()
    return times_ms


def _labelled(size: int, figures: Figures) -> Figures:
    return {f"{size:,}: {name}": value for name, value in figures.items()}


def _growth(figures: Figures) -> Figures:
    own = [value for name, value in figures.items() if name.endswith(": ms")]
    mean = [value for name, value in figures.items() if name.endswith(": mean ms")]
    plain = [value for name, value in figures.items() if name.endswith(": plain ms")]
    return {
        "largest / smallest": own[-1] / own[0],
        "mean largest / smallest": mean[-1] / mean[0],
        "plain largest / smallest": plain[-1] / plain[0],
    }
