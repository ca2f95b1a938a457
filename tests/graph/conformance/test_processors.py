"""Databend's ``resize.rs`` and ``duplicate.rs``: processors asked by hand, act by act.

Their resize learns by which port it was caused to be asked; ours gets the ports that changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rowlock.graph.processor import InputPort, NodeStatus, OutputPort, Processor, connect
from rowlock.graph.stock.branches import DuplicateProcessor, ResizeProcessor


def ports_around(processor: Processor) -> tuple[list[OutputPort[int]], list[InputPort[int]]]:
    """Connect a processor that no graph owns, and return the other ends."""
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


class Duplicated:
    """A duplicate with two readers, asked by hand."""

    def __init__(self) -> None:
        self.node = DuplicateProcessor(2)
        (self.writer,), self.readers = ports_around(self.node)

    def after(self, *, needs: Sequence[int] = (), finishes: Sequence[int] = ()) -> NodeStatus:
        """Ask it after some readers have asked for values, and others have left."""
        for index in needs:
            self.readers[index].need()
        for index in finishes:
            self.readers[index].finish()
        return self.node.event(())


def test_duplicate_output_finish_one_by_one() -> None:
    """One reader that leaves would take the values of the other with it; or, once both have left,
    a source would be read for no reader.
    """
    duplicated = Duplicated()
    assert duplicated.after(needs=[0, 1], finishes=[0]) is NodeStatus.NEED_DATA
    assert duplicated.after(finishes=[1]) is NodeStatus.FINISHED
    assert duplicated.writer.is_finished


def test_duplicate_output_finish_and_the_other_can_push() -> None:
    """The reader that is left would wait for one that has gone."""
    duplicated = Duplicated()
    assert duplicated.after(finishes=[0], needs=[1]) is NodeStatus.NEED_DATA
    assert duplicated.writer.can_push


def test_duplicate_processor() -> None:
    """A reader would get another value than its neighbour, or none."""
    duplicated = Duplicated()
    duplicated.writer.push(7)
    assert duplicated.after(needs=[0, 1]) is NodeStatus.NEED_CONSUME
    assert [reader.pull() for reader in duplicated.readers] == [7, 7]
