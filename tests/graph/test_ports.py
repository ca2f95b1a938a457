"""Ports: which flags an act sets, what the other side sees of it, and who may use one."""

from __future__ import annotations

import pytest

from rowlock.errors import InternalError
from rowlock.graph.processor import Changes, Edge, InputPort, OutputPort, PortOwner, connect


def joined() -> tuple[OutputPort[int], InputPort[int], Edge[int]]:
    """Return two ports that no graph owns, and their edge."""
    output, input_ = OutputPort[int](), InputPort[int]()
    return output, input_, connect(output, input_)


def owned() -> tuple[OutputPort[int], InputPort[int], Changes]:
    """Return the ports of two nodes, of which the producer is asked."""
    output, input_, changes = OutputPort[int](), InputPort[int](), Changes()
    connect(output, input_, changes)
    output.owner, input_.owner = PortOwner(), PortOwner()
    changes.asked = output.owner
    return output, input_, changes


def test_value_is_pushed_when_needed() -> None:
    """A producer would fill slots that no consumer reads, and back pressure would begin one value
    late at each node.
    """
    output, input_, _ = joined()
    assert not output.can_push
    input_.need()
    assert output.can_push
    output.push(1)
    assert (output.can_push, output.has_data, input_.has_data) == (False, True, True)
    assert input_.pull() == 1
    assert (output.can_push, output.has_data, input_.has_data) == (False, False, False)


def test_value_before_the_end_is_read() -> None:
    """The last value of a stream would be lost."""
    output, input_, _ = joined()
    output.push(1)
    output.finish()
    assert (input_.is_finished, output.is_finished) == (False, True)
    assert input_.pull() == 1
    assert input_.is_finished
    input_.need()
    assert input_.is_finished


def test_consumer_that_is_done_drops_the_value() -> None:
    """A value would stay in a slot that is never read again, and be kept alive there."""
    output, input_, edge = joined()
    output.push(1)
    input_.finish()
    assert (input_.is_finished, output.is_finished, output.has_data) == (True, True, False)
    assert (edge.passed, edge.unread, edge.changes.dropped) == (1, 1, [1])


def test_finish_is_idempotent() -> None:
    """A node that is asked again after its end would report changes for ever."""
    output, input_, changes = owned()
    output.finish()
    assert input_.owner is not None
    changes.owners.clear()
    input_.is_changed = False
    output.finish()
    assert not changes.owners


@pytest.mark.parametrize("value", [None, 0, ValueError("x")])
def test_any_value_passes(value: object) -> None:
    """None, what is false, or an error as data would be taken for an empty slot."""
    output, input_ = OutputPort[object](), InputPort[object]()
    connect(output, input_)
    output.push(value)
    assert input_.has_data
    assert input_.pull() is value


def test_pull_needs_a_value() -> None:
    """A mistake of a processor would look like a value."""
    _, input_, _ = joined()
    with pytest.raises(InternalError, match="has_data"):
        input_.pull()


def test_pull_alone_asks_no_producer() -> None:
    """Each value would cost one more event, in which its producer can do nothing."""
    output, input_, changes = owned()
    output.push(1)
    changes.owners.clear()
    changes.asked = input_.owner
    assert input_.pull() == 1
    assert not changes.owners
    input_.need()
    assert changes.owners == [output.owner]


def test_full_slot_is_not_overwritten() -> None:
    """A value would be lost without a trace."""
    output, input_, _ = joined()
    output.push(1)
    with pytest.raises(InternalError, match="can_push"):
        output.push(2)
    assert input_.pull() == 1


def test_finished_edge_accepts_nothing() -> None:
    """A value would be kept by an edge that is never read."""
    output, input_, _ = joined()
    input_.need()
    input_.finish()
    assert not output.can_push
    with pytest.raises(InternalError, match="can_push"):
        output.push(1)


@pytest.mark.parametrize("act", ["push", "finish"])
def test_port_outside_of_its_event_is_refused(act: str) -> None:
    """A call would change an edge while another thread schedules."""
    output, _, changes = owned()
    changes.asked = None
    with pytest.raises(InternalError, match=r"event\(\)"):
        getattr(output, act)(*[1] * (act == "push"))


@pytest.mark.parametrize("act", ["need", "pull", "finish"])
def test_port_of_another_node_is_refused(act: str) -> None:
    """A node could read what belongs to another, which would never learn of it."""
    output, input_, _ = owned()
    output.push(1)
    with pytest.raises(InternalError, match=r"event\(\)"):
        getattr(input_, act)()


def test_unconnected_port_is_refused() -> None:
    """A processor that was not added to a graph would fail with an AttributeError."""
    output, input_ = OutputPort[int](), InputPort[int]()
    assert not output.is_connected
    flags = (output.can_push, output.has_data, input_.has_data, input_.is_finished)
    assert not any(flags)
    for act in (input_.need, input_.finish, output.finish):
        with pytest.raises(InternalError, match="not connected"):
            act()


def test_port_is_connected_once() -> None:
    """One of two consumers would silently get nothing."""
    output, input_, _ = joined()
    with pytest.raises(InternalError, match="once"):
        connect(output, InputPort[int]())
    with pytest.raises(InternalError, match="once"):
        connect(OutputPort[int](), input_)
