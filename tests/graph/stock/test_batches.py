"""Batches are full, in time or last; each value of a shared call has its own answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from rowlock.graph.processor import NodeStatus
from rowlock.graph.stock.batches import BatchMapProcessor, BatchProcessor
from rowlock.graph.stock.carriers import Carrier, LimitProcessor
from rowlock.graph.stock.sources import IterableSource

from ..one_thread import Sequential, Wiring


def test_full_batches_and_the_rest() -> None:
    """The last values would be lost, or an empty batch emitted."""
    wiring = Wiring()
    found = wiring.sink(wiring.through(BatchProcessor(3), wiring.source(range(7)))[0])
    assert Sequential(wiring.graph).run().is_finished
    assert found == [[0, 1, 2], [3, 4, 5], [6]]
    wiring = Wiring()
    found = wiring.sink(wiring.through(BatchProcessor(3), wiring.source(()))[0])
    assert Sequential(wiring.graph).run().is_finished
    assert found == []


class Dripping(IterableSource):
    """A source that gives values when a test wants it to."""

    def __init__(self) -> None:
        super().__init__(())
        self.values: list[Any] = []
        self.is_over = False

    def event(self, changed: Any) -> Any:
        del changed
        output = self.outputs[0]
        if self.values and output.can_push:
            output.push(self.values.pop(0))
            self.made += 1
        if self.is_over and not self.values:
            output.finish()
        return NodeStatus.FINISHED if output.is_finished else NodeStatus.NEED_CONSUME


class Timed:
    """A batch with a time, its source and its sink."""

    def __init__(self, size: int, within: float, carrier: Carrier | None = None) -> None:
        wiring = Wiring()
        self.source = Dripping()
        (output,) = wiring.through(self.source)
        self.batch = BatchProcessor(size, within=within, carrier=carrier or Carrier())
        self.found = wiring.sink(wiring.through(self.batch, output)[0])
        self.run = Sequential(wiring.graph)

    def give(self, *values: Any) -> None:
        self.source.values += values
        self.source.wake()
        self.settle()

    def settle(self) -> None:
        self.run.settle()
        while self.run.calls:
            self.run.step()

    def wait(self, seconds: float) -> None:
        self.run.pass_time(seconds)
        self.settle()


def test_a_batch_waits_from_its_first_value_on() -> None:
    """A value would wait longer than its batch may, or each value would begin the wait anew."""
    timed = Timed(3, within=10)
    timed.wait(100)
    timed.give(1)
    timed.wait(6)
    timed.give(2)
    timed.wait(3.9)
    assert timed.found == []
    timed.wait(0.1)
    assert timed.found == [[1, 2]]


def test_a_full_batch_takes_its_timer_with_it() -> None:
    """The next batch would be emitted before its time."""
    timed = Timed(2, within=10)
    timed.give(1)
    timed.wait(9)
    timed.give(2)
    assert timed.run.timers == {}
    timed.give(3)
    assert timed.found == [[1, 2]]
    timed.wait(9)
    assert timed.found == [[1, 2]]
    timed.wait(1)
    assert timed.found == [[1, 2], [3]]
    timed.wait(100)
    assert timed.found == [[1, 2], [3]]


def test_the_end_emits_the_rest() -> None:
    """The end of a flow would wait for a timer."""
    timed = Timed(3, within=10)
    timed.give(1)
    timed.source.is_over = True
    timed.give()
    assert timed.found == [[1]]
    assert timed.run.is_finished


class Mortal(Carrier):
    """Values are wanted until a test says otherwise."""

    def __init__(self) -> None:
        self.obsolete: set[Any] = set()
        self.failed: list[Any] = []

    def is_wanted(self, item: Any) -> bool:
        return item not in self.obsolete

    def fail(self, item: Any, error: BaseException) -> bool:
        self.failed.append((item, str(error)))
        return True


def test_obsolete_values_do_not_count() -> None:
    """A batch would be emitted half empty, or with values that have no caller any more."""
    carrier = Mortal()
    timed = Timed(3, within=10, carrier=carrier)
    timed.give(1, 2)
    carrier.obsolete = {1}
    timed.give(3)
    assert timed.found == []
    timed.give(4)
    assert timed.found == [[2, 3, 4]]
    assert timed.batch.dropped == 1


def test_a_batch_of_obsolete_values_is_none() -> None:
    """A call would be made with an empty list."""
    carrier = Mortal()
    timed = Timed(3, within=10, carrier=carrier)
    timed.give(1, 2)
    carrier.obsolete = {1, 2}
    timed.wait(10)
    assert timed.found == []
    timed.give(3)
    timed.wait(9)
    assert timed.found == []
    timed.wait(1)
    assert timed.found == [[3]]


def test_a_batch_grows_while_no_lane_is_free() -> None:
    """A late batch would be small although its values had to wait anyway."""
    wiring = Wiring()
    batch = BatchProcessor(3)
    wiring.sink(wiring.through(batch, wiring.source(range(9)))[0])
    run = Sequential(wiring.graph)
    while at := [at for at, node in enumerate(run.calls) if node.operator == "source"]:
        run.step(at[0])
    # One batch is in the sink, and one waits.
    assert wiring.read == list(range(6))
    assert batch.details() == "holds 3 of 3"


def test_a_batch_drops_what_it_holds_when_nothing_is_wanted() -> None:
    """Values would live as long as the run."""
    wiring = Wiring()
    batch = BatchProcessor(3)
    (output,) = wiring.through(batch, wiring.source(range(99)))
    found = wiring.sink(wiring.through(LimitProcessor(1), output)[0])
    assert Sequential(wiring.graph).run().is_finished
    assert found == [[0, 1, 2]]
    assert batch._items == []


def called(lane: Any, items: Any, *, size: int = 3, carrier: Carrier | None = None) -> list[Any]:
    """Run values through a batch and a lane of shared calls."""
    wiring = Wiring()
    batch = BatchProcessor(size, carrier=carrier or Carrier())
    (output,) = wiring.through(batch, wiring.source(items))
    found = wiring.sink(wiring.through(lane, output)[0])
    assert Sequential(wiring.graph).run().is_finished
    assert batch.merged == lane.made
    return found


def lanes_of(function: Any, carrier: Carrier | None = None) -> list[Any]:
    """Return a lane of a function, and one of a coroutine that does the same."""

    async def awaited(values: Sequence[Any]) -> Any:
        return function(values)

    given = carrier or Carrier()
    return [
        BatchMapProcessor(function, size=3, name="embed", carrier=given),
        BatchMapProcessor(awaited, size=3, is_awaited=True, name="embed", carrier=given),
    ]


def test_each_value_has_its_own_result() -> None:
    """Results would go to the wrong values, or in another order."""
    seen: list[Any] = []

    def negated(values: Sequence[int]) -> list[int]:
        seen.append(list(values))
        return [-value for value in values]

    for lane in lanes_of(negated):
        assert called(lane, range(5)) == [0, -1, -2, -3, -4]
    assert seen == [[0, 1, 2], [3, 4]] * 2


@pytest.mark.parametrize("answer", [[1], [1, 2, 3, 4], 7, None])
def test_wrong_number_of_results_is_an_error(answer: Any) -> None:
    """A value would get the result of another one."""
    for lane in lanes_of(lambda _values: answer):
        with pytest.raises((ValueError, TypeError)):
            called(lane, range(3))
        assert lane.subject() == [0, 1, 2]


def test_an_error_in_the_list_is_of_one_value() -> None:
    """One bad value would take those with it that it shared a call with."""
    carrier = Mortal()
    for lane in lanes_of(lambda values: [values[0], ValueError("bad"), values[2]], carrier):
        assert called(lane, range(3), carrier=carrier) == [0, 2]
        assert lane.failed == 1
    assert carrier.failed == [(1, "bad")] * 2
    for lane in lanes_of(lambda values: [values[0], ValueError("bad"), values[2]]):
        with pytest.raises(ValueError, match="bad"):
            called(lane, range(3))


@dataclass(frozen=True)
class Refused(Exception):
    value: int


def test_an_error_that_is_frozen_is_raised_as_it_is() -> None:
    """A host would catch its error in vain, since nothing could be noted on it."""
    for lane in lanes_of(lambda values: [*map(Refused, values)]):
        with pytest.raises(Refused):
            called(lane, range(3))


def test_a_raise_is_of_the_whole_batch() -> None:
    """Values of a failed call would be lost, or other batches fail with them."""
    carrier = Mortal()

    def choosy(values: Sequence[int]) -> Sequence[int]:
        if 0 in values:
            raise ValueError("no zero")
        return values if 3 in values else []

    for lane in lanes_of(choosy, carrier):
        carrier.failed.clear()
        assert called(lane, range(9), carrier=carrier) == [3, 4, 5]
        assert carrier.failed == [
            *((value, "no zero") for value in range(3)),
            *((value, "embed returned 0 results for 3 values") for value in range(6, 9)),
        ]


def test_a_lane_of_batches_drops_what_it_has_when_nothing_is_wanted() -> None:
    """Values would live as long as the run."""
    for lane in lanes_of(lambda values: values):
        wiring = Wiring()
        (output,) = wiring.through(BatchProcessor(3), wiring.source(range(99)))
        (output,) = wiring.through(lane, output)
        found = wiring.sink(wiring.through(LimitProcessor(1), output)[0])
        assert Sequential(wiring.graph).run().is_finished
        assert found == [0]
        assert (lane._batch, len(lane._results)) == ([], 0)


def test_two_lanes_share_one_batch() -> None:
    """Two lanes would wait with half a batch each."""
    wiring = Wiring()
    batch = BatchProcessor(4, outputs=2)
    outputs = wiring.through(batch, wiring.source(range(6)))
    found = [wiring.sink(output) for output in outputs]
    assert Sequential(wiring.graph).run().is_finished
    assert sorted(map(len, (one for each in found for one in each))) == [2, 4]
    assert batch.holds_max == 4 + 2 * 3
