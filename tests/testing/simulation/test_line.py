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

from rowlock.leases.faults import is_transient
from rowlock.testing.simulation.line import Line, SimulatedConnection, Trouble, lost
from rowlock.testing.simulation.ports import Harbour, Port, Schema
from rowlock.testing.virtual_time import run_virtual

from .small_host import Task


@pytest.fixture
def harbour() -> Iterator[Harbour]:
    """A database with two engines."""
    harbour = Harbour(lambda _: Schema([Task], {}, []))
    harbour.have_ports(2)
    harbour.clean()
    yield harbour
    harbour.close()


async def add(port: Port) -> None:
    """Add a row."""
    async with port.session_factory.begin() as session:
        await session.execute(insert(Task).values(status="todo"))


def added(harbour: Harbour) -> int:
    """Return how many rows there are."""
    return len(harbour.file.execute("SELECT id FROM tasks").fetchall())


async def lose(connection: SimulatedConnection) -> None:
    """Lose the connection."""
    connection.drop()
    raise lost()


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scene on virtual time."""
    run_virtual(scene)


def test_the_end_closes_every_connection(harbour: Harbour) -> None:
    """Each simulation would leave its files open, of which Python warns since 3.13 in whatever test comes next."""
    line = Line(Random(1))
    port = harbour.next_port(line)
    play(partial(add, port))
    [connection] = line.connections
    raw = connection.sqlite3_connection
    harbour.close()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        raw.execute("SELECT 1")


@pytest.mark.parametrize(("answers", "rows"), [(False, 0), (True, 1)])
def test_a_commit_is_lost_or_its_answer(harbour: Harbour, answers: bool, rows: int) -> None:
    """The library would never be in doubt about a COMMIT."""
    line = Line(Random(1))
    line.troubles.append(Trouble(lose, 0, commits=True, answers=answers))
    port = harbour.next_port(line)

    async def scene() -> None:
        with pytest.raises(DBAPIError) as failed:
            await add(port)
        assert is_transient(failed.value)
        assert added(harbour) == rows
        await add(port)
        assert added(harbour) == rows + 1

    play(scene)


@pytest.mark.parametrize("hangs", [False, True])
def test_an_outage_refuses_and_ends(harbour: Harbour, hangs: bool) -> None:
    """Statements would get through while the database is away, or none afterwards."""
    line = Line(Random(1))
    port = harbour.next_port(line)

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        await add(port)
        line.cut(hangs=hangs)
        loop.call_later(10, line.heal)
        for _ in range(2):  # the connection that was there, and a new one
            with pytest.raises((DBAPIError, OSError)) as failed:
                await add(port)
            assert is_transient(failed.value)
        assert (loop.time() >= 1010) is hangs
        await asyncio.sleep(10)
        await add(port)
        assert added(harbour) == 2

    play(scene)


def test_a_killed_writer_keeps_nothing_locked(harbour: Harbour) -> None:
    """After a kill nobody could write any more, since SQLite's lock would stay with the dead."""
    first, second = Line(Random(1)), Line(Random(1))
    dead, alive = harbour.next_port(first), harbour.next_port(second)

    async def scene() -> None:
        session = dead.session_factory()
        await session.execute(insert(Task).values(status="todo"))
        first.drop_all()
        await add(alive)
        assert added(harbour) == 1
        with pytest.raises(DBAPIError):
            await session.execute(select(Task))
        await session.close()

    play(scene)


def test_a_slow_line_takes_its_time(harbour: Harbour) -> None:
    """A slow database would be as fast as any."""
    line = Line(Random(1))
    port = harbour.next_port(line)

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        await add(port)
        assert loop.time() == 1000
        line.latency_s = 0.5
        await add(port)
        assert loop.time() > 1000.5

    play(scene)


def test_troubles_meet_the_statement_they_were_arranged_for(harbour: Harbour) -> None:
    """The boundary between two statements that a fault was drawn for would not be the one that it meets."""
    met: list[int] = []
    line = Line(Random(1))
    port = harbour.next_port(line)

    def note(number: int) -> Callable[[SimulatedConnection], Awaitable[None]]:
        async def act(_: SimulatedConnection) -> None:
            met.append(number)

        return act

    line.troubles += [Trouble(note(n), n, commits=False, answers=False) for n in (3, 1)]

    async def scene() -> None:
        await add(port)  # a statement and its COMMIT
        assert met == [1]
        await add(port)
        assert met == [1, 3]
        assert line.troubles == []

    play(scene)


def test_a_commit_is_told_in_the_turn_in_which_it_was_made(harbour: Harbour) -> None:
    """What a process committed just before it died would be put down under the name of who commits next."""
    told: list[int] = []
    port = harbour.next_port(Line(Random(1), on_commit=lambda: told.append(added(harbour))))

    async def scene() -> None:
        adding = asyncio.ensure_future(add(port))
        while not added(harbour):  # noqa: ASYNC110 - each turn of the loop is looked at
            await asyncio.sleep(0)
        assert told == [1]
        await adding

    play(scene)
