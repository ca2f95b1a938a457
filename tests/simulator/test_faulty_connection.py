"""What happens on the way to the database."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.exc import DBAPIError

from rowlock.database.faults import is_transient
from rowlock.testing import run_virtual

from .environment.engines import Engines, PooledEngine, Schema
from .environment.faulty_connection import FaultyConnection, SimulatedConnection, Trouble, lost
from .small_host import Task


@pytest.fixture
def engines() -> Iterator[Engines]:
    engines = Engines(lambda _: Schema([Task], {}, []))
    engines.have_engines(2)
    engines.clean()
    yield engines
    engines.close()


async def add(pooled: PooledEngine) -> None:
    async with pooled.session_factory.begin() as session:
        await session.execute(insert(Task).values(status="todo"))


def added(engines: Engines) -> int:
    return len(engines.file.execute("SELECT id FROM tasks").fetchall())


async def lose(connection: SimulatedConnection) -> None:
    connection.drop()
    raise lost()


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtual(scene)


def test_the_end_closes_every_connection(engines: Engines) -> None:
    """Each simulation would leave its files open, of which Python warns since 3.13 in whatever
    test comes next.
    """
    faulty_connection = FaultyConnection(Random(1))
    pooled = engines.next_engine(faulty_connection)
    play(partial(add, pooled))
    [connection] = faulty_connection.connections
    raw = connection.sqlite3_connection
    engines.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        raw.execute("SELECT 1")


@pytest.mark.parametrize(("answers", "rows"), [(False, 0), (True, 1)])
def test_a_commit_is_lost_or_its_answer(engines: Engines, answers: bool, rows: int) -> None:
    """The library would never be in doubt about a COMMIT."""
    faulty_connection = FaultyConnection(Random(1))
    faulty_connection.troubles.append(Trouble(lose, 0, commits=True, answers=answers))
    pooled = engines.next_engine(faulty_connection)

    async def scene() -> None:
        with pytest.raises(DBAPIError) as failed:
            await add(pooled)
        assert is_transient(failed.value)
        assert added(engines) == rows
        await add(pooled)
        assert added(engines) == rows + 1

    play(scene)


@pytest.mark.parametrize("hangs", [False, True])
def test_an_outage_refuses_and_ends(engines: Engines, hangs: bool) -> None:
    """Statements would get through while the database is away, or none afterwards."""
    faulty_connection = FaultyConnection(Random(1))
    pooled = engines.next_engine(faulty_connection)

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        await add(pooled)
        faulty_connection.cut(hangs=hangs)
        loop.call_later(10, faulty_connection.heal)
        for _ in range(2):  # the connection that was there, and a new one
            with pytest.raises((DBAPIError, OSError)) as failed:
                await add(pooled)
            assert is_transient(failed.value)
        assert (loop.time() >= 1010) is hangs
        await asyncio.sleep(10)
        await add(pooled)
        assert added(engines) == 2

    play(scene)


def test_a_killed_writer_keeps_nothing_locked(engines: Engines) -> None:
    """After a kill nobody could write any more, since SQLite's lock would stay with the dead."""
    first, second = FaultyConnection(Random(1)), FaultyConnection(Random(1))
    dead, alive = engines.next_engine(first), engines.next_engine(second)

    async def scene() -> None:
        session = dead.session_factory()
        await session.execute(insert(Task).values(status="todo"))
        first.drop_all()
        await add(alive)
        assert added(engines) == 1
        with pytest.raises(DBAPIError):
            await session.execute(select(Task))
        await session.close()

    play(scene)


def test_a_slow_line_takes_its_time(engines: Engines) -> None:
    """A slow database would be as fast as any."""
    faulty_connection = FaultyConnection(Random(1))
    pooled = engines.next_engine(faulty_connection)

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        await add(pooled)
        assert loop.time() == 1000
        faulty_connection.latency_s = 0.5
        await add(pooled)
        assert loop.time() > 1000.5

    play(scene)


def test_troubles_meet_the_statement_they_were_arranged_for(engines: Engines) -> None:
    """The boundary between two statements that a fault was drawn for would not be the one that
    it meets.
    """
    met: list[int] = []
    faulty_connection = FaultyConnection(Random(1))
    pooled = engines.next_engine(faulty_connection)

    def note(number: int) -> Callable[[SimulatedConnection], Awaitable[None]]:
        async def act(_: SimulatedConnection) -> None:
            met.append(number)

        return act

    faulty_connection.troubles += [
        Trouble(note(n), n, commits=False, answers=False) for n in (3, 1)
    ]

    async def scene() -> None:
        await add(pooled)  # a statement and its COMMIT
        assert met == [1]
        await add(pooled)
        assert met == [1, 3]
        assert faulty_connection.troubles == []

    play(scene)


def test_a_commit_is_told_in_the_turn_in_which_it_was_made(engines: Engines) -> None:
    """What a process committed just before it died would be put down under the name of who
    commits next.
    """
    told: list[int] = []
    pooled = engines.next_engine(
        FaultyConnection(Random(1), on_commit=lambda: told.append(added(engines)))
    )

    async def scene() -> None:
        adding = asyncio.ensure_future(add(pooled))
        while not added(engines):  # noqa: ASYNC110 - each turn of the loop is looked at
            await asyncio.sleep(0)
        assert told == [1]
        await adding

    play(scene)
