"""How long the pages of the dashboard take over tables of several sizes and states: few rows and a
million, of which ten are due, all are, or a tenth is parked, with and without an index of parked
rows.

Each table is asked for each page in turn, so the figures are of one run and one machine.
"""

from __future__ import annotations

import statistics
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from dashboard_pages import PAGES, counter, statements, timed
from explained import with_parked_index
from host import Host, ScheduledJob, ScheduledNoOp
from httpx import ASGITransport, AsyncClient
from measure import Figures, Place, Scale
from sqlalchemy import insert, literal, select, text

from rowlock.dashboard import Dashboard, anybody_may_look
from rowlock.insight import Insight

FEW: Final = 1_000
TEXT_BYTES: Final = 500
VIEWERS: Final = 20
PARKED_AT: Final = datetime(2026, 1, 1, tzinfo=UTC)
DUE, ALL_DUE, PARKED = "10 due", "all due", "a tenth parked"


async def dashboard_loads(place: Place, scale: Scale) -> Figures:
    """Return the 95th percentile of each page over each table, in milliseconds, its ratio to that
    over few rows, and the statements of twenty viewers by those of one.
    """
    many, rounds = scale.pick(1_000_000, 5_000), scale.pick(20, 3)
    figures: Figures = {}
    for state in (DUE, ALL_DUE, PARKED):
        told = {rows: await _pages(place, rows, state, rounds) for rows in (FEW, many)}
        for page, ms in told[many].items():
            figures[f"{state}: {page}"] = ms
            figures[f"{state}: {page}, many / few"] = ms / told[FEW][page]
    with with_parked_index():
        indexed = await _pages(place, many, PARKED, rounds)
    return figures | {f"{PARKED}, with its index: {page}": ms for page, ms in indexed.items()}


async def _pages(place: Place, rows: int, state: str, rounds: int) -> Figures:
    async with Host.opened(place.url) as host:
        await _fill(host, rows, state)
        insight = Insight(host.session_factory, [ScheduledNoOp()])
        app = Dashboard(insight, authorize=anybody_may_look)
        counted = counter(host)
        figures: Figures = {}
        async with AsyncClient(transport=ASGITransport(app), base_url="http://bench") as client:
            ask = partial(timed, app, client)
            for name, path in PAGES.items():
                await ask(path)  # the first one compiles its statements
                times = [await ask(path) for _ in range(rounds)]
                figures[f"{name} p95 ms"] = statistics.quantiles(times, n=20)[-1]
            alone = await statements(app, client, counted, viewers=1)
            together = await statements(app, client, counted, viewers=VIEWERS)
    return figures | {f"statements of {VIEWERS} / 1": together / alone}


async def _fill(host: Any, rows: int, state: str) -> None:
    """Write so many rows of more than 500 bytes each, and then what is due or parked of them."""
    table: Any = ScheduledJob.__table__
    text_of_row = "x" * TEXT_BYTES
    status = "submitted" if state == ALL_DUE else "settled"
    named = [ScheduledJob.status, ScheduledJob.last_error]
    async with host.engine.begin() as connection:
        first = [{"status": status, "last_error": text_of_row} for _ in range(min(rows, FEW))]
        await connection.execute(insert(ScheduledJob), first)
        there = FEW
        while there < rows:
            more = select(literal(status), literal(text_of_row)).select_from(table)
            more = more.limit(min(there, rows - there))
            await connection.execute(insert(ScheduledJob).from_select(named, more))
            there *= 2
        submitted = table.update().values(status="submitted")
        if state == DUE:
            await connection.execute(submitted.where(table.c.id <= 10))
        elif state == PARKED:
            parked = submitted.values(parked_at=PARKED_AT, attempts=1)
            await connection.execute(parked.where(table.c.id <= rows // 10))
    async with host.engine.connect() as connection:
        if host.is_postgresql:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text("VACUUM ANALYZE scheduled_jobs"))
