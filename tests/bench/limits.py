"""The limit: drivers alone, doing the same two writes to the same table in batches, with none of
the promises.

`raw_pairs` claims and settles on one connection; `bare_pickup` is the shortest way from a hint to a
started task.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
import uuid
from collections.abc import Callable

import asyncpg
from host import Host
from measure import Figures
from sqlalchemy import URL

BATCH = 100

_NOW_ON_SQLITE = "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
CLAIM_ON_POSTGRESQL = """
WITH due AS (
    SELECT id FROM {table} WHERE status = 'submitted'
        AND (lock_expires_at IS NULL OR lock_expires_at <= now())
    ORDER BY {place} LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {table} AS held
SET lock_token = gen_random_uuid(), lock_owner = 'limit', lock_expires_at = now() + interval '30 s'
FROM due WHERE held.id = due.id RETURNING held.id, held.lock_token
"""
SETTLE_ON_POSTGRESQL = """
UPDATE jobs
SET status = $3, last_processed_at = clock_timestamp(),
    lock_token = NULL, lock_owner = NULL, lock_expires_at = NULL
FROM unnest($1::int[], $2::uuid[]) AS held (id, token)
WHERE jobs.id = held.id AND jobs.lock_token = held.token
RETURNING jobs.id
"""
CLAIM_ON_SQLITE = f"""
UPDATE {{table}} SET lock_token = ?, lock_owner = 'limit',
    lock_expires_at = strftime('%Y-%m-%d %H:%M:%f000', 'now', '+30 seconds')
WHERE id IN (
    SELECT id FROM {{table}}
    WHERE status = 'submitted' AND (lock_expires_at IS NULL OR lock_expires_at <= {_NOW_ON_SQLITE})
    ORDER BY {{place}} LIMIT ?
) RETURNING id
"""
_SETTLE_ON_SQLITE = f"""
UPDATE jobs SET status = ?, last_processed_at = {_NOW_ON_SQLITE},
    lock_token = NULL, lock_owner = NULL, lock_expires_at = NULL
WHERE id = ? AND lock_token = ?
"""


def claim_statement(*, is_postgresql: bool, scheduled: bool = False) -> str:
    """Return the plain ordered claim of `Job`, or of `ScheduledJob`."""
    if is_postgresql:
        place = "due_at" if scheduled else "last_processed_at ASC NULLS FIRST"
        return CLAIM_ON_POSTGRESQL.format(
            table="scheduled_jobs" if scheduled else "jobs", place=place
        )
    place = "due_at" if scheduled else "last_processed_at"
    return CLAIM_ON_SQLITE.format(table="scheduled_jobs" if scheduled else "jobs", place=place)


def dsn(url: URL) -> str:
    plain = url.difference_update_query(["ssl"])
    return plain.set(drivername="postgresql").render_as_string(hide_password=False)


async def raw_pairs(
    host: Host, *, total: int, status: str = "settled", batch: int = BATCH
) -> Figures:
    """Return rows per second, and processor time per row, of `total` claims and settlements,
    `batch` at once.
    """
    cpu, began = time.process_time(), time.perf_counter()
    if host.is_postgresql:
        await _on_postgresql(host.engine.url, total, status, batch)
    else:
        _on_sqlite(host.engine.url, total, status, batch)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return {"rows/s": total / seconds, "client µs/row": cpu_s / total * 1e6}


async def _on_postgresql(url: URL, total: int, status: str, batch: int) -> None:
    # A proxy speaks no TLS, and libpq's name for that is another than SQLAlchemy's.
    connection = await asyncpg.connect(dsn(url), ssl=url.query.get("ssl"))
    claim, settled = claim_statement(is_postgresql=True), 0
    try:
        while settled < total:
            claimed = await connection.fetch(claim, batch)
            ids, tokens = [row[0] for row in claimed], [row[1] for row in claimed]
            settled += len(await connection.fetch(SETTLE_ON_POSTGRESQL, ids, tokens, status))
    finally:
        await connection.close()


def _on_sqlite(url: URL, total: int, status: str, batch: int) -> None:
    assert url.database is not None
    connection = sqlite3.connect(url.database, isolation_level=None)
    claim, settled = claim_statement(is_postgresql=False), 0
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        while settled < total:
            token = uuid.uuid4().hex
            connection.execute("BEGIN IMMEDIATE")
            claimed = connection.execute(claim, (token, batch)).fetchall()
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")
            settled += connection.executemany(
                _SETTLE_ON_SQLITE, [(status, row[0], token) for row in claimed]
            ).rowcount
            connection.execute("COMMIT")
    finally:
        connection.close()


async def bare_pickup(host: Host, *, samples: int) -> list[float]:
    """Return milliseconds from a hint to the start of a task: a claim of one row between two
    steps of the loop.
    """
    if host.is_postgresql:
        return await _pickup_on_postgresql(host, samples)
    return await _pickup_on_sqlite(host, samples)


async def _pickup_on_postgresql(host: Host, samples: int) -> list[float]:
    connection = await asyncpg.connect(dsn(host.engine.url))
    claim = claim_statement(is_postgresql=True)

    async def claim_and_start(start: Callable[[int], None]) -> None:
        [(key, token)] = await connection.fetch(claim, 1)
        await asyncio.create_task(_started(start, key))
        await connection.fetch(SETTLE_ON_POSTGRESQL, [key], [token], "settled")

    try:
        return [await _sample(host, claim_and_start) for _ in range(samples)]
    finally:
        await connection.close()


async def _pickup_on_sqlite(host: Host, samples: int) -> list[float]:
    assert host.engine.url.database is not None
    connection = sqlite3.connect(
        host.engine.url.database, isolation_level=None, check_same_thread=False
    )
    claim = claim_statement(is_postgresql=False)

    async def claim_and_start(start: Callable[[int], None]) -> None:
        token = uuid.uuid4().hex
        [(key,)] = await asyncio.to_thread(lambda: connection.execute(claim, (token, 1)).fetchall())
        await asyncio.create_task(_started(start, key))
        await asyncio.to_thread(connection.execute, _SETTLE_ON_SQLITE, ("settled", key, token))

    try:
        connection.execute("PRAGMA journal_mode=WAL")
        return [await _sample(host, claim_and_start) for _ in range(samples)]
    finally:
        connection.close()


async def _started(start: Callable[[int], None], key: int) -> None:
    start(key)


async def _sample(host: Host, claim_and_start: Callable[..., object]) -> float:
    hint, at = asyncio.Event(), [0.0]

    async def loop() -> None:
        await hint.wait()
        await claim_and_start(lambda _: at.__setitem__(0, time.perf_counter()))  # type: ignore[misc]

    waiting = asyncio.create_task(loop())
    await host.add_one()
    await asyncio.sleep(0.01)
    hinted = time.perf_counter()
    hint.set()
    await waiting
    return (at[0] - hinted) * 1000
