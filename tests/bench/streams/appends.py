"""What it costs to add events to a log, beside the driver alone inserting the same rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import asyncpg
from limits import dsn
from measure import Figures, Place, Scale, beside
from meter import Meter
from sqlalchemy import URL
from streams.drains import Drained, named
from streams.event_host import EventHost, Payment, payments_of

from rowlock.streams.computing.hashing import bucket_of

SIZES = ((1_000, 100_000), (100, 20_000), (1, 500))
"""Events of a transaction, and of a round."""
_INSERT = """INSERT INTO rowlock_stream_log (stream, bucket, key, payload)
SELECT 'payments', * FROM unnest($1::int[], $2::text[], $3::text[])"""
_INSERT_ON_SQLITE = """INSERT INTO rowlock_stream_log (stream, bucket, key, payload)
VALUES ('payments', ?, ?, ?)"""

Row = tuple[int, str, str]
Add = Callable[[Sequence[Row]], Awaitable[object]]
Make = Callable[[Sequence[Any]], Sequence[Row]]


async def append(place: Place, scale: Scale) -> Figures:
    """Return events per second and the cost of an event, by the number that one transaction
    adds; with the number of a producer, too.
    """
    figures: Figures = {}
    for size, count in SIZES:
        payments = payments_of(max(count // scale.pick(1, 20), size))
        kept: dict[str, Drained] = {}
        await beside(
            _into(kept, "limit", lambda p=payments, n=size: by_driver(place, p, n)),
            _into(kept, "ours", lambda p=payments, n=size: by_log(place, p, n)),
            limit_first=scale.limit_first,
        )
        hosts = await by_driver(place, payments, size, encodes=True)
        produced = await by_log(place, payments, size, producer="a")
        ours, limit = kept["ours"], kept["limit"]
        one = ours.figures | {
            "of the limit, by CPU": limit.cpu_s / ours.cpu_s,
            "of the limit, by the clock": limit.seconds / ours.seconds,
            "of a host's own code, by CPU": hosts.cpu_s / ours.cpu_s,
            "with a producer, by CPU": limit.cpu_s / produced.cpu_s,
        }
        theirs = {f"limit {name}": value for name, value in limit.figures.items()}
        figures |= named(f"{size:,}", one | theirs)
    return figures


def _into(
    kept: dict[str, Drained], name: str, run: Callable[[], Awaitable[Drained]]
) -> Callable[[], Awaitable[Figures]]:
    async def measure() -> Figures:
        kept[name] = await run()
        return {}

    return measure


async def by_log(
    place: Place, payments: Sequence[Payment], size: int, *, producer: str | None = None
) -> Drained:
    """Add payments through the log, so many in a transaction."""
    async with EventHost.opened(place) as host:
        meter = await Meter.on(host.engine)
        async with host.engine.connect():
            pass
        for warm in (True, False):
            if not warm:
                meter.start()
            some = payments[:size] if warm else payments
            for begin in range(0, len(some), size):
                seq = None if producer is None else begin + (1 << 40 if warm else 0)
                async with host.sessions.begin() as session:
                    part = some[begin : begin + size]
                    await host.log.append(session, part, producer=producer, seq=seq)
        meter.stop()
    return Drained.of(meter, len(payments))


async def by_driver(
    place: Place, payments: Sequence[Payment], size: int, *, encodes: bool = False
) -> Drained:
    """Insert the same rows by the driver alone.

    Args:
        place: where.
        payments: what is added.
        size: of a transaction.
        encodes: whether rows are made of payments on the way, as a host would; otherwise before.
    """
    made: Make = _rows_of if encodes else list
    given: Sequence[Any] = payments if encodes else _rows_of(payments)
    async with EventHost.opened(place) as host, _driver_of(host) as add:
        meter = await Meter.on(host.engine)
        await add(made(given[:size]))
        meter.start()
        for begin in range(0, len(given), size):
            await add(made(given[begin : begin + size]))
        meter.stop()
    return Drained.of(meter, len(payments))


def _rows_of(payments: Sequence[Payment]) -> list[Row]:
    return [
        (bucket_of(one.account), one.account, json.dumps(asdict(one), separators=(",", ":")))
        for one in payments
    ]


@asynccontextmanager
async def _driver_of(host: EventHost) -> AsyncIterator[Add]:
    run = _on_postgresql if host.is_postgresql else _on_sqlite
    async with run(host.engine.url) as add:
        yield add


@asynccontextmanager
async def _on_postgresql(url: URL) -> AsyncIterator[Add]:
    connection = await asyncpg.connect(dsn(url))

    async def add(some: Sequence[Row]) -> None:
        async with connection.transaction():
            await connection.execute(_INSERT, *map(list, zip(*some, strict=True)))

    try:
        yield add
    finally:
        await connection.close()


@asynccontextmanager
async def _on_sqlite(url: URL) -> AsyncIterator[Add]:
    assert url.database is not None
    connection = sqlite3.connect(url.database, isolation_level=None)

    async def add(some: Sequence[Row]) -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(_INSERT_ON_SQLITE, some)
        connection.execute("COMMIT")

    try:
        yield add
    finally:
        connection.close()
