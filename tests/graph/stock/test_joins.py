"""Flows are joined, copied, limited and buffered."""

from __future__ import annotations

import itertools
from itertools import chain
from typing import Any

import pytest

from rowlock.graph.processor import InputPort, NodeStatus, OutputPort, Processor, connect
from rowlock.graph.stock.carriers import (
    BufferProcessor,
    DuplicateProcessor,
    LimitProcessor,
    ResizeProcessor,
    ZipProcessor,
)
from rowlock.graph.stock.lanes import MapProcessor

from ..one_thread import Sequential, Wiring


def joined(processor: Any, *sources: Any, limit: int | None = None) -> list[Any]:
    """Join sources by a processor with one output, and return what comes out."""
    wiring = Wiring()
    (output,) = wiring.through(processor, *(wiring.source(items) for items in sources))
    if limit is not None:
        (output,) = wiring.through(LimitProcessor(limit), output)
    found = wiring.sink(output)
    assert Sequential(wiring.graph).run().is_finished
    return found


@pytest.mark.parametrize("inputs", [1, 3, 8])
@pytest.mark.parametrize("outputs", [1, 3, 8])
def test_resize_passes_each_value_once(inputs: int, outputs: int) -> None:
    """A value would be lost, or come twice, where widths differ."""
    wiring = Wiring()
    sources = [wiring.source(range(at, 100, inputs)) for at in range(inputs)]
    found = [
        wiring.sink(output) for output in wiring.through(ResizeProcessor(inputs, outputs), *sources)
    ]
    assert Sequential(wiring.graph).run().is_finished
    assert sorted(chain(*found)) == list(range(100))
    assert all(found)


def test_resize_asks_no_port_that_did_not_change() -> None:
    """A value would cost more the more lanes there are."""
    wiring = Wiring()
    resize = ResizeProcessor(1, 200)
    for output in wiring.through(resize, wiring.source(range(50))):
        wiring.sink(output)
    run = Sequential(wiring.graph)
    looked_at: list[int] = []
    event = resize.event

    def noting(changed: Any) -> Any:
        looked_at.append(len(changed))
        return event(changed)

    resize.event = noting  # type: ignore[method-assign]
    run.run()
    assert sum(looked_at) < 50 * 4 + 200


def test_a_value_goes_to_an_idle_lane() -> None:
    """A value would wait behind a slow one while other lanes are idle."""
    wiring = Wiring()
    lanes = [MapProcessor(lambda value: value, name=f"lane {at}") for at in range(3)]
    outputs = wiring.through(ResizeProcessor(1, 3), wiring.source(range(30)))
    results = [wiring.through(lane, output)[0] for lane, output in zip(lanes, outputs, strict=True)]
    (output,) = wiring.through(ResizeProcessor(3, 1), *results)
    found = wiring.sink(output)
    run = Sequential(wiring.graph)
    # The call of the first lane is never made: all others must come through.
    while others := [at for at, node in enumerate(run.calls) if node.operator != "lane 0"]:
        run.step(others[0])
    assert sorted([*found, lanes[0].item]) == list(range(30))


def test_resize_ends_upstream_when_no_output_is_left() -> None:
    """A source would be read to its end for no reader."""
    wiring = Wiring()
    outputs = wiring.through(ResizeProcessor(1, 2), wiring.source(range(1000)))
    found = [wiring.sink(wiring.through(LimitProcessor(3), output)[0]) for output in outputs]
    assert Sequential(wiring.graph).run().is_finished
    assert sorted(chain(*found)) == list(range(6))
    assert len(wiring.read) <= 6 + len(wiring.graph.edges)


def test_resize_goes_on_without_a_finished_output() -> None:
    """One lane that is done would take the values of the others with it."""
    wiring = Wiring()
    first, second = wiring.through(ResizeProcessor(1, 2), wiring.source(range(20)))
    limited = wiring.sink(wiring.through(LimitProcessor(2), first)[0])
    found = wiring.sink(second)
    assert Sequential(wiring.graph).run().is_finished
    assert len(limited) == 2
    assert sorted(limited + found) == list(range(20))


def test_merge_ends_with_its_last_input() -> None:
    """The first flow that ends would end all."""
    assert sorted(joined(ResizeProcessor(2, 1), [1], range(10, 20))) == [1, *range(10, 20)]


def test_zip() -> None:
    """Values of different rows would meet."""
    zip_ = ZipProcessor(3)
    assert joined(zip_, "abc", range(3), [None] * 3) == [
        ("a", 0, None),
        ("b", 1, None),
        ("c", 2, None),
    ]
    assert (zip_.merged, zip_.dropped) == (6, 0)


def test_zip_ends_with_the_shortest() -> None:
    """A row would wait for a value that never comes, or the rest would be read for nothing."""
    zip_ = ZipProcessor(2, ahead=2)
    wiring = Wiring()
    sources = [wiring.source("ab"), wiring.source(range(1000))]
    found = wiring.sink(wiring.through(zip_, *sources)[0])
    assert Sequential(wiring.graph).run().is_finished
    assert found == [("a", 0), ("b", 1)]
    assert len(wiring.read) < 10


def test_zip_is_so_far_ahead() -> None:
    """One flow could not be ahead at all, or without a bound."""
    zip_ = ZipProcessor(2, ahead=5)
    wiring = Wiring()
    wiring.sink(wiring.through(zip_, wiring.source("abc"), wiring.source(range(99)))[0])
    run = Sequential(wiring.graph)
    while at := [at for at, node in enumerate(run.calls) if node.operator == "source 2"]:
        run.step(at[0])
    assert wiring.read == [0, 1, 2, 3, 4]
    assert zip_.details() == "waits for input 0; input 1 is 5 ahead"
    assert zip_.holds_max == 10


def test_zip_drops_what_it_holds_when_nothing_is_wanted() -> None:
    """Values would live as long as the run."""
    zip_ = ZipProcessor(2)
    assert joined(zip_, "abcdef", range(9), limit=2) == [("a", 0), ("b", 1)]
    assert not any(zip_._held)


def ports_around(processor: Processor) -> tuple[list[OutputPort[int]], list[InputPort[int]]]:
    upstream = [OutputPort[int]() for _ in processor.inputs]
    downstream = [InputPort[int]() for _ in processor.outputs]
    for output, input_ in zip(upstream, processor.inputs, strict=True):
        connect(output, input_)
    for output, input_ in zip(processor.outputs, downstream, strict=True):
        connect(output, input_)
    return upstream, downstream


@pytest.mark.parametrize("width", range(1, 8))
def test_resize_output_finish(width: int) -> None:
    """A joint whose readers have left while it holds values would keep eight sources open."""
    resize = ResizeProcessor(8, width)
    upstream, downstream = ports_around(resize)
    for reader, output in zip(downstream, resize.outputs, strict=True):
        reader.need()
        resize.event([output])
    for writer, input_ in zip(upstream, resize.inputs, strict=True):
        assert writer.can_push
        writer.push(1)
        resize.event([input_])
    for reader, output in zip(downstream, resize.outputs, strict=True):
        assert reader.has_data
        reader.finish()
        status = resize.event([output])
    assert status is NodeStatus.FINISHED
    assert all(writer.is_finished for writer in upstream)


def test_resize_forgets_readers_that_have_left() -> None:
    """A value would go to a reader that asked and then left, and the run stop."""
    resize = ResizeProcessor(1, 2)
    writer, readers = OutputPort[int](), [InputPort[int](), InputPort[int]()]
    connect(writer, resize.inputs[0])
    for output, reader in zip(resize.outputs, readers, strict=True):
        connect(output, reader)
        reader.need()
        resize.event([output])
    readers[0].finish()
    writer.push(7)
    assert resize.event([resize.inputs[0], resize.outputs[0]]) is not NodeStatus.FINISHED
    assert readers[1].pull() == 7
    readers[1].need()
    resize.event([resize.outputs[1]])
    assert writer.can_push


def split_by(processor: Any, items: Any, limits: dict[int, int]) -> tuple[list[Any], Wiring]:
    """Run values through a processor with two outputs, and return what comes out of each."""
    wiring = Wiring()
    found = []
    for at, output in enumerate(wiring.through(processor, wiring.source(items))):
        through = output
        if at in limits:
            (through,) = wiring.through(LimitProcessor(limits[at]), output)
        found.append(wiring.sink(through))
    assert Sequential(wiring.graph).run().is_finished
    return found, wiring


def test_duplicate() -> None:
    """A reader would miss values that another one has got."""
    duplicate = DuplicateProcessor(2)
    found, _ = split_by(duplicate, range(5), {})
    assert found == [list(range(5))] * 2
    assert duplicate.made == 5


def test_duplicate_goes_on_without_a_reader() -> None:
    """One reader that has seen enough would end all others."""
    found, _ = split_by(DuplicateProcessor(2), range(9), {0: 2})
    assert found == [[0, 1], list(range(9))]


def test_duplicate_ends_without_readers() -> None:
    """A source would be read to its end for no reader."""
    _, wiring = split_by(DuplicateProcessor(2), range(1000), {0: 2, 1: 3})
    assert len(wiring.read) <= 3 + len(wiring.graph.edges)


def test_the_end_is_passed_on_to_those_that_want_nothing_now() -> None:
    """A node that waits for its other input would never hear that this one has ended."""
    wiring = Wiring()
    outputs = wiring.through(DuplicateProcessor(2), wiring.source(range(3)))
    found = wiring.sink(wiring.through(ZipProcessor(2, ahead=1), *outputs)[0])
    assert Sequential(wiring.graph).run().is_finished
    assert found == [(0, 0), (1, 1), (2, 2)]


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_limit_ends_an_endless_source(limit: int) -> None:
    """A run would never end, or read far more than it passes on."""
    wiring = Wiring()
    (output,) = wiring.through(MapProcessor(lambda one: one), wiring.source(itertools.count()))
    (output,) = wiring.through(LimitProcessor(limit), output)
    found = wiring.sink(output)
    run = Sequential(wiring.graph).run()
    assert run.is_finished
    assert found == list(range(limit))
    assert len(wiring.read) <= limit + len(wiring.graph.edges)


def test_limit_above_the_number_of_values() -> None:
    """A run would wait for values that do not come."""
    wiring = Wiring()
    found = wiring.sink(wiring.through(LimitProcessor(9), wiring.source("ab"))[0])
    assert Sequential(wiring.graph).run().is_finished
    assert found == ["a", "b"]


def test_limit_reads_nothing_that_is_not_wanted() -> None:
    """The last value would be read, and then wait behind the limit."""
    wiring = Wiring()
    wiring.sink(wiring.through(limit := LimitProcessor(9), wiring.source(range(9)))[0])
    run = Sequential(wiring.graph)
    while at := [at for at, node in enumerate(run.calls) if node.operator == "source"]:
        run.step(at[0])
    assert wiring.read == [0]
    assert limit.details() == "passes 8 more"


def test_buffer_lets_a_source_be_ahead() -> None:
    """A source would wait for each value to be worked on."""
    wiring = Wiring()
    buffer = BufferProcessor(4)
    found = wiring.sink(wiring.through(buffer, wiring.source(range(99)))[0])
    run = Sequential(wiring.graph)
    while at := [at for at, node in enumerate(run.calls) if node.operator == "source"]:
        run.step(at[0])
    # One is in the sink, four are held.
    assert wiring.read == [0, 1, 2, 3, 4]
    assert buffer.details() == "holds 4 of 4"
    run.run()
    assert found == list(range(99))


def test_buffer_drops_what_it_holds_when_nothing_is_wanted() -> None:
    """Values would live as long as the run."""
    wiring = Wiring()
    buffer = BufferProcessor(4)
    (output,) = wiring.through(buffer, wiring.source(range(99)))
    found = wiring.sink(wiring.through(LimitProcessor(2), output)[0])
    run = Sequential(wiring.graph)
    while not run.is_finished:
        sources = [at for at, node in enumerate(run.calls) if node.operator == "source"]
        run.step(sources[0] if sources else 0)
    assert found == [0, 1]
    assert not buffer._held
    assert buffer.dropped > 0
