"""How long the pages of the dashboard take over a large table, and what several viewers add.

Rows are due, failing, parked and settled in a mixture that a page has to find its way through; each
page is asked for many times in turn, through the ASGI app and without a socket. The statements are
those of one viewer and of twenty who look at once.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any, Final

from host import Host, ScheduledJob, ScheduledNoOp
from httpx import ASGITransport, AsyncClient
from measure import Figures, Place, Scale
from sqlalchemy import event, insert, literal, select, text

from rowlock import database_now
from rowlock.dashboard import Dashboard, anybody_may_look
from rowlock.insight import Insight

PAGES: Final = {
    "pipelines": "/",
    "due": "/pipelines/ScheduledNoOp/rows?state=due",
    "leased": "/pipelines/ScheduledNoOp/rows?state=leased",
    "failing": "/pipelines/ScheduledNoOp/rows?state=failing",
    "parked": "/pipelines/ScheduledNoOp/rows?state=parked",
    "row": "/rows/ScheduledJob/1",
}
VIEWERS: Final = 20
PARTS: Final = 10
FIRST: Final = 1_000
"""So many rows are written one by one, and copied within the database."""


async def dashboard_pages(place: Place, scale: Scale) -> Figures:
    """Return the 95th of a hundred times of each page, and the ratio of the statements."""
    rows, rounds = scale.pick(1_000_000, 2_000), scale.pick(40, 5)
    async with Host.opened(place.url) as host:
        await fill(host, rows)
        insight = Insight(host.session_factory, [ScheduledNoOp()])
        app = Dashboard(insight, authorize=anybody_may_look)
        counted = counter(host)
        async with AsyncClient(transport=ASGITransport(app), base_url="http://bench") as client:
            figures = {}
            for name, path in PAGES.items():
                times = [await timed(app, client, path) for _ in range(rounds)]
                figures[f"{name} p95 ms"] = statistics.quantiles(times, n=20)[-1]
            alone = await statements(app, client, counted, viewers=1)
            together = await statements(app, client, counted, viewers=VIEWERS)
    return figures | {f"statements of {VIEWERS} / 1": together / alone}


async def fill(host: Any, rows: int) -> None:
    """Write so many rows: a tenth each is due or parked, ten are leased and the others settled."""
    series = [
        {
            "status": "submitted" if part < len(("due", "parked")) else "settled",
            "last_error": "x" * 500,
            "attempts": int(part == 1),
        }
        for part in range(PARTS)
        for _ in range(FIRST // PARTS)
    ]
    names = [ScheduledJob.status, ScheduledJob.last_error, ScheduledJob.attempts]
    async with host.engine.begin() as connection:
        await connection.execute(insert(ScheduledJob), series)
        there = FIRST
        while there < rows:
            more = select(*names, ScheduledJob.due_at).limit(min(there, rows - there))
            copied = insert(ScheduledJob).from_select([*names, ScheduledJob.due_at], more)
            await connection.execute(copied)
            there *= 2
    async with host.engine.begin() as connection:
        is_parked = ScheduledJob.attempts == 1
        table = ScheduledJob.__table__
        await connection.execute(table.update().where(is_parked).values(parked_at=database_now()))
        first = select(ScheduledJob.id).where(ScheduledJob.attempts == 0).limit(10)
        lease = {"lock_owner": literal("ScheduledNoOp"), "lock_expires_at": database_now()}
        held = table.update().where(ScheduledJob.id.in_(first)).values(lease)
        await connection.execute(held)
    async with host.engine.connect() as connection:
        if host.is_postgresql:
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            await connection.execute(text("VACUUM ANALYZE scheduled_jobs"))


async def timed(app: Dashboard, client: AsyncClient, path: str) -> float:
    """Return how long a page took that nobody has asked for just now, in milliseconds."""
    app._recent.forget()
    began = time.perf_counter()
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return (time.perf_counter() - began) * 1000


def counter(host: Any) -> list[str]:
    counted: list[str] = []

    def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        counted.append(statement)

    event.listen(host.engine.sync_engine, "before_cursor_execute", count)
    return counted


async def statements(
    app: Dashboard, client: AsyncClient, counted: list[str], *, viewers: int
) -> int:
    """Return how many statements so many viewers of one page cause who look at once."""
    app._recent.forget()
    counted.clear()
    await asyncio.gather(*(client.get(PAGES["pipelines"]) for _ in range(viewers)))
    return len(counted)
