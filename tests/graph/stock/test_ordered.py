"""Results come in the order of their values, or of those of one key, and lanes go on behind a slow
one.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from rowlock.graph.stock.carriers import Carrier, LimitProcessor
from rowlock.graph.stock.lanes import MapProcessor, select
from rowlock.graph.stock.ordered import (
    KeyedCollect,
    KeyedDispatch,
    KeyProcessor,
    OrderedCollect,
    OrderedDispatch,
)

from ..one_thread import Sequential, Wiring


class Ordered:
    """A graph with lanes between a source and a sink."""

    def __init__(
        self, items: Any, *, lanes: int, ahead: int, keep: Callable[[Any], bool] | None = None
    ) -> None:
        self.wiring = Wiring()
        self.dispatch = OrderedDispatch(lanes, ahead=ahead, name="ordered")
        self.collect = OrderedCollect(self.dispatch)
        results = []
        for output in self.wiring.through(self.dispatch, self.wiring.source(items)):
            lane = MapProcessor(lambda value: value, name="lane")
            if keep is not None:
                lane = MapProcessor(keep, use=select, name="lane")
            lane.marks_gone = True
            results += self.wiring.through(lane, output)
        (self.output,) = self.wiring.through(self.collect, *results)

    def run(self) -> tuple[list[Any], Sequential]:
        """Return the list of the sink, and a run that was not begun."""
        found = self.wiring.sink(self.output)
        return found, Sequential(self.wiring.graph)


@pytest.mark.parametrize("seed", range(40))
def test_results_are_in_order(seed: int) -> None:
    """Results would come as they are ready, or one would be lost where a value was dropped."""
    chance = random.Random(seed)
    ordered = Ordered(
        range(50),
        lanes=chance.randint(1, 5),
        ahead=chance.randint(1, 9),
        keep=lambda value: value % 3 != 1,
    )
    found, run = ordered.run()
    assert run.run(lambda calls: chance.randrange(len(calls))).is_finished
    assert found == [value for value in range(50) if value % 3 != 1]
    assert not ordered.dispatch.lanes


def test_lanes_go_on_behind_a_slow_value() -> None:
    """One slow value would stop all lanes, or let them run ahead without a bound."""
    found, run = (ordered := Ordered(range(99), lanes=3, ahead=6)).run()
    run.step()
    (slow,) = [node for node in run.calls if node.operator.startswith("lane")]
    while others := [at for at, node in enumerate(run.calls) if node is not slow]:
        run.step(others[0])
    assert found == []
    assert slow.processor.subject() == 0
    assert ordered.dispatch.details().startswith("6 of 6 ahead; lane ")
    # Six are inside, and the next one waits at the door.
    assert ordered.wiring.read == list(range(7))
    assert run.run().is_finished
    assert found == list(range(99))


def test_results_that_are_not_wanted_are_dropped() -> None:
    """Values would live as long as the run, and the source be read for nothing."""
    ordered = Ordered(range(999), lanes=3, ahead=6)
    (ordered.output,) = ordered.wiring.through(LimitProcessor(2), ordered.output)
    found, run = ordered.run()
    assert run.run().is_finished
    assert found == [0, 1]
    assert not any(ordered.collect._results)
    assert len(ordered.wiring.read) <= 2 + 6 + len(ordered.wiring.graph.edges)


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
