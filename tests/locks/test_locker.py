"""Tests of `lock_ctx` and `get_locker`: who gets keys, in which order, and what is left
afterwards.
"""

from __future__ import annotations

import asyncio
import gc
import uuid
import weakref
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from rowlock.errors import LockWaitTimeout, UnsupportedDialectError
from rowlock.locks.locker import InDatabaseLocker, InMemoryLocker, get_locker
from rowlock.testing import virtual_time

from .takers import NAMESPACE, go_inside, settle, take


@pytest.fixture
def locker() -> InMemoryLocker:
    """A locker of this test alone."""
    return InMemoryLocker()


async def test_a_key_has_one_holder(locker: InMemoryLocker) -> None:
    """Two tasks would change one resource at once."""
    first, second = await take(locker, 1), await take(locker, 1)
    assert (first.holds, second.holds) == (True, False)
    await first.finish()
    await settle()
    assert second.holds
    await second.finish()


async def test_namespaces_are_apart(locker: InMemoryLocker) -> None:
    """Volume 1 would wait for instance 1."""
    async with locker.lock_ctx("volumes", [1]), locker.lock_ctx("instances", [1], timeout=0):
        assert [statistics.locked for statistics in locker.statistics()] == [1, 1]


async def test_order_and_repetition_of_keys_do_not_matter(locker: InMemoryLocker) -> None:
    """A caller would deadlock against itself or, by another order, against others."""
    async with locker.lock_ctx(NAMESPACE, [10, 2, 10]):
        with pytest.raises(LockWaitTimeout) as raised:
            async with locker.lock_ctx(NAMESPACE, [10, 2, 10, 2], timeout=0):
                pass
    assert raised.value.keys == (2, 10)


async def test_keys_of_any_type_have_one_order(locker: InMemoryLocker) -> None:
    """Keys that cannot be compared with each other would raise; UUIDs would be reported in
    another order each time.
    """
    ids = sorted(uuid.uuid4() for _ in range(5))
    keys = [*ids[::-1], "b", "a", 10, 9, None, (1, "x")]
    async with locker.lock_ctx(NAMESPACE, keys):
        assert list(locker.get_lockset(NAMESPACE)[1]) == [None, *ids, 9, 10, "a", "b", (1, "x")]


async def test_a_single_text_is_not_a_collection(locker: InMemoryLocker) -> None:
    """Each letter of a key would be locked instead of the key."""
    with pytest.raises(TypeError, match=r"not the single key 'abc'; pass \['abc'\]"):
        async with locker.lock_ctx(NAMESPACE, "abc"):
            pass


async def test_no_keys_are_no_lock(locker: InMemoryLocker) -> None:
    """A caller would need a case of its own for nothing to lock."""
    async with locker.lock_ctx(NAMESPACE, [], timeout=0):
        assert locker.statistics() == ()


async def test_a_waiter_for_several_keys_is_not_starved(locker: InMemoryLocker) -> None:
    """A parent would never get all its children while single ones are taken all the time."""
    first = await take(locker, 1)
    parent = await take(locker, 1, 2)
    stream = [await take(locker, key) for key in (1, 2, 2)]
    assert [taker.holds for taker in stream] == [False, False, False]  # key 2 is free, but promised
    await first.finish()
    await settle()
    assert (parent.holds, [taker.holds for taker in stream]) == (True, [False, False, False])
    await parent.finish()
    await settle()
    assert [taker.holds for taker in stream] == [True, True, False]
    for taker in stream:
        await taker.finish()


async def test_a_key_is_served_in_order(locker: InMemoryLocker) -> None:
    """A later waiter would overtake an earlier one, for ever under load."""
    takers = [await take(locker, 1, extra) for extra in "abcd"]
    for taker in takers:
        assert [other.holds for other in takers] == [other is taker for other in takers]
        await taker.finish()
        await settle()


async def test_unrelated_keys_go_on(locker: InMemoryLocker) -> None:
    """One busy resource would stop all others of its table."""
    holder, waiter = await take(locker, 1), await take(locker, 1, 2)
    async with locker.lock_ctx(NAMESPACE, [3, 4], timeout=0):
        assert not waiter.holds
    await holder.finish()
    await waiter.finish()


async def test_a_waiter_holds_nothing(locker: InMemoryLocker) -> None:
    """Waiters that hold some keys each would deadlock."""
    holder, waiter = await take(locker, 1), await take(locker, 1, 2)
    assert set(locker.get_lockset(NAMESPACE)[1]) == {1}
    await holder.finish()
    await waiter.finish()


async def test_crossing_requests_do_not_deadlock(locker: InMemoryLocker) -> None:
    """Takers of overlapping sets of keys, named in any order, would wait for each other."""
    takers = [
        await take(locker, *keys) for keys in ((1, 2), (2, 3), (3, 1), (2, 1), (3, 2), (1, 3))
    ]
    for taker in takers:
        await asyncio.wait_for(taker.finish(), timeout=60)
    assert locker.statistics() == ()


async def test_a_cancelled_waiter_leaves_the_holder_alone(locker: InMemoryLocker) -> None:
    """To cancel a waiter would unlock the row that the holder is working on."""
    holder, waiter, later = await take(locker, 1), await take(locker, 1, 2), await take(locker, 1)
    await waiter.cancel()
    await settle()
    assert (holder.holds, later.holds) == (True, False)
    assert set(locker.get_lockset(NAMESPACE)[1]) == {1}
    await holder.finish()
    await settle()
    assert later.holds
    await later.finish()


async def test_a_cancelled_waiter_frees_what_was_promised_to_it(locker: InMemoryLocker) -> None:
    """Those behind it would wait for nobody."""
    holder, waiter, behind = await take(locker, 1), await take(locker, 1, 2), await take(locker, 2)
    assert not behind.holds
    await waiter.cancel()
    await settle()
    assert (behind.holds, holder.holds) == (True, True)
    await holder.finish()
    await behind.finish()


async def test_a_waiter_that_gives_up_promotes_nobody_ahead_of_it(locker: InMemoryLocker) -> None:
    """Somebody further ahead would be granted a key that is still held."""
    holder, ahead, gives_up = await take(locker, 1), await take(locker, 1, 2), await take(locker, 2)
    await gives_up.cancel()
    await settle()
    assert (holder.holds, ahead.holds) == (True, False)
    await holder.finish()
    await ahead.finish()


async def test_a_waiter_cancelled_as_it_is_granted_gives_back(locker: InMemoryLocker) -> None:
    """Keys would stay with a task that never ran, for ever."""
    _, lockset = locker.get_lockset(NAMESPACE)
    lockset.add(1)
    waiter, later = await take(locker, 1), await take(locker, 1)
    lockset.remove(1)
    assert 1 in lockset  # the waiter's now, though it has not run yet
    await waiter.cancel()
    await settle()
    assert later.holds
    await later.finish()
    assert locker.statistics() == ()


async def test_a_waiter_granted_after_its_cancellation_gives_back(locker: InMemoryLocker) -> None:
    """A grant to a task that is being cancelled would raise in the one who gives, or be lost."""
    _, lockset = locker.get_lockset(NAMESPACE)
    lockset.add(1)
    waiter = await take(locker, 1)
    waiter.task.cancel()
    lockset.remove(1)
    await settle()
    assert waiter.task.cancelled()
    assert locker.statistics() == ()


async def test_an_error_in_the_block_gives_back(locker: InMemoryLocker) -> None:
    """One failure would lock the row until the process ends."""
    with pytest.raises(ZeroDivisionError):
        async with locker.lock_ctx(NAMESPACE, [1]):
            raise ZeroDivisionError
    assert locker.statistics() == ()


@virtual_time
async def test_a_wait_ends_at_its_time() -> None:
    """A caller would wait longer than it said, or not learn what was not to be had."""
    locker, loop = InMemoryLocker(), asyncio.get_running_loop()
    started = loop.time()
    async with locker.lock_ctx(NAMESPACE, [1]):
        with pytest.raises(LockWaitTimeout) as raised:
            async with locker.lock_ctx(NAMESPACE, [2, 1], timeout=timedelta(minutes=1)):
                pass
        assert loop.time() - started == 60
        assert (raised.value.namespace, raised.value.keys, raised.value.timeout_s) == (
            NAMESPACE,
            (1, 2),
            60.0,
        )
        assert set(locker.get_lockset(NAMESPACE)[1]) == {1}
    assert locker.statistics() == ()


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


async def test_keys_added_by_hand_exclude_lock_ctx(locker: InMemoryLocker) -> None:
    """The two ways to lock would not see each other."""
    lock, lockset = locker.get_lockset(NAMESPACE)
    async with lock:
        lockset.add(1)
    waiter = await take(locker, 1)
    assert not waiter.holds
    lockset.remove(1)
    await settle()
    assert waiter.holds
    await waiter.finish()


@virtual_time
async def test_a_waiter_wakes_at_once() -> None:
    """Waiters would poll: each hand-over would cost time although nothing has to be waited for."""
    locker, loop = InMemoryLocker(), asyncio.get_running_loop()
    started = loop.time()
    _, lockset = locker.get_lockset(NAMESPACE)
    lockset.add(1)
    takers = [await take(locker, 1) for _ in range(10)]
    lockset.remove(1)
    for taker in takers:
        await settle()
        assert taker.holds
        await taker.finish()
    assert loop.time() == started


async def test_it_works_on_an_exit_stack(locker: InMemoryLocker) -> None:
    """A lock that is taken in a branch would be released before the commit after it."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(locker.lock_ctx(NAMESPACE, [1]))
        await stack.enter_async_context(locker.lock_ctx(NAMESPACE, [2]))
        assert set(locker.get_lockset(NAMESPACE)[1]) == {1, 2}
    assert locker.statistics() == ()


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
    """Let unfinished tasks be collected without a complaint."""
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
