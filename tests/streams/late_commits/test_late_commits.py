"""Rows that become visible in another order than they got their positions in: a flow reads each of
them once, in whatever way it was added.
"""

from __future__ import annotations

import asyncio
import re
from random import Random
from typing import Any

import pytest
from sqlalchemy import event, insert

from rowlock import ModelError
from rowlock.testing import TemporaryDatabase
from rowlock.testing.streams import run_flow

from ..inputs.writing import mark_of, new_look
from .host import HOST, Arrival, Base, Cached, Noted, Sectioned, column_of
from .readers import NaiveReader, UncheckedReader
from .writers import WAYS, Writer, at_once, into_cached

LINGERS_MAX = 40


async def some_turns(rng: Random) -> None:
    """Leave a transaction open for some turns of the loop."""
    for _ in range(rng.randint(0, LINGERS_MAX)):
        await asyncio.sleep(0)


class Held:
    """Transactions that stay open until they may end."""

    def __init__(self, count: int) -> None:
        self._may_end = asyncio.Event()
        self._there = asyncio.Barrier(count + 1)
        self._lingering = set[asyncio.Task[Any] | None]()

    async def linger(self, _rng: Random) -> None:
        """Stay open; a transaction that may end lingers no more."""
        task = asyncio.current_task()
        if task in self._lingering:
            return
        self._lingering.add(task)
        await self._there.wait()
        await self._may_end.wait()

    async def until_all_are_open(self) -> None:
        """Wait until so many have rows that are not visible."""
        await self._there.wait()

    def end(self) -> None:
        self._may_end.set()


async def add_early(database: TemporaryDatabase) -> None:
    """Add a row to each stream behind all that is open, and commit it."""
    row = {"writer": "early", "number": 0}
    async with database.session_factory.begin() as session:
        await session.execute(insert(Arrival), [row])
        await session.execute(insert(Sectioned), [{"section": 0, **row}])
        await HOST.log.append(session, [Noted("early", 1)])


async def test_whatever_is_late_is_read(postgresql_database: TemporaryDatabase) -> None:
    """Rows of one kind of transaction would be counted never, and all others hide it."""
    database = postgresql_database
    await database.create_tables(Base.metadata)
    late = [way for way in WAYS if way is not at_once]
    held, engine = Held(len(late)), database.create_engine(pool_size=2 * len(late))
    naive = [NaiveReader(database.engine, position) for position in HOST.positions.values()]
    async with asyncio.TaskGroup() as adding:
        for way in late:
            adding.create_task(way(Writer(engine, f"{way.__name__} 0", Random(2), held.linger)))
        await held.until_all_are_open()
        await add_early(database)
        for reader in naive:
            await reader.look()
        await run_flow(database.session_factory, HOST.flow)
        assert not await HOST.processed(database.engine), "the mark waits"
        held.end()
    await run_flow(database.session_factory, HOST.flow)
    written = await HOST.written(database.engine)
    assert await HOST.processed(database.engine) == written
    assert {one.writer.rpartition(" ")[0] for one in written} - {""} == {
        way.__name__ for way in late if way.__name__ != "rolled_back"
    }
    for reader in naive:
        await reader.look()
    assert sum([await reader.missed() for reader in naive]) >= len(late) - 1, "the trap"


async def test_look_and_read_are_two_transactions(postgresql_database: TemporaryDatabase) -> None:
    """Where sessions are of REPEATABLE READ, rows of those who ended behind the first statement
    would be passed over.
    """
    database = postgresql_database
    await database.create_tables(Base.metadata)
    await add_early(database)
    here: dict[int, set[str]] = {}
    mixed: list[set[str]] = []

    def note(connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        done = here.setdefault(id(connection), set())
        # How large rows are is asked by the look, too.
        read = re.sub(r"octet_length\([^()]*\)", "", statement)
        done |= {kind for kind in ("pg_locks", "payload", "arrivals.writer") if kind in read}

    def forget(connection: Any) -> None:
        done = here.pop(id(connection), set())
        if "pg_locks" in done and len(done) > 1:
            mixed.append(done)

    for moment, hear in (("before_cursor_execute", note), ("commit", forget), ("rollback", forget)):
        event.listen(database.engine.sync_engine, moment, hear)
    await run_flow(database.session_factory, HOST.flow)
    assert (await HOST.processed(database.engine)).total() == 3
    assert mixed == []


async def test_a_sequence_with_a_cache_loses_rows(postgresql_database: TemporaryDatabase) -> None:
    """This is why it is refused: a session adds rows below a mark that nobody held back."""
    database, position = postgresql_database, column_of(Cached, "position")
    await database.create_tables(Base.metadata)
    with pytest.raises(ModelError, match="CACHE 20"):
        await mark_of(database.engine, new_look(position.table))
    reader = UncheckedReader(database.engine, position)
    one, other = (
        Writer(database.create_engine(pool_size=1), name, Random(1), some_turns)
        for name in ("one", "other")
    )
    await into_cached(one)
    await into_cached(other)
    await reader.look()
    assert await reader.missed() == 0
    before = one.numbered
    await into_cached(one)
    await reader.look()
    assert await reader.missed() == one.numbered - before
