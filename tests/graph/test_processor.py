"""Processors by themselves: what holds without a run."""

from __future__ import annotations

import pytest

from rowlock.errors import InternalError
from rowlock.graph.processor import Processor


class Quiet(Processor):
    """A processor that overrides nothing."""


def test_operator_has_a_name() -> None:
    """Errors and pictures would name nothing."""
    assert Quiet().name == "Quiet"
    assert Quiet(name="parse").name == "parse"


def test_ports_are_made_with_it() -> None:
    """A graph could not connect what has no ports."""
    made = Quiet(inputs=2, outputs=3)
    assert (len(made.inputs), len(made.outputs)) == (2, 3)


def test_wake_outside_of_a_run_is_harmless() -> None:
    """A producer that outlives the run would fail in its own thread."""
    Quiet().wake()


def test_timer_outside_of_a_run_is_a_mistake() -> None:
    """A node would wait for a timer that no loop has."""
    with pytest.raises(InternalError, match="outside of a run"):
        Quiet().wake_after(1.0)


def test_nothing_is_closed_by_default() -> None:
    """Each node would cost a call at the end of a run."""
    assert Quiet().closing() is None
    assert not Quiet().is_open()
