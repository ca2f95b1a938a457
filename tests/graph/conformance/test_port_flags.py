"""Databend's ``port_test.rs``: what our ports have in common with theirs.

Theirs are atomic and may be used from two threads; ours belong to the scheduler's mutex, so the
ping-pong takes place in one. Their splitting of blocks has no counterpart.
"""

from __future__ import annotations

import gc
import weakref

from rowlock.graph.processor import InputPort, OutputPort, connect


class Block:
    """A value that can be watched."""


def test_port_drop() -> None:
    """An edge that is forgotten would keep the value in its slot alive."""
    output, input_ = OutputPort[Block](), InputPort[Block]()
    connect(output, input_)
    block = Block()
    output.push(block)
    seen = weakref.ref(block)
    del block, output, input_
    gc.collect()
    assert seen() is None


def test_input_and_output_port() -> None:
    """A hundred values would not arrive one by one and in order; errors are sent as data."""
    output, input_ = OutputPort[Exception](), InputPort[Exception]()
    connect(output, input_)
    for index in range(100):
        input_.need()
        assert output.can_push
        output.push(ValueError(index))
        assert input_.has_data
        assert input_.pull().args == (index,)


def test_input_and_output_flags() -> None:
    """A consumer that asks after the end would reopen the edge."""
    output, input_ = OutputPort[int](), InputPort[int]()
    connect(output, input_)
    output.finish()
    assert input_.is_finished
    input_.need()
    assert input_.is_finished
