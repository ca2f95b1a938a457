"""Tests of one namespace's set of locked keys: the set itself, and the lock inside which it is
changed.
"""

from __future__ import annotations

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
