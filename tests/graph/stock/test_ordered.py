"""Results come in the order of their values, and lanes go on behind a slow one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from rowlock.graph.stock.carriers import LimitProcessor
from rowlock.graph.stock.lanes import MapProcessor, select
from rowlock.graph.stock.ordered import OrderedCollect, OrderedDispatch

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
