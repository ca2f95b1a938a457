"""The locker against a model of a few lines: any order of steps."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rowlock.errors import LockWaitTimeout
from rowlock.locks.locker import InMemoryLocker

from ..lengths import at_length
from .takers import NAMESPACE, LockHolder, go_inside, settle, take

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from rowlock.locks.locker import Lockset

_T = TypeVar("_T")

KEYS = st.integers(0, 4)
KEY_SETS = st.frozensets(KEYS, min_size=1, max_size=3)
PLACES = st.integers(0, 99)
BURSTS = st.lists(st.tuples(PLACES, st.booleans()), min_size=1, max_size=4)
REACHED: Counter[str] = Counter()
"""How often the rare situations came up; a machine that never meets them proves nothing."""


@dataclass(eq=False)
class Entry:
    taker: LockHolder
    keys: frozenset[int] = frozenset()
    holds: bool = False


class Model:
    """Says who holds what: first come, first served on every key, and nothing is granted while
    somebody is inside.
    """

    def __init__(self) -> None:
        self.by_hand: set[int] = set()
        self.takers: list[Entry] = []
        self.insiders: list[Entry] = []

    def locked(self) -> set[int]:
        return self.by_hand.union(*(entry.keys for entry in self.takers if entry.holds))

    def arrive(self, entry: Entry) -> None:
        (self.takers if entry.keys else self.insiders).append(entry)
        self.changed()

    def leave(self, entry: Entry) -> None:
        """Forget an entry; once nobody is inside, keys are granted before the next one is let
        in.
        """
        if entry in self.takers:
            self.takers.remove(entry)
            self.changed()
        else:
            self.insiders.remove(entry)
            self.changed(somebody_is_inside=any(other.holds for other in self.insiders))

    def changed(self, *, somebody_is_inside: bool | None = None) -> None:
        if not (
            bool(self.insiders[:1]) and self.insiders[0].holds
            if somebody_is_inside is None
            else somebody_is_inside
        ):
            promised = set(self.by_hand)
            for entry in self.takers:
                entry.holds = entry.holds or promised.isdisjoint(entry.keys)
                promised |= entry.keys
        for entry in self.insiders[:1]:
            entry.holds = True


class LockerMachine(RuleBasedStateMachine):
    """Steps of takers, of those inside, and of keys added by hand; after each, locker and model
    must agree.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.locker = InMemoryLocker()
        self.model = Model()

    def run(self, coroutine: Coroutine[object, object, _T]) -> _T:
        return self.loop.run_until_complete(coroutine)

    async def lockset(self) -> Lockset:
        return self.locker.get_lockset(NAMESPACE)[1]

    @rule(keys=KEY_SETS)
    def take(self, keys: frozenset[int]) -> None:
        self.model.arrive(Entry(self.run(take(self.locker, *keys)), keys))

    @rule(keys=KEY_SETS)
    def ask_once(self, keys: frozenset[int]) -> None:
        entry = Entry(self.run(take(self.locker, *keys, timeout=0)), keys)
        self.model.arrive(entry)
        if not entry.holds:
            REACHED["gave up"] += 1
            self.model.leave(entry)
            assert isinstance(entry.taker.task.exception(), LockWaitTimeout)

    @rule()
    def go_inside(self) -> None:
        self.model.arrive(Entry(self.run(go_inside(self.locker))))

    @rule(key=KEYS)
    def add_by_hand(self, key: int) -> None:
        if key not in self.model.locked():
            self.model.by_hand.add(key)
            self.run(self.lockset()).add(key)

    @precondition(lambda self: self.model.by_hand)
    @rule(place=PLACES, burst=BURSTS)
    def remove_by_hand(self, place: int, burst: list[tuple[int, bool]]) -> None:
        """Somebody removes a key, and before those who now hold it wake, some of them may be
        cancelled.
        """
        key = sorted(self.model.by_hand)[place % len(self.model.by_hand)]
        lockset = self.run(self.lockset())
        self.model.by_hand.remove(key)
        self.model.changed()
        lockset.remove(key)
        self.leave(burst)

    @precondition(lambda self: self.model.takers or self.model.insiders)
    @rule(burst=BURSTS)
    def leave(self, burst: list[tuple[int, bool]]) -> None:
        """Some leave or are cancelled in one turn of the loop, holding, waiting, or between the
        two.
        """

        async def leave() -> None:
            for place, cancelled in burst:
                entries = [*self.model.takers, *self.model.insiders]
                if entries:
                    entry = entries[place % len(entries)]
                    self._tell(entry, cancelled=cancelled)
                    self.model.leave(entry)
            await settle()

        self.run(leave())

    def _tell(self, entry: Entry, *, cancelled: bool) -> None:
        if entry.taker.holds and not cancelled:
            entry.taker.let_go()
        else:
            REACHED[
                (
                    "cancelled between grant and wake"
                    if entry.holds and not entry.taker.holds
                    else "cancelled"
                )
            ] += 1
            entry.taker.task.cancel()

    @invariant()
    def agree(self) -> None:
        lockset, model = self.run(self.lockset()), self.model
        waiting = [entry for entry in model.takers if not entry.holds]
        assert set(lockset) == model.locked()
        assert [entry.taker.holds for entry in model.takers] == [
            entry.holds for entry in model.takers
        ]
        assert [entry.taker.holds for entry in model.insiders] == [
            index == 0 for index in range(len(model.insiders))
        ]
        assert lockset.wanted == frozenset().union(*(entry.keys for entry in waiting))
        assert lockset.statistics().waiting == len(waiting)
        assert bool(self.locker.statistics()) == bool(model.by_hand or model.takers)

    def teardown(self) -> None:
        """End everybody in any state; nothing may be left."""

        async def end() -> None:
            for entry in [*self.model.takers, *self.model.insiders]:
                entry.taker.task.cancel()
            for key in self.model.by_hand:
                (await self.lockset()).remove(key)
            await settle()

        self.run(end())
        assert asyncio.all_tasks(self.loop) == set()
        assert self.locker.statistics() == ()
        self.loop.close()


def test_the_locker_does_what_the_model_says() -> None:
    """Some order of takes, releases, cancellations and timeouts would leak a key, hold it twice,
    or let somebody overtake.
    """
    REACHED.clear()
    run_state_machine_as_test(
        LockerMachine,
        settings=settings(
            max_examples=at_length(40, 150),
            stateful_step_count=40,
            deadline=None,
            database=None,
            derandomize=True,
        ),
    )
    assert (
        min(
            REACHED[situation]
            for situation in ("gave up", "cancelled", "cancelled between grant and wake")
        )
        > 0
    ), REACHED
