"""Nobody waits for ever: how long a parent waits for busy children, and children for their parents.

The bound of a parent, counted from its first refusal (`Reset`): when all children that were claimed
by then are done, and then one more round of its own.

    queued children x T_child / their workers  +  retry_delay x (1 + jitter) + its queueing + a
    fetch + its work before the lock

It may be refused several times in between. From the first refusal on no child is claimed, neither
while the parent rests nor while it is back at work and has not locked yet; unless its rest takes
longer than `orphaned_after`, or rest and work before the lock together longer than `retry_delay` +
`lock_timeout`: then the children go on.

The bound of a child of which a parent wants too much is `orphaned_after` + a fetch, and at most
that of the work under way.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from rowlock import Apply, Outcome, PipelineItem, RelatedLockUnavailable, Retry
from rowlock.clock import JITTER
from rowlock.testing import TemporaryDatabase, virtual_time

from ..lengths import at_length
from .busy import (
    FETCH_S,
    BusyFleets,
    BusyInstances,
    BusyMounts,
    BusyVolumes,
    at_work,
    now,
    put,
    takes,
)
from .tables import Fleet, Instance, Mount, Volume

T_CHILD_S = 2.0
WORKERS = 2
CHILDREN = 4
RETRY_DELAY_S = 0.5
ABANDONED_AFTER_S = 15.0


def family(children: int = CHILDREN) -> list[Any]:
    return [Fleet(id=1), *(Instance(id=key, fleet_id=1) for key in range(1, children + 1))]


class Parent:
    """Locks all instances after some work, again and again.

    Attributes:
        refused_at: when it was refused first since it got its locks last.
        waits_s: how long it waited each time.
    """

    def __init__(
        self, *, before_s: float, holds_s: float = 0.1, outcome: Callable[[], Outcome] = Apply
    ) -> None:
        self.refused_at: float | None = None
        self.waits_s: list[float] = []
        self.got_all = asyncio.Event()
        self._before_s, self._holds_s, self._outcome = before_s, holds_s, outcome

    async def act(self, item: PipelineItem[Any]) -> Outcome:
        await asyncio.sleep(self._before_s)
        try:
            rows = await item.lock_related(Instance, Instance.fleet_id == item.id)
        except RelatedLockUnavailable:
            self.refused_at = self.refused_at or now()
            raise
        assert len(rows) == CHILDREN
        self.waits_s.append(now() - (self.refused_at or now()))
        self.refused_at = None
        self.got_all.set()
        await asyncio.sleep(self._holds_s)
        return self._outcome()


@pytest.mark.parametrize("before_s", at_length([0.0, 3.0], [0.0, 0.7, 3.0]))
@virtual_time(max_virtual_s=600, max_iterations=5_000_000)
async def test_a_parent_gets_children_that_are_always_busy(
    virtual_database: TemporaryDatabase, before_s: float
) -> None:
    """A parent would wait for a moment in which all of its children happen to be free, which
    never comes.
    """
    await put(virtual_database, *family())
    parent = Parent(before_s=before_s)
    children = BusyInstances(takes(T_CHILD_S), workers_num=WORKERS)
    busy_s = math.ceil(CHILDREN / WORKERS) * T_CHILD_S
    bound_s = busy_s + RETRY_DELAY_S * (1 + JITTER) + before_s + 2 * FETCH_S
    async with at_work(virtual_database, BusyFleets(parent.act), children):
        async with asyncio.timeout(5 * (bound_s + before_s + T_CHILD_S)):
            while len([wait_s for wait_s in parent.waits_s if wait_s]) < 2:
                parent.got_all.clear()
                await parent.got_all.wait()
    assert max(parent.waits_s) <= bound_s


@pytest.mark.parametrize(
    "outcome",
    [lambda: 1 / 0, lambda: Retry(after=0), *at_length([], [lambda: Retry(error="planned")])],
)
@virtual_time(max_virtual_s=600, max_iterations=5_000_000)
async def test_children_of_a_parent_that_always_fails_go_on(
    virtual_database: TemporaryDatabase, outcome: Callable[[], Any]
) -> None:
    """A parent that fails for ever would keep its children from their own work."""
    await put(virtual_database, *family())
    parent, children = Parent(before_s=0.5, holds_s=1, outcome=outcome), BusyInstances(takes(0.3))
    async with at_work(virtual_database, BusyFleets(parent.act, max_attempts=1000), children):
        since = now()
        await asyncio.sleep(12)
        until = now()
    assert len(parent.waits_s) >= 2
    # Its intent, its work before the lock and under it, and the child's own work.
    bound_s = 0.3 + RETRY_DELAY_S * (1 + JITTER) + 0.5 + 1 + 0.3 + 3 * FETCH_S
    for key in range(1, CHILDREN + 1):
        assert children.longest_gap(key, since=since, until=until) <= bound_s


@virtual_time(max_virtual_s=600, max_iterations=5_000_000)
async def test_a_row_that_many_want_to_share_gets_its_own_turn(
    virtual_database: TemporaryDatabase,
) -> None:
    """Many items that always want one row would keep the row's own pipeline away for ever."""
    holds_s = 0.5
    await put(virtual_database, Volume(id=1), *(Mount(id=key, volume_id=1) for key in range(1, 9)))
    holders: list[int] = []

    async def share(item: PipelineItem[Any]) -> None:
        await item.lock_related(Volume, Volume.id == 1, shared=True)
        holders.append(item.id)
        await asyncio.sleep(holds_s)

    own = BusyVolumes(takes(0.1))
    async with at_work(virtual_database, BusyMounts(share, workers_num=4), own):
        since = now()
        await asyncio.sleep(20)
        assert len(holders) > 10
        until = now()
    assert (
        own.longest_gap(1, since=since, until=until)
        <= ABANDONED_AFTER_S + 0.1 + holds_s + 2 * FETCH_S
    )


@virtual_time(max_virtual_s=600)
async def test_released_children_and_a_refused_parent_are_looked_at_at_once(
    virtual_database: TemporaryDatabase,
) -> None:
    """Whoever was passed over would wait for the longest rest of a fetcher that found nothing."""
    await put(virtual_database, *family())
    parent = Parent(before_s=0.1, holds_s=1)
    children = BusyInstances(takes(T_CHILD_S), workers_num=CHILDREN, fetch_delays=(60,))
    async with at_work(
        virtual_database, BusyFleets(parent.act, fetch_delays=(60,)), children, hints=False
    ):
        await asyncio.wait_for(parent.got_all.wait(), timeout=10)
        got_all_at = now()
        await asyncio.sleep(1 + T_CHILD_S + 2 * FETCH_S)
        assert all(max(times) > got_all_at for times in children.worked.values())
    assert max(parent.waits_s) <= T_CHILD_S + RETRY_DELAY_S * (1 + JITTER) + 0.1 + 2 * FETCH_S
