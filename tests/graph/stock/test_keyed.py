"""Values of one key are worked on one at a time and in order; other keys pass."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from rowlock.graph.stock.carriers import Carrier, LimitProcessor
from rowlock.graph.stock.lanes import MapProcessor, select
from rowlock.graph.stock.ordered import KeyedCollect, KeyedDispatch, KeyProcessor

from ..one_thread import Sequential, Wiring


class Keyed:
    """A graph with lanes between a source and a sink."""

    def __init__(
        self,
        items: Any,
        *,
        key: Callable[[Any], object],
        lanes: int = 2,
        ahead: int = 4,
        carrier: Carrier | None = None,
    ) -> None:
        self.wiring = Wiring()
        self.keys = KeyProcessor(key, name="keyed", carrier=carrier or Carrier())
        self.dispatch = KeyedDispatch(self.keys, lanes, ahead=ahead)
        results = []
        (output,) = self.wiring.through(self.keys, self.wiring.source(items))
        for each in self.wiring.through(self.dispatch, output):
            lane = MapProcessor(lambda value: value[1] % 5 != 3, use=select, name="lane")
            lane.marks_gone = True
            results += self.wiring.through(lane, each)
        (self.output,) = self.wiring.through(KeyedCollect(self.dispatch), *results)

    def run(self) -> tuple[list[Any], Sequential]:
        """Return the list of the sink, and a run that was not begun."""
        found = self.wiring.sink(self.output)
        return found, Sequential(self.wiring.graph)


def by_key(values: list[Any]) -> dict[Any, list[Any]]:
    found = defaultdict(list)
    for value in values:
        found[value[0]].append(value)
    return dict(found)


@pytest.mark.parametrize("seed", range(40))
def test_values_of_one_key_stay_in_order(seed: int) -> None:
    """An update would overtake the one before it, or both run at once."""
    chance = random.Random(seed)
    values = [(chance.choice("abcd"), number) for number in range(60)]
    keyed = Keyed(
        values, key=lambda value: value[0], lanes=chance.randint(1, 5), ahead=chance.randint(1, 9)
    )
    found, run = keyed.run()
    while run.calls:
        inside = [
            node.processor.subject() for node in run.calls if node.operator.startswith("lane")
        ]
        assert max(Counter(value[0] for value in inside).values(), default=0) <= 1
        run.step(chance.randrange(len(run.calls)))
    assert run.is_finished
    assert by_key(found) == by_key([value for value in values if value[1] % 5 != 3])
    assert keyed.dispatch.inside == 0


def test_other_keys_pass() -> None:
    """One slow key would stop all lanes, or let them run ahead without a bound."""
    values = [("slow", 0), ("slow", 1), *(("b", number) for number in range(10, 90, 5))]
    keyed = Keyed(values, key=lambda value: value[0], lanes=2, ahead=4)
    found, run = keyed.run()

    def is_slow(node: Any) -> bool:
        return node.operator.startswith("lane") and node.processor.subject() == ("slow", 0)

    while others := [at for at, node in enumerate(run.calls) if not is_slow(node)]:
        run.step(others[0])
    assert found == values[2:]
    assert keyed.dispatch.details() == "2 of 4 inside, 1 wait for their key"
    assert run.run().is_finished
    assert found == [*values[2:], *values[:2]]


def test_waiting_values_are_bounded() -> None:
    """All values of a busy key would be read into memory."""
    keyed = Keyed([("a", 0)] * 99, key=lambda value: value[0], lanes=2, ahead=4)
    _, run = keyed.run()
    while at := [at for at, node in enumerate(run.calls) if not node.operator.startswith("lane")]:
        run.step(at[0])
    assert keyed.dispatch.inside == 4
    assert len(keyed.wiring.read) <= 4 + 3


def test_keys_are_forgotten() -> None:
    """The memory would grow with the number of keys."""
    keyed = Keyed([(number, 0) for number in range(500)], key=lambda value: value[0])
    _, run = keyed.run()
    most = 0
    while run.calls:
        run.step()
        most = max(most, len(keyed.keys._records))
    assert run.is_finished
    assert most < 10


class Key:
    """A key of the host's, which must not be asked while ports are moved."""

    def __init__(self, name: str, keyed: list[Keyed]) -> None:
        self.name = name
        self.keyed = keyed

    def check(self) -> None:
        assert self.keyed[0].wiring.graph.changes.asked is None

    def __hash__(self) -> int:
        self.check()
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        self.check()
        return isinstance(other, Key) and other.name == self.name


def test_keys_are_compared_outside_of_the_mutex() -> None:
    """A key's own code would run under the mutex, and could wait for what needs it."""
    holder: list[Keyed] = []
    values = [(Key(name, holder), number) for number, name in enumerate("abcab" * 9)]
    keyed = Keyed(values, key=lambda value: value[0])
    holder.append(keyed)
    found, run = keyed.run()
    assert run.run().is_finished
    assert [value[1] for value in found] == [n for n in range(45) if n % 5 != 3]


def test_a_key_that_fails_is_an_error_of_the_value() -> None:
    """A value without a key would be lost."""
    for key in (lambda value: value[7], lambda value: [value]):
        with pytest.raises((IndexError, TypeError)):
            Keyed([("a", 1)], key=key).run()[1].run()


def test_what_waits_for_its_key_is_dropped_when_nothing_is_wanted() -> None:
    """The source would be read for nothing."""
    keyed = Keyed([("a", 0)] * 999, key=lambda value: value[0])
    (keyed.output,) = keyed.wiring.through(LimitProcessor(2), keyed.output)
    found, run = keyed.run()
    while not run.is_finished:
        others = [at for at, node in enumerate(run.calls) if not node.operator.startswith("lane")]
        run.step(others[0] if others else 0)
    assert found == [("a", 0)] * 2
    assert len(keyed.wiring.read) <= 2 + 4 + len(keyed.wiring.graph.edges)
    assert keyed.dispatch.dropped > 0
