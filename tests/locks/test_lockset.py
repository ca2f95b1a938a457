"""Tests of one namespace's set of locked keys: the set itself, and the lock inside which it is
changed.
"""

from __future__ import annotations

import asyncio

import pytest

from rowlock.errors import Refusal
from rowlock.locks import lockset as lockset_module
from rowlock.locks.locker import InMemoryLocker
from rowlock.locks.lockset import Lockset, LocksetStatistics

from .takers import NAMESPACE, LockHolder, go_inside, settle, take


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


async def test_only_one_task_is_inside(locker: InMemoryLocker) -> None:
    """Two fetchers would both see a key free and both add it."""
    first = await go_inside(locker)
    second = await go_inside(locker)
    assert (first.holds, second.holds) == (True, False)
    await first.finish()
    await settle()
    assert second.holds
    await second.finish()


async def test_the_lock_is_served_in_order(locker: InMemoryLocker) -> None:
    """Under load some fetcher would never get inside."""
    takers = [await go_inside(locker) for _ in range(4)]
    for index, taker in enumerate(takers):
        assert [other.holds for other in takers] == [other is taker for other in takers], index
        await taker.finish()
        await settle()


async def test_a_cancelled_waiter_outside_leaves_the_holder_inside(locker: InMemoryLocker) -> None:
    """To cancel one fetcher would let another in beside the one that is inside."""
    first, second, third = [await go_inside(locker) for _ in range(3)]
    await second.cancel()
    await settle()
    assert (first.holds, third.holds) == (True, False)
    await first.finish()
    await settle()
    assert third.holds
    await third.finish()


async def test_a_waiter_cancelled_as_it_is_let_in_passes_the_lock_on(
    locker: InMemoryLocker,
) -> None:
    """The lock would stay with a task that never ran inside, for ever."""
    first, second, third = [await go_inside(locker) for _ in range(3)]
    first.let_go()
    second.task.cancel()  # it is granted and cancelled in the same turn
    await settle()
    assert third.holds
    await third.finish()
    await asyncio.wait((first.task, second.task))


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


async def test_nothing_is_taken_while_somebody_is_inside(
    locker: InMemoryLocker, lockset: Lockset
) -> None:
    """A fetcher would lease a row that `lock_ctx` took between its look at the set and its
    commit.
    """
    inside = await go_inside(locker)
    taker = await take(locker, 1)
    assert (taker.holds, set(lockset)) == (False, set())
    await inside.finish()
    await settle()
    assert (taker.holds, set(lockset)) == (True, {1})
    await taker.finish()


async def test_keys_may_be_given_back_while_somebody_is_inside(
    locker: InMemoryLocker, lockset: Lockset
) -> None:
    """A release would have to wait for a fetcher; and what it frees would be taken behind the
    fetcher's back.
    """
    holder = await take(locker, 1)
    taker = await take(locker, 1)
    inside = await go_inside(locker)
    await holder.finish()
    await settle()
    assert (taker.holds, set(lockset)) == (False, set())
    await inside.finish()
    await settle()
    assert taker.holds
    await taker.finish()


async def test_who_waits_for_keys_is_not_starved_by_the_lock_of_the_set(
    locker: InMemoryLocker,
) -> None:
    """Fetchers that hand the lock to each other would keep `lock_ctx` waiting for ever."""
    first, second = await go_inside(locker), await go_inside(locker)
    taker = await take(locker, 1)
    await first.finish()
    await settle()
    assert (taker.holds, second.holds) == (True, True)
    await second.finish()
    await taker.finish()


async def test_a_key_added_inside_goes_before_who_waits_for_it(
    locker: InMemoryLocker, lockset: Lockset
) -> None:
    """A key would be held twice: by hand, and by the `lock_ctx` that waited for the lock of the
    set.
    """
    inside = await go_inside(locker)
    taker, later = await take(locker, 1), await take(locker, 1)
    lockset.add(1)
    await inside.finish()
    await settle()
    assert (taker.holds, later.holds) == (False, False)
    lockset.remove(1)
    await settle()
    assert (taker.holds, later.holds) == (True, False)
    await taker.finish()
    await later.finish()


async def test_a_waiter_behind_a_key_added_by_hand_may_give_up(
    locker: InMemoryLocker, lockset: Lockset
) -> None:
    """Whoever waits behind the one that gave up would be granted too early, or never."""
    inside = await go_inside(locker)
    gives_up, later = await take(locker, 1), await take(locker, 1)
    lockset.add(1)
    await gives_up.cancel()
    await inside.finish()
    await settle()
    assert not later.holds
    lockset.remove(1)
    await settle()
    assert later.holds
    await later.finish()


async def test_wanted_keys_can_be_left_alone(locker: InMemoryLocker, lockset: Lockset) -> None:
    """Those who take keys by hand could starve a `lock_ctx` of many keys and not know it."""
    holder = await take(locker, 1)
    taker = await take(locker, 1, 2)
    assert (lockset.wanted, set(lockset)) == ({1, 2}, {1})
    await taker.cancel()
    assert lockset.wanted == set()
    await holder.finish()


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
    monkeypatch.setattr(lockset_module, "WAITERS_MAX", 2)
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
