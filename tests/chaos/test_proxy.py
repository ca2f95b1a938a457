"""The proxy does to a connection what it says, and nothing otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import asyncpg
import pytest

from rowlock.testing import TemporaryDatabase

from ..host import HANG_S_MAX
from .proxy import Lost, Messages, Proxy, answers_commit, asks_for_commit

LATENCY_S = 0.02
ROUND_TRIPS = 5


@pytest.fixture
async def proxy(postgresql_database: TemporaryDatabase) -> AsyncIterator[Proxy]:
    async with postgresql_database.engine.begin() as connection:
        await connection.exec_driver_sql("CREATE TABLE notes (number int)")
    proxy = Proxy(postgresql_database.url)
    await proxy.start()
    yield proxy
    await proxy.stop()


@pytest.fixture
async def client(
    proxy: Proxy, postgresql_database: TemporaryDatabase
) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(proxy, postgresql_database)
    yield connection
    with suppress(Exception):
        await connection.close(timeout=1)


async def connect(proxy: Proxy, database: TemporaryDatabase) -> asyncpg.Connection:
    url = database.url
    return await asyncpg.connect(
        host="127.0.0.1",
        port=proxy.port,
        user=url.username,
        password=url.password,
        database=url.database,
        ssl=False,
    )


async def note_in_a_transaction(client: asyncpg.Connection) -> None:
    async with asyncio.timeout(HANG_S_MAX), client.transaction():
        await client.execute("INSERT INTO notes VALUES (1)")


async def notes(database: TemporaryDatabase) -> int:
    async with database.engine.connect() as connection:
        return (await connection.exec_driver_sql("SELECT count(*) FROM notes")).scalar_one()


async def test_what_is_not_disturbed_passes(
    client: asyncpg.Connection, postgresql_database: TemporaryDatabase
) -> None:
    """The proxy itself would be the fault, also with much to pass on."""
    await note_in_a_transaction(client)
    assert await client.fetchval("SELECT repeat('x', 1000000)") == "x" * 1_000_000
    assert await notes(postgresql_database) == 1


async def test_each_round_trip_takes_its_time(postgresql_database: TemporaryDatabase) -> None:
    """A server far away would be as near as any, or answers would wait for each other."""
    proxy, loop = Proxy(postgresql_database.url, latency_s=LATENCY_S), asyncio.get_running_loop()
    await proxy.start()
    client = await connect(proxy, postgresql_database)
    began = loop.time()
    for number in range(ROUND_TRIPS):
        assert await client.fetchval(f"SELECT {number}") == number
    assert loop.time() - began >= ROUND_TRIPS * LATENCY_S
    assert await client.fetchval("SELECT repeat('x', 1000000)") == "x" * 1_000_000
    assert proxy.cut() == 1
    with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
        await client.fetchval("SELECT 1")
    await proxy.stop()


@pytest.mark.parametrize("part", Lost)
async def test_a_commit_is_lost_far_away_too(
    postgresql_database: TemporaryDatabase, part: Lost
) -> None:
    """Latency would be had at the price of cuts."""
    proxy = Proxy(postgresql_database.url, latency_s=LATENCY_S)
    await proxy.start()
    client = await connect(proxy, postgresql_database)
    await client.execute("CREATE TABLE notes (number int)")
    proxy.lose_next_commit(part)
    with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
        await note_in_a_transaction(client)
    assert proxy.commits_lost == 1
    assert await notes(postgresql_database) == (part is Lost.ANSWER)
    await proxy.stop()


@pytest.mark.parametrize(("part", "count"), [(Lost.QUESTION, 0), (Lost.ANSWER, 1)])
async def test_a_commit_is_lost(
    proxy: Proxy,
    client: asyncpg.Connection,
    postgresql_database: TemporaryDatabase,
    part: Lost,
    count: int,
) -> None:
    """The client would be told what became of its COMMIT, or the server would not have done what
    it was asked.
    """
    proxy.lose_next_commit(part)
    with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
        await note_in_a_transaction(client)
    assert proxy.commits_lost == 1
    assert await notes(postgresql_database) == count
    again = await connect(proxy, postgresql_database)
    await note_in_a_transaction(again)
    await again.close()
    assert await notes(postgresql_database) == count + 1


async def test_connections_are_cut(proxy: Proxy, client: asyncpg.Connection) -> None:
    """A client would go on as if nothing had happened."""
    assert proxy.cut() == 1
    with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
        await note_in_a_transaction(client)


async def test_a_stall_holds_everything_up_and_loses_nothing(
    proxy: Proxy, client: asyncpg.Connection, postgresql_database: TemporaryDatabase
) -> None:
    """A black hole would let something out, or swallow what it holds."""
    stalling = asyncio.create_task(proxy.stall(HANG_S_MAX))
    await asyncio.sleep(0)
    noting = asyncio.create_task(note_in_a_transaction(client))
    connecting = asyncio.create_task(connect(proxy, postgresql_database))
    done, _ = await asyncio.wait({noting, connecting}, timeout=0.2)
    assert not done
    stalling.cancel()
    await asyncio.wait({stalling})
    await noting
    await (await connecting).close()
    assert await notes(postgresql_database) == 1


async def test_a_server_that_is_away_ends_the_connection(
    tmp_path: object, postgresql_database: TemporaryDatabase
) -> None:
    """A client would wait for an answer of nobody."""
    proxy = Proxy(postgresql_database.url.set(query={"host": str(tmp_path)}))
    await proxy.start()
    with pytest.raises((OSError, asyncpg.PostgresError)):
        async with asyncio.timeout(HANG_S_MAX):
            await connect(proxy, postgresql_database)
    await proxy.stop()


@pytest.mark.parametrize("step", [1, 3, 100])
def test_messages_are_cut_whatever_the_chunks(step: int) -> None:
    """A COMMIT that comes in two parts would pass unseen."""
    start = b"\0\0\0\x08\0\x03\0\0"
    told = [start, b"Q\0\0\0\x0cCOMMIT;\0", b"X\0\0\0\x04"]
    stream, messages = b"".join(told), Messages(has_start=True)
    found = [
        one for at in range(0, len(stream), step) for one in messages.take(stream[at : at + step])
    ]
    assert found == told
    assert [asks_for_commit(one) for one in found] == [False, True, False]


def test_a_commit_is_known_by_its_tag() -> None:
    """Other answers would be lost instead."""
    assert answers_commit(b"C\0\0\0\x0bCOMMIT\0")
    assert not answers_commit(b"C\0\0\0\x0dROLLBACK\0")
    assert not answers_commit(b"D\0\0\0\x0bCOMMIT\0")
