"""States in the database: the latest of each key, and those of the last snapshot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import Table, func, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import DeclarativeBase

from rowlock.streams import key_states as store
from rowlock.streams.computing.compute import NO_STATE, KeyState
from rowlock.streams.computing.hashing import BUCKETS, BucketRange, bucket_of
from rowlock.streams.key_states import (
    PageBounds,
    StateWrite,
    drop_empty,
    read_snapshot,
    read_timers,
    write_states,
)
from rowlock.streams.shards.layout import even_layout
from rowlock.streams.tables import StreamTables
from rowlock.testing import TemporaryDatabase

FLOW = 7
STAGE = "add"
KEYS = [f"key {number}" for number in range(12)]
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Base(DeclarativeBase):
    pass


async def new_table(database: TemporaryDatabase) -> Table:
    """Create the tables of the wing, and return that of the states."""
    tables = StreamTables.of(Base)
    await database.create_tables(Base.metadata)
    return tables.state


def write(key: str, version: int, state: KeyState, snapshot: int | None) -> StateWrite:
    """Return what is to be stored of a key."""
    return StateWrite(STAGE, key, bucket_of(key), version, state, snapshot)


async def snapshot_of(connection: AsyncConnection, table: Table, version: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    after = ""
    while page := await read_snapshot(
        connection, table, FLOW, name=STAGE, version=version, after=after, most=PageBounds(3, 1_000)
    ):
        found.update(page)
        after = page[-1][0]
    return found


async def test_what_is_dropped_leaves_no_row(database: TemporaryDatabase) -> None:
    """The table would keep a row for each key that there ever was."""
    table = await new_table(database)
    async with database.create_engine().connect() as connection:
        count = select(func.count()).select_from(table)
        await write_states(
            connection, table, FLOW, states=[write(key, 1, KeyState("1"), None) for key in KEYS]
        )
        await write_states(
            connection, table, FLOW, states=[write(key, 2, NO_STATE, None) for key in KEYS[:4]]
        )
        assert await connection.scalar(count) == len(KEYS) - 4
        await write_states(
            connection, table, FLOW, states=[write(key, 3, NO_STATE, 2) for key in KEYS[4:]]
        )
        # The snapshot has them still.
        assert await drop_empty(connection, table, FLOW, before=2, limit=100) == 0
        assert len(await snapshot_of(connection, table, 2)) == len(KEYS) - 4
        assert await drop_empty(connection, table, FLOW, before=4, limit=3) == 3
        assert await drop_empty(connection, table, FLOW, before=4, limit=100) == len(KEYS) - 7
        assert await connection.scalar(count) == 0


async def test_timers_are_read_by_shard_and_time(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer would be read by the wrong shard, or be left out between two pages."""
    monkeypatch.setattr(store, "TIMERS_READ_MAX", 5)
    table = await new_table(database)
    random = Random(4)
    timers = {f"k{number}": NOON + timedelta(seconds=random.randrange(8)) for number in range(60)}
    async with database.create_engine().connect() as connection:
        states = [write(key, 1, KeyState("1", at), None) for key, at in timers.items()]
        states.append(write("without", 1, KeyState("1"), None))
        await write_states(connection, table, FLOW, states=states)
        for shard in [*even_layout(4), BucketRange(0, BUCKETS)]:
            found: dict[str, datetime] = {}
            after: datetime | None = None
            while page := await read_timers(connection, table, FLOW, buckets=shard, after=after):
                assert not found.keys() & {timer.key for timer in page}
                assert [one.at for one in page] == sorted(one.at for one in page)
                found.update({timer.key: timer.at for timer in page})
                after = page[-1].at
            own = {key: at for key, at in timers.items() if bucket_of(key) in shard}
            assert found == own
