"""Reading of sources, as tests of them need it: look, ask what is ahead, read, divide, decode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock.streams.computing.hashing import BUCKETS, BucketRange
from rowlock.streams.computing.rows import SourceRows, divide
from rowlock.streams.inputs.source import Source

ALL = (BucketRange(0, BUCKETS),)
HALVES = (BucketRange(0, BUCKETS // 2), BucketRange(BUCKETS // 2, BUCKETS))


async def rows_of(
    engine: AsyncEngine, source: Source[Any], ranges: Sequence[BucketRange] = ALL, *, after: int = 0
) -> SourceRows:
    """Return what one replica reads of a source, up to the mark."""
    async with engine.begin() as connection:
        mark = (await source.watcher().look(connection, recorded=after)).mark
    async with engine.begin() as connection:
        return await source.read(connection, ranges, after=after, upto=mark)


async def events_of(engine: AsyncEngine, source: Source[Any], *, after: int = 0) -> list[Any]:
    """Return the events of a source, in their order."""
    rows = await rows_of(engine, source, after=after)
    return source.decoder.build(source.decoder.parse(rows.raw))


async def events_of_shards(engine: AsyncEngine, source: Source[Any]) -> list[list[Any]]:
    """Return the events of each half of the buckets, each read by a replica of its own."""
    shards = []
    for half in HALVES:
        rows = await rows_of(engine, source, [half])
        (own,) = divide(rows, [half])
        shards.append(source.decoder.build(source.decoder.parse(own.raw)))
    return shards
