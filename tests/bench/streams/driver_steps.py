"""The limit: drivers alone, doing the reads and writes of the same steps, with nothing decoded and
none of the promises.

For each step: find its end, record the cut, read its rows and the states that are not in memory;
then lock the rows of the shards, move them on, and write parts and states, in one transaction. Not
here: who may still add rows below what was read, leases, digests, and the handler.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import Any, Protocol

import asyncpg
from limits import dsn
from meter import Meter
from sqlalchemy import URL
from streams.event_host import EventHost

STATE = "123456"
"""Written as the state of each key: what it is does not matter."""
DIGEST = "0123456789abcdef" * 2
CACHED_KEYS_MAX = 100_000
"""As of the flows that are measured."""

_END = """SELECT max(position) FROM (SELECT position FROM rowlock_stream_log
WHERE stream = $1 AND position > $2 ORDER BY position LIMIT $3) AS next"""
_CUT = "UPDATE rowlock_stream_flows SET next_step = next_step + 1, upto = $2, now = now() \
WHERE id = $1 RETURNING next_step - 1"
_STEP_COLUMNS = "flow_id, step, upto, now, checkpoint, snapshot"
_STEP = (
    f"INSERT INTO rowlock_stream_steps ({_STEP_COLUMNS}) VALUES ($1, $2, $3, now(), true, false)"
)
_ROWS = """SELECT position, key, bucket, payload FROM rowlock_stream_log
WHERE stream = $1 AND position > $2 AND position <= $3 ORDER BY position"""
_STATES = "SELECT key, value, timer_at FROM rowlock_stream_state \
WHERE flow_id = $1 AND name = 'add_up' AND key = ANY($2::text[])"
_LOCK = "SELECT id, step FROM rowlock_stream_shards WHERE id = ANY($1::bigint[]) \
FOR NO KEY UPDATE"
_MOVE = "UPDATE rowlock_stream_shards AS s SET step = g.step, version = g.step \
FROM unnest($1::bigint[], $2::bigint[]) AS g (id, step) WHERE s.id = g.id"
_PARTS = """INSERT INTO rowlock_stream_parts
SELECT $1, $2, lo, hi, rows, $6, 0, $6, 0.01
FROM unnest($3::int[], $4::int[], $5::int[]) AS g (lo, hi, rows)"""
_WRITE = """INSERT INTO rowlock_stream_state (flow_id, name, key, bucket, version, value)
SELECT $1, 'add_up', key, bucket, $2, value
FROM unnest($3::text[], $4::int[], $5::text[]) AS g (key, bucket, value)
ON CONFLICT (flow_id, name, key) DO UPDATE
SET bucket = excluded.bucket, version = excluded.version, value = excluded.value"""


class KnownKeys:
    """Keys whose states are in memory; the oldest are forgotten."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Return those of `keys` that are not known, and know them from now on."""
        missing = [key for key in keys if key not in self._known]
        self._known.update(dict.fromkeys(missing))
        for key in list(self._known)[: max(0, len(self._known) - CACHED_KEYS_MAX)]:
            del self._known[key]
        return missing


class Driver(Protocol):
    async def step(self, after: int, rows_max: int) -> tuple[int, int]: ...

    async def close(self) -> None: ...


async def work_off_by_driver(host: EventHost, meter: Meter, *, warm: int, rows: int) -> int:
    """Do the steps of a flow that is paused, and measure those behind the first `warm` events.

    Args:
        host: whose rows they are.
        meter: runs from there on.
        warm: so many events at least come before.
        rows: most of a step.

    Returns:
        How many events were measured.
    """
    driver, upto = await opened_driver(host)
    done = measured = 0
    try:
        while True:
            if done >= warm and not measured:
                meter.start()
            count, upto = await driver.step(upto, rows)
            if not count:
                break
            measured += count if done >= warm else 0
            done += count
        meter.stop()
    finally:
        await driver.close()
    return measured


async def opened_driver(host: EventHost) -> tuple[Driver, int]:
    """Return what does steps of a flow that nobody works on, and up to where they are done."""
    table = host.streams.tables.shards
    async with host.engine.connect() as connection:
        shards = (await connection.execute(table.select().order_by(table.c.lo))).all()
        flow = (await connection.execute(host.streams.tables.flows.select())).one()
    steps: Any = _OnPostgresql if host.is_postgresql else _OnSqlite
    driver: Driver = await steps.opened(host.engine.url, flow.id, host.log.name, shards)
    return driver, flow.upto[host.log.name]


class _OnPostgresql:
    def __init__(
        self, connection: asyncpg.Connection[Any], flow_id: int, stream: str, shards: list[Any]
    ) -> None:
        self._connection, self._flow, self._stream = connection, flow_id, stream
        self._ids = [one.id for one in shards]
        self._ranges = [one.lo for one in shards], [one.hi for one in shards]
        self._known = KnownKeys()

    @classmethod
    async def opened(cls, url: URL, flow_id: int, *rest: Any) -> _OnPostgresql:
        return cls(await asyncpg.connect(dsn(url)), flow_id, *rest)

    async def close(self) -> None:
        await self._connection.close()

    async def step(self, after: int, rows_max: int) -> tuple[int, int]:
        connection, flow = self._connection, self._flow
        upto = await connection.fetchval(_END, self._stream, after, rows_max)
        if upto is None:
            return 0, after
        text = json.dumps({self._stream: upto})
        async with connection.transaction():
            step = await connection.fetchval(_CUT, flow, text)
            await connection.execute(_STEP, flow, step, text)
        rows = await connection.fetch(_ROWS, self._stream, after, upto)
        buckets = {row[1]: row[2] for row in rows}
        if missing := self._known.missing(buckets):
            await connection.fetch(_STATES, flow, missing)
        async with connection.transaction():
            await connection.fetch(_LOCK, self._ids)
            await connection.execute(_MOVE, self._ids, [step + 1] * len(self._ids))
            some = min(len(rows), len(self._ids))
            los, his = self._ranges[0][:some], self._ranges[1][:some]
            await connection.execute(
                _PARTS, flow, step, los, his, [len(rows) // some] * some, DIGEST
            )
            keys, values = list(buckets), [STATE] * len(buckets)
            await connection.execute(_WRITE, flow, step, keys, list(buckets.values()), values)
        return len(rows), upto


class _OnSqlite:
    def __init__(
        self, connection: sqlite3.Connection, flow_id: int, stream: str, shards: list[Any]
    ) -> None:
        self._connection, self._flow, self._stream = connection, flow_id, stream
        self._shards = shards
        self._known = KnownKeys()

    @classmethod
    async def opened(cls, url: URL, flow_id: int, *rest: Any) -> _OnSqlite:
        assert url.database is not None
        return cls(sqlite3.connect(url.database, isolation_level=None), flow_id, *rest)

    async def close(self) -> None:
        self._connection.close()

    async def step(self, after: int, rows_max: int) -> tuple[int, int]:
        run, flow = self._connection.execute, self._flow
        ((upto,),) = run(_on_sqlite(_END), (self._stream, after, rows_max)).fetchall()
        if upto is None:
            return 0, after
        text = json.dumps({self._stream: upto})
        run("BEGIN IMMEDIATE")
        ((step,),) = run(_on_sqlite(_CUT), (flow, text)).fetchall()
        run(_on_sqlite(_STEP), (flow, step, text))
        run("COMMIT")
        rows = run(_on_sqlite(_ROWS), (self._stream, after, upto)).fetchall()
        buckets = {row[1]: row[2] for row in rows}
        if missing := self._known.missing(buckets):
            run(_SQLITE_STATES, (flow, json.dumps(missing))).fetchall()
        self._write(step, buckets, rows=len(rows))
        return len(rows), upto

    def _write(self, step: int, buckets: dict[str, int], *, rows: int) -> None:
        connection, flow = self._connection, self._flow
        connection.execute("BEGIN IMMEDIATE")
        ids = json.dumps([one.id for one in self._shards])
        connection.execute(_SQLITE_LOOK, (ids,)).fetchall()
        moved = [(step + 1, step + 1, one.id) for one in self._shards]
        connection.executemany(
            "UPDATE rowlock_stream_shards SET step = ?, version = ? WHERE id = ?", moved
        )
        some = self._shards[: min(rows, len(self._shards))]
        parts = [(flow, step, one.lo, one.hi, rows // len(some), DIGEST, DIGEST) for one in some]
        connection.executemany(
            "INSERT INTO rowlock_stream_parts VALUES (?, ?, ?, ?, ?, ?, 0, ?, 0.01)", parts
        )
        states = [(flow, key, bucket, step, STATE) for key, bucket in buckets.items()]
        connection.executemany(_SQLITE_WRITE, states)
        connection.execute("COMMIT")


def _on_sqlite(statement: str) -> str:
    return statement.replace("now()", "'2026-01-01 00:00:00.000000'").replace("$", "?")


_SQLITE_STATES = """SELECT key, value, timer_at FROM rowlock_stream_state
WHERE flow_id = ? AND name = 'add_up' AND key IN (SELECT value FROM json_each(?))"""
_SQLITE_LOOK = """SELECT id, step FROM rowlock_stream_shards
WHERE id IN (SELECT value FROM json_each(?))"""
_SQLITE_WRITE = """INSERT INTO rowlock_stream_state (flow_id, name, key, bucket, version, value)
VALUES (?, 'add_up', ?, ?, ?, ?)
ON CONFLICT (flow_id, name, key) DO UPDATE
SET bucket = excluded.bucket, version = excluded.version, value = excluded.value"""
