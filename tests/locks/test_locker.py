"""Tests of `lock_ctx` and `get_locker`: who gets keys, in which order, and what is left
afterwards.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import pytest

from rowlock.errors import LockWaitTimeout
from rowlock.locks.locker import InMemoryLocker
from rowlock.testing import virtual_time

from .takers import NAMESPACE, settle, take


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
