"""Parts of a value are worked on among those of others, and gathered in their order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rowlock.graph.processor import OutputPort
from rowlock.graph.stock.batches import BatchMapProcessor, BatchProcessor
from rowlock.graph.stock.carriers import BARE, Carrier, LimitProcessor, ResizeProcessor
from rowlock.graph.stock.lanes import MapProcessor, select
from rowlock.graph.stock.parts import ScatterProcessor

from ..one_thread import Sequential, Wiring

Through = Callable[[Wiring, OutputPort[Any], Carrier], OutputPort[Any]]


class Patient(Carrier):
    """Errors stay with their value; a test says which values are obsolete."""

    def __init__(self) -> None:
        self.failed: list[tuple[Any, str]] = []
        self.dropped: list[Any] = []
        self.obsolete: set[Any] = set()

    def fail(self, item: Any, error: BaseException) -> bool:
        self.failed.append((item, str(error)))
        return True

    def drop(self, item: Any) -> None:
        self.dropped.append(item)

    def is_wanted(self, item: Any) -> bool:
        return item not in self.obsolete


def mapped(function: Callable[[Any], Any], lanes: int = 2, **options: Any) -> Through:
    def through(wiring: Wiring, output: OutputPort[Any], carrier: Carrier) -> OutputPort[Any]:
        outputs = wiring.through(ResizeProcessor(1, lanes), output)
        results = [
            wiring.through(MapProcessor(function, carrier=carrier, name="lane", **options), one)[0]
            for one in outputs
        ]
        return wiring.through(ResizeProcessor(lanes, 1), *results)[0]

    return through


def batched(function: Callable[[Any], Any], size: int) -> Through:
    def through(wiring: Wiring, output: OutputPort[Any], carrier: Carrier) -> OutputPort[Any]:
        (batches,) = wiring.through(BatchProcessor(size, carrier=carrier), output)
        return wiring.through(BatchMapProcessor(function, size=size, carrier=carrier), batches)[0]

    return through


def nested(through: Through) -> Through:
    """Return a fan-out of characters within one of words."""

    def both(wiring: Wiring, output: OutputPort[Any], carrier: Carrier) -> OutputPort[Any]:
        return fanned(wiring, output, through, carrier=carrier)

    return both


def fanned(
    wiring: Wiring, output: OutputPort[Any], through: Through, **options: Any
) -> OutputPort[Any]:
    parts = options.pop("parts", iter)
    scatter = ScatterProcessor(
        parts,
        groups=options.pop("groups", 2),
        parts_max=options.pop("parts_max", 100),
        outer=options.pop("carrier", BARE),
    )
    (output,) = wiring.through(scatter, output)
    output = through(wiring, output, scatter.carrier)
    return wiring.through(scatter.gather, output)[0]


def ran(items: Any, through: Through, *, seed: int = 0, limit: int = 999, **options: Any) -> Any:
    """Run values through a fan-out, and return what comes out."""
    wiring = Wiring()
    output = fanned(wiring, wiring.source(items), through, **options)
    (output,) = wiring.through(LimitProcessor(limit), output)
    found = wiring.sink(output)
    chance = random.Random(seed)
    run = Sequential(wiring.graph).run(lambda calls: chance.randrange(len(calls)))
    assert run.is_finished
    return found


@pytest.mark.parametrize("seed", range(20))
def test_all_parts_of_each_value_in_order(seed: int) -> None:
    """A value would be handed on without one of its parts, or with one of another."""
    words = ["abc", "", "d", "efghij", "", "kl", ""]
    found = ran(words, mapped(str.upper), seed=seed)
    assert sorted(found) == sorted((word, list(word.upper())) for word in words)


def test_values_without_parts() -> None:
    """A value without parts would be waited for, also as the last one."""
    assert ran(["", ""], mapped(str.upper)) == [("", []), ("", [])]
    assert ran([], mapped(str.upper)) == []


@pytest.mark.parametrize("seed", range(10))
def test_fan_outs_nest(seed: int) -> None:
    """A part that has parts would lose them."""
    found = ran([["ab", ""], [], ["c"]], nested(mapped(str.upper)), seed=seed)
    assert sorted(found, key=repr) == sorted(
        [(["ab", ""], [("ab", ["A", "B"]), ("", [])]), ([], []), (["c"], [("c", ["C"])])], key=repr
    )


@pytest.mark.parametrize("seed", range(10))
def test_parts_of_several_values_share_calls(seed: int) -> None:
    """A call for few parts would be made for each value."""
    sizes: list[int] = []

    def upper(parts: Any) -> list[str]:
        sizes.append(len(parts))
        return [part.upper() for part in parts]

    found = ran(["abc", "defg", "h"], batched(upper, 4), seed=seed, groups=3)
    assert sorted(found) == [("abc", ["A", "B", "C"]), ("defg", [*"DEFG"]), ("h", ["H"])]
    assert sizes == [4, 4]


def test_dropped_parts_are_left_out() -> None:
    """A value would wait for a part that was filtered out."""
    found = ran(["abc", "bbb"], mapped(lambda part: part != "b", use=select))
    assert found == [("abc", ["a", "c"]), ("bbb", [])]
    found = ran(["abc"], mapped(str.index, on_error=lambda *_: None))
    assert found == [("abc", [])]


def test_open_values_are_bounded() -> None:
    """All values would be open at once, with all of their parts."""
    wiring = Wiring()
    scatter = ScatterProcessor(iter, groups=2, parts_max=9, outer=BARE)
    (output,) = wiring.through(scatter, wiring.source(["ab", "cd", "ef", "gh", "ij"]))
    output = mapped(str.upper)(wiring, output, scatter.carrier)
    wiring.sink(wiring.through(scatter.gather, output)[0])
    run = Sequential(wiring.graph)
    while run.calls:
        run.step(len(run.calls) - 1)
        assert len(scatter.open) <= 2
    assert run.is_finished


def test_too_many_parts_are_an_error() -> None:
    """One value would fill the memory."""
    with pytest.raises(ValueError, match="fan_out got more than 3 parts of one value"):
        ran(["abcd"], mapped(str.upper), parts_max=3)
    assert ran(["abc"], mapped(str.upper), parts_max=3) == [("abc", ["A", "B", "C"])]


def choosy(part: str) -> str:
    if part == "!":
        raise ValueError(part)
    return part.upper()


@pytest.mark.parametrize("seed", range(10))
def test_a_part_that_fails_fails_its_value_once(seed: int) -> None:
    """A value would be handed on without its failed part, or its neighbours fail with it."""
    carrier = Patient()
    words = ["ab", "c!d", "e", "!"]
    found = ran(words, mapped(choosy), seed=seed, carrier=carrier)
    assert sorted(found) == [("ab", ["A", "B"]), ("e", ["E"])]
    assert sorted(carrier.failed) == [("!", "!"), ("c!d", "!")]


def test_an_error_of_a_bare_value_ends_the_run() -> None:
    """An error would be lost with its part."""
    with pytest.raises(ValueError, match="!"):
        ran(["a!"], mapped(choosy))


def test_parts_that_cannot_be_read_fail_their_value() -> None:
    """A value would be handed on with the parts before the error."""
    carrier = Patient()

    def halting(word: str) -> Iterator[str]:
        yield from word
        if word == "ab":
            raise KeyError(word)

    found = ran(["ab", "c"], mapped(str.upper), parts=halting, carrier=carrier)
    assert found == [("c", ["C"])]
    assert carrier.failed == [("ab", "'ab'")]
    with pytest.raises(KeyError):
        ran(["ab", "c"], mapped(str.upper), parts=halting)


def test_no_call_is_made_for_an_obsolete_value() -> None:
    """A thread and a place among the values would be taken to find that nothing is to be done."""
    carrier, wiring = Patient(), Wiring()
    carrier.obsolete = {"ab"}
    output = fanned(wiring, wiring.source(["ab"]), mapped(str.upper), carrier=carrier)
    found, run = wiring.sink(output), Sequential(wiring.graph)
    called = []
    while run.calls:
        called.append(type(run.step().processor))
    assert run.is_finished
    assert (found, carrier.dropped) == ([], ["ab"])
    assert ScatterProcessor not in called


def test_a_value_that_becomes_obsolete_inside_frees_its_place() -> None:
    """Two cancelled values would stop all others."""
    carrier = Patient()

    def cancelling(part: str) -> str:
        carrier.obsolete.add("ab")
        return part.upper()

    assert ran(["ab", "c"], mapped(cancelling), groups=1, carrier=carrier) == [("c", ["C"])]
    assert carrier.dropped == ["ab"]


def test_parts_end_when_nothing_is_wanted() -> None:
    """A generator would stay open, or be read to its end."""
    closed: list[str] = []

    def letters(word: str) -> Iterator[str]:
        try:
            yield from word
        finally:
            closed.append(word)

    words = ["ab", "c" * 90, "d" * 90]
    assert ran(words, mapped(str.upper), limit=1, parts=letters) == [("ab", ["A", "B"])]
    assert closed[0] == "ab"
    assert len(closed) == len(set(closed)) <= 2
