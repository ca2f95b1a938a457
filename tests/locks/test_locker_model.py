"""The locker against a model of twenty lines: any order of steps, any waiter cancelled at any of them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from rowlock.errors import LockWaitTimeout
from rowlock.locks.locker import InMemoryLocker

from .takers import NAMESPACE, Taker, go_inside, settle, take

if TYPE_CHECKING:
    from collections.abc import Coroutine

KEYS = st.integers(0, 4)
BURSTS = st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["let go", "cancel", "both"])), min_size=1, max_size=4)


@dataclass(eq=False)
class Entry:
    """What the model knows of one taker."""

    taker: Taker
    keys: frozenset[int]
    holds: bool = False
    leaving: bool = False


class Model:
    """Says who must hold what: first come, first served on every key, and nothing taken while somebody is inside."""

    def __init__(self) -> None:
        """Begin with nobody."""
        self.by_hand: set[int] = set()
        self.takers: list[Entry] = []
        self.insiders: list[Entry] = []

    def settle(self) -> None:
        """Send away who leaves, and grant what can be granted, until nothing changes."""
        self.takers = [entry for entry in self.takers if not entry.leaving]
        self.grant_keys_unless_inside()
        while self.insiders and self.insiders[0].leaving:
            self.insiders.pop(0)
            if not (self.insiders and self.insiders[0].holds):
                self._grant_keys()
        self.insiders = [entry for entry in self.insiders if not entry.leaving]
        for entry in self.insiders[:1]:
            entry.holds = True

    def grant_keys_unless_inside(self) -> None:
        """Grant to all who are first for each of their keys, unless somebody is inside."""
        if not self.insiders:
            self._grant_keys()

    def _grant_keys(self) -> None:
        promised = set(self.by_hand)
        for entry in self.takers:
            entry.holds = entry.holds or promised.isdisjoint(entry.keys)
            promised |= entry.keys

    def locked(self) -> set[int]:
        """Return the keys that somebody holds."""
        return self.by_hand.union(*(entry.keys for entry in self.takers if entry.holds))


class LockerMachine(RuleBasedStateMachine):
    """Steps of takers, of those inside, and of keys added by hand; after each, locker and model must agree."""

    def __init__(self) -> None:
        """Begin with a loop and a locker of its own."""
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.locker = InMemoryLocker()
        self.model = Model()

    def run[T](self, coroutine: Coroutine[object, object, T]) -> T:
        """Run `coroutine` on the machine's loop."""
        return self.loop.run_until_complete(coroutine)
