"""How a table grows that is worked through again and again: the same rows, reconciled so many
times.

Each pass moves every row to the end of the line, so every outcome writes the index; claims and
heartbeats do not.
"""

from __future__ import annotations

import time

from host import Host, Reconcile, Watch
from limits import raw_pairs
from measure import Figures, Place, Scale, beside
from sqlalchemy import text

from rowlock import PipelineManager, subscribe

_SIZES = """
SELECT pg_table_size('jobs'), pg_indexes_size('jobs'),
    n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'jobs'
"""
# Not the size of the file, in which there is room that earlier measures have left.
_PAGES = """
SELECT (page_count - freelist_count) * page_size
FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()
"""
MB = 1024 * 1024


async def bloat(place: Place, scale: Scale) -> Figures:
    """Return what table and indexes have grown to, and the share of heap-only updates."""
    passes, rows = scale.pick(20, 3), scale.rows

    async def own() -> Figures:
        async with Host.opened(place.url) as host:
            await host.add(rows)
            before = await _size(host)
            await _reconcile(host, passes * rows)
        return await _grown(place, before)

    async def limit() -> Figures:
        async with Host.opened(place.url) as host:
            await host.add(rows)
            before = await _size(host)
            await raw_pairs(host, total=passes * rows, status="submitted")
        return await _grown(place, before)

    raw, figures = await beside(limit, own, limit_first=scale.limit_first)
    return figures | {f"limit {name}": value for name, value in raw.items()}


async def _reconcile(host: Host, total: int) -> None:
    watch = Watch(time.perf_counter, until=total)
    unsubscribe = subscribe(watch)
    try:
        async with PipelineManager(host.session_factory, [Reconcile(workers_num=100)]):
            await watch.done.wait()
    finally:
        unsubscribe()


async def _size(host: Host) -> Figures:
    if not host.is_postgresql:
        async with host.engine.connect() as connection:
            return {"used": (await connection.execute(text(_PAGES))).scalar_one()}
    async with host.engine.connect() as connection:
        table, indexes, updated, heap_only = (await connection.execute(text(_SIZES))).one()
    return {"table": table, "indexes": indexes, "updated": updated, "heap_only": heap_only}


async def _grown(place: Place, before: Figures) -> Figures:
    async with Host.opened(place.url, empty=False) as host:
        after = await _size(host)
    if "used" in after:
        return {"used MB before": before["used"] / MB, "used MB": after["used"] / MB}
    updated = after["updated"] - before["updated"]
    return {
        "table MB before": before["table"] / MB,
        "table MB": after["table"] / MB,
        "indexes MB before": before["indexes"] / MB,
        "indexes MB": after["indexes"] / MB,
        "updates": updated,
        "HOT %": 100 * (after["heap_only"] - before["heap_only"]) / max(1.0, updated),
    }
