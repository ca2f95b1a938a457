"""What it costs to keep 10,000 leases alive with the default settings.

The items are leased, queued and never started; so all fall due within one beat, which is the
dearest case.
"""

from __future__ import annotations

import asyncio

from host import Asleep, Host
from measure import Figures, Place, Scale, until
from meter import Meter
from sqlalchemy import text

from rowlock import PipelineManager, subscribe
from rowlock.events import Event, LeasesRenewed

LEASED = 10_000
WORKERS = 20

_UPDATES = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'jobs'"


async def heartbeats(place: Place, scale: Scale) -> Figures:
    """Return statements per beat that renews everything, the client's share of a core, and the
    share of heap-only updates.
    """
    factor = (LEASED - WORKERS) / WORKERS
    pipeline = Asleep(
        workers_num=WORKERS,
        queue_lower_limit_factor=factor,
        queue_upper_limit_factor=factor,
        database_timeout=60,
    )
    renewed: list[LeasesRenewed] = []

    def note(event: Event) -> None:
        if isinstance(event, LeasesRenewed):
            renewed.append(event)

    async with Host.opened(place.url) as host:
        await host.add(LEASED)
        meter = await Meter.on(host.engine)
        unsubscribe = subscribe(note)
        try:
            manager = PipelineManager(host.session_factory, [pipeline])
            async with manager:
                await until(lambda: manager.statistics()["Asleep"].tracked >= LEASED)
                # Idle backends of PostgreSQL tell their counters after ten seconds; the first
                # renewal is later still.
                await asyncio.sleep(11)
                before = await _updates(host)
                meter.start()
                await asyncio.sleep(scale.pick(40, 10))
                meter.stop()
                pipeline.may_end.set()
        finally:
            unsubscribe()
    count = sum(event.renewed for event in renewed)
    beats = sum(1 for event in renewed if event.renewed)
    figures = {
        "renewed": float(count),
        "statements/10,000": meter.statements / max(1, count) * LEASED,
        "beats": float(beats),
        "client CPU %": 100 * meter.client_s / meter.seconds,
        "client ms/10,000": meter.client_s / max(1, count) * LEASED * 1000,
    }
    return figures | await _heap_only(place, before)


async def _heap_only(place: Place, before: tuple[int, int]) -> Figures:
    async with Host.opened(place.url, empty=False) as host:
        if not host.is_postgresql:
            return {}
        after = await _updates(host)
    return {"HOT %": 100 * (after[1] - before[1]) / max(1, after[0] - before[0])}


async def _updates(host: Host) -> tuple[int, int]:
    if not host.is_postgresql:
        return 0, 0
    async with host.engine.connect() as connection:
        row = (await connection.execute(text(_UPDATES))).one()
    return row[0], row[1]
