"""Unique names: that they are unique, on both databases, over engines and processes."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock import advisory_lock_ctx, get_locker, lock_unique_names
from rowlock.errors import ConfigurationError
from rowlock.testing import TemporaryDatabase

from .creators import (
    NAMESPACE,
    WAIT_S,
    Base,
    Fleet,
    create,
    expected,
    is_free,
    names_in,
    next_free_name,
)

CREATORS = 200


# ---------------------------------------------------------------- unique


@pytest.mark.at_length
async def test_200_creators_get_200_names(database: TemporaryDatabase) -> None:
    """Two services that look at the same moment would take one name."""
    await database.create_tables(Base.metadata)
    names = await asyncio.gather(*(create(database.session_factory) for _ in range(CREATORS)))
    assert (
        sorted(names, key=lambda name: int(name[6:]))
        == expected(CREATORS)
        == await names_in(database)
    )


async def test_processes_are_no_way_around_the_lock(database: TemporaryDatabase) -> None:
    """Two replicas would take one name; on SQLite the lock of a process is none for the others."""
    await database.create_tables(Base.metadata)
    url = database.url.render_as_string(hide_password=False)
    program = (sys.executable, str(Path(__file__).with_name("creators.py")), url, "25")
    processes = [
        await asyncio.create_subprocess_exec(*program, stdin=subprocess.PIPE, stdout=-1)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
    told = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [process.returncode for process in processes] == [0, 0, 0], told
    assert await names_in(database) == expected(75)


async def test_names_stay_unique_while_creators_are_cancelled(database: TemporaryDatabase) -> None:
    """A request that was given up would leave the lock with nobody, or take it from its holder."""
    await database.create_tables(Base.metadata)
    chance = random.Random(3)
    inside: set[Any] = set()
    pending = {
        asyncio.create_task(create(database.session_factory, inside=inside)) for _ in range(60)
    }
    # A host's own statement that is cancelled keeps SQLite's write lock for as long as anything has
    # its cursor: there only those are given up that wait for the lock or are just being given it.
    may_be_inside = database.dialect_name == "postgresql"
    created = 0
    while pending:
        done, pending = await asyncio.wait(pending, timeout=1, return_when=asyncio.FIRST_COMPLETED)
        created += sum(not task.cancelled() for task in done)
        if spared := [
            task
            for task in pending
            if not task.cancelling() and (may_be_inside or task not in inside)
        ]:
            chance.choice(spared).cancel()
    await create(database.session_factory)
    names = await names_in(database)
    assert names == expected(len(names))
    assert len(names) > created
    assert get_locker("sqlite").statistics() == ()


# ---------------------------------------------------------------- fresh


async def test_what_was_read_before_the_lock_does_not_count(database: TemporaryDatabase) -> None:
    """A service that has looked something up before would choose among the names of that time."""
    await database.create_tables(Base.metadata)
    async with database.session_factory() as session:
        assert await next_free_name(session) == "fleet-0"
        await create(database.session_factory)
        async with lock_unique_names(session, NAMESPACE, timeout=WAIT_S):
            assert await next_free_name(session) == "fleet-1"


async def test_what_is_committed_during_the_wait_is_seen(database: TemporaryDatabase) -> None:
    """The very name that was waited for would be taken again."""
    await database.create_tables(Base.metadata)
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(database.session_factory()) for _ in range(2)
        ]
        await stack.enter_async_context(lock_unique_names(first, NAMESPACE))
        waiter = asyncio.create_task(
            stack.enter_async_context(lock_unique_names(second, NAMESPACE, timeout=WAIT_S))
        )
        await asyncio.sleep(0)
        first.add(Fleet(name="fleet-0"))
        await first.flush()
        assert not waiter.done()
        await first.commit()
        await waiter
        assert await next_free_name(second) == "fleet-1"


@pytest.mark.parametrize("isolation_level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_older_snapshots_are_refused_on_postgresql(
    postgresql_database: TemporaryDatabase, isolation_level: str
) -> None:
    """The statement that waits for the lock would itself take the snapshot, before the last
    holder has committed.
    """
    engine = postgresql_database.create_engine(isolation_level=isolation_level)
    async with AsyncSession(engine) as session:
        with pytest.raises(
            ConfigurationError, match=f"under {isolation_level} the snapshot is older"
        ):
            async with lock_unique_names(session, NAMESPACE):
                pass


async def test_autocommit_is_refused_on_postgresql(postgresql_database: TemporaryDatabase) -> None:
    """The lock would be gone before the block is entered."""
    async with AsyncSession(
        postgresql_database.create_engine(isolation_level="AUTOCOMMIT")
    ) as session:
        with pytest.raises(ConfigurationError, match="AUTOCOMMIT"):
            async with lock_unique_names(session, NAMESPACE):
                pass


# ---------------------------------------------------------------- until after the commit


async def test_writing_on_without_the_lock_is_an_error(database: TemporaryDatabase) -> None:
    """A second name would be taken in the block, but without the lock."""
    await database.create_tables(Base.metadata)
    async with database.session_factory() as session:
        async with lock_unique_names(session, NAMESPACE):
            session.add(Fleet(name="fleet-0"))
            await session.commit()
            session.add(Fleet(name="fleet-1"))
            with pytest.raises(ConfigurationError, match="ended with the transaction"):
                await session.commit()
            await session.rollback()
        session.add(Fleet(name="elsewhere-0"))
        await session.commit()
        async with lock_unique_names(session, NAMESPACE):
            session.add(Fleet(name="fleet-1"))
            await session.commit()
    assert len(await names_in(database)) == 3


async def test_it_may_follow_an_advisory_lock(database: TemporaryDatabase) -> None:
    """A service that has locked something else could not take a name."""
    await database.create_tables(Base.metadata)
    async with (
        database.session_factory() as session,
        advisory_lock_ctx(session, "something else"),
        lock_unique_names(session, NAMESPACE),
    ):
        assert not await is_free(database)


async def test_a_savepoint_is_refused(database: TemporaryDatabase) -> None:
    """The lock would be lost with the savepoint, and the block would go on."""
    async with database.session_factory() as session, session.begin_nested():
        with pytest.raises(ConfigurationError, match=r"before begin_nested\(\)"):
            async with lock_unique_names(session, NAMESPACE):
                pass


async def test_only_sessions_are_accepted(database: TemporaryDatabase) -> None:
    """A connection commits without anybody being told."""
    async with database.engine.connect() as connection:
        with pytest.raises(TypeError, match="pass an AsyncSession"):
            async with lock_unique_names(connection, NAMESPACE):  # type: ignore[arg-type]
                pass
