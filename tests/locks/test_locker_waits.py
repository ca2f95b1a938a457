"""Tests of waits in `lock_ctx` that end, and of the namespaces behind it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import timedelta

import pytest

from rowlock import get_locker
from rowlock.errors import LockWaitTimeout, UnsupportedDialectError
from rowlock.locks.locker import InDatabaseLocker, InMemoryLocker
from rowlock.testing import virtual_time

from .takers import NAMESPACE, go_inside, take


@virtual_time
async def test_the_time_of_a_wait_does_not_limit_the_block() -> None:
    """Work that got its lock in time would be cut off in the middle."""
    locker = InMemoryLocker()
    holder = await take(locker, 1)
    waiter = await take(locker, 1, timeout=10)
    await asyncio.sleep(9)
    await holder.finish()
    await asyncio.sleep(3600)
    assert waiter.holds
    await waiter.finish()


@virtual_time
async def test_a_wait_that_ended_frees_what_was_promised_to_it() -> None:
    """Those behind one that gave up would wait for nobody; and the holder would have lost its
    key.
    """
    locker = InMemoryLocker()
    holder, waiter = await take(locker, 1), await take(locker, 1, 2, timeout=10)
    behind = await take(locker, 2)
    await asyncio.sleep(11)
    assert isinstance(waiter.task.exception(), LockWaitTimeout)
    assert (holder.holds, behind.holds) == (True, True)
    await holder.finish()
    await behind.finish()


@pytest.mark.parametrize("name", ["sqlite", "postgresql"])
@pytest.mark.parametrize("timeout", [-1, float("nan"), timedelta(seconds=-1)])
async def test_impossible_timeouts_are_refused(name: str, timeout: float) -> None:
    """A wrong sum would become a wait without end, or an error on one database only."""
    with pytest.raises(ValueError, match="timeout must be None or at least 0 seconds, not"):
        async with get_locker(name).lock_ctx(NAMESPACE, [1], timeout=timeout):
            pass


async def test_an_idle_namespace_is_forgotten_at_once(locker: InMemoryLocker) -> None:
    """Memory would grow with every name of a namespace that was ever locked; or wait for the
    garbage collector.
    """
    lockset = locker.get_lockset(NAMESPACE)[1]
    gone = weakref.ref(lockset)
    gc.disable()
    try:
        lockset.add(1)
        del lockset
        holder, waiter, inside = (
            await take(locker, 2),
            await take(locker, 1, 2),
            await go_inside(locker),
        )
        locker.get_lockset(NAMESPACE)[1].remove(1)
        for taker in (inside, holder, waiter):
            await taker.finish()
        del holder, waiter, inside, taker
        assert gone() is None
        assert locker.statistics() == ()
    finally:
        gc.enable()


async def test_a_namespace_in_use_is_one_set(locker: InMemoryLocker) -> None:
    """A set that is idle for a moment would be forgotten under the hands of its user, and a key
    be held twice.
    """
    lock, lockset = locker.get_lockset(NAMESPACE)
    async with locker.lock_ctx(NAMESPACE, [1]):
        pass
    async with lock:
        lockset.add(1)
    assert locker.get_lockset(NAMESPACE)[1] is lockset
    del lock, lockset
    assert 1 in locker.get_lockset(NAMESPACE)[1]  # nobody refers to it, but a key is held


def forget(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_new_loop_is_free_of_what_a_closed_one_left_behind() -> None:
    """The second test of a suite would wait for tasks of the first, or meet a future of a closed
    loop.
    """
    locker = InMemoryLocker()

    async def leave_behind() -> None:
        locker.get_lockset(NAMESPACE)[1].add(1)
        taker, waiter, _inside = (
            await take(locker, 2),
            await take(locker, 1, 2),
            await go_inside(locker),
        )
        assert (taker.holds, waiter.holds) == (True, False)

    async def find_free() -> None:
        holder, waiter = await take(locker, 1, 2), await take(locker, 1)
        assert (holder.holds, waiter.holds) == (True, False)
        await holder.finish()
        await waiter.finish()
        async with locker.get_lockset(NAMESPACE)[0]:
            pass

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    first.run_until_complete(leave_behind())
    abandoned = asyncio.all_tasks(first)
    first.close()
    assert locker.statistics() == ()
    second.run_until_complete(find_free())
    second.close()
    dead = weakref.ref(first)
    forget(abandoned)
    del first, abandoned
    gc.collect()
    assert dead() is None


def test_two_open_loops_keep_their_own_locks() -> None:
    """A loop that begins beside another would unlock what the other holds."""
    locker = InMemoryLocker()

    async def lock() -> None:
        locker.get_lockset(NAMESPACE)[1].add(1)

    async def is_locked() -> bool:
        return 1 in locker.get_lockset(NAMESPACE)[1]

    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(lock())
        assert not second.run(is_locked())
        assert first.run(is_locked())


async def test_on_postgresql_nothing_is_locked_here() -> None:
    """Replicas would be serialised in one process and not in another; the database locks the
    rows.
    """
    locker = get_locker("postgresql")
    lock, lockset = locker.get_lockset(NAMESPACE)
    async with lock, locker.lock_ctx(NAMESPACE, [1]), locker.lock_ctx(NAMESPACE, [1], timeout=0):
        lockset.add(1)
        assert not lockset
        lockset.discard(1)
        lockset.remove(1)
    assert locker.statistics() == ()
    with pytest.raises(TypeError):
        locker.lock_ctx(NAMESPACE, "abc")


def test_a_process_has_one_locker_for_each_database() -> None:
    """Two callers would get lockers that do not know of each other's locks."""
    assert isinstance(get_locker("sqlite"), InMemoryLocker)
    assert isinstance(get_locker("postgresql"), InDatabaseLocker)
    assert get_locker("sqlite") is get_locker("sqlite")


def test_an_unknown_database_is_refused() -> None:
    """A host on another database would believe that its rows are locked."""
    with pytest.raises(
        UnsupportedDialectError, match="postgresql and sqlite, not on 'mysql'"
    ) as raised:
        get_locker("mysql")
    assert raised.value.dialect_name == "mysql"
