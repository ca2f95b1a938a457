"""`lock_ctx` and `get_locker`: who gets keys, in which order, and what is left afterwards."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import pytest

from rowlock.errors import LockWaitTimeout, Refusal
from rowlock.locks import locker as locker_module
from rowlock.locks.locker import InMemoryLocker, Lockset, LocksetStatistics
from rowlock.testing import virtual_time

from .takers import NAMESPACE, LockHolder, go_inside, settle, take


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


@pytest.fixture
def locker() -> InMemoryLocker:
    return InMemoryLocker()


@pytest.fixture
async def lockset(locker: InMemoryLocker) -> Lockset:
    return locker.get_lockset(NAMESPACE)[1]


async def test_it_is_a_set_of_the_locked_keys(lockset: Lockset) -> None:
    """A fetcher could not tell locked rows from free ones."""
    lockset.add(1)
    lockset.add("two")
    assert 1 in lockset
    assert 2 not in lockset
    assert frozenset(lockset) == {1, "two"}
    assert len(lockset) == 2
    assert lockset - {1} == lockset.difference([1]) == {"two"}
    assert lockset | {3} == {1, "two", 3}
    lockset.remove(1)
    lockset.discard("two")
    lockset.discard("two")
    assert not lockset


async def test_keys_may_be_given_back_while_the_set_is_walked(lockset: Lockset) -> None:
    """A release in the middle of a fetcher's walk would raise in the fetcher."""
    lockset.add(1)
    lockset.add(2)
    for key in lockset:
        lockset.remove(key)
    assert not lockset


async def test_a_locked_key_cannot_be_added_again(locker: InMemoryLocker, lockset: Lockset) -> None:
    """Two holders would each think that the key is theirs, and the first to leave would unlock
    it for both.
    """
    lockset.add(1)
    with pytest.raises(
        ValueError, match="1 of 'volumes' is locked already; add only keys that are not in"
    ):
        lockset.add(1)
    async with locker.lock_ctx(NAMESPACE, [2]):
        with pytest.raises(ValueError, match="2 of 'volumes' is locked already"):
            lockset.add(2)


async def test_a_key_that_is_not_locked_cannot_be_removed(lockset: Lockset) -> None:
    """A holder whose key was lost would not hear of it."""
    with pytest.raises(KeyError, match="1 of 'volumes' was not added by hand"):
        lockset.remove(1)


async def test_keys_of_lock_ctx_cannot_be_removed_by_hand(
    locker: InMemoryLocker, lockset: Lockset
) -> None:
    """Somebody's `finally` would unlock the row that another is working on."""
    async with locker.lock_ctx(NAMESPACE, [1]):
        with pytest.raises(KeyError):
            lockset.remove(1)
        lockset.discard(1)
        assert 1 in lockset
    assert 1 not in lockset


async def test_an_error_inside_gives_the_lock_back(locker: InMemoryLocker) -> None:
    """One failed fetch would end all fetching."""
    lock, _ = locker.get_lockset(NAMESPACE)
    with pytest.raises(ZeroDivisionError):
        async with lock:
            raise ZeroDivisionError
    async with lock:
        pass


async def test_one_handle_serves_many_tasks(locker: InMemoryLocker) -> None:
    """A host that keeps the pair it was given would mix up who is inside."""
    lock, _ = locker.get_lockset(NAMESPACE)
    takers = [LockHolder(lock) for _ in range(3)]
    for taker in takers:
        await settle()
        assert [other.holds for other in takers] == [other is taker for other in takers]
        await taker.finish()


async def test_its_state_can_be_seen(locker: InMemoryLocker, lockset: Lockset) -> None:
    """An operator could not see who waits, nor a test that nothing is left."""
    holder = await take(locker, 1, 2)
    taker = await take(locker, 2)
    assert lockset.statistics() == LocksetStatistics(NAMESPACE, locked=2, waiting=1)
    assert repr(lockset) == "<Lockset 'volumes': 2 locked, 1 waiting>"
    assert (
        repr(locker)
        == "<InMemoryLocker [LocksetStatistics(namespace='volumes', locked=2, waiting=1)]>"
    )
    await holder.finish()
    await taker.finish()


async def test_waiters_are_bounded(locker: InMemoryLocker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stuck holder would fill the memory with those who wait for it."""
    monkeypatch.setattr(locker_module, "WAITERS_MAX", 2)
    holder, inside = await take(locker, 1), await go_inside(locker)
    waiting = [await take(locker, 1), await go_inside(locker)]
    with pytest.raises(Refusal, match="2 requests wait for locks of 'volumes' already"):
        async with locker.lock_ctx(NAMESPACE, [1]):
            pass
    with pytest.raises(Refusal, match="2 requests wait"):
        async with locker.get_lockset(NAMESPACE)[0]:
            pass
    for taker in (holder, inside, *waiting):
        await taker.finish()
    assert locker.statistics() == ()
