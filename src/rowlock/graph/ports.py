"""Ports, and the edge between two of them: one slot and three flags, which are back pressure.

The consumer sets *needed*; the producer may then push one value, which fills the slot; the consumer
pulls it, which clears both. *Finished* is set by either side and never cleared: a producer has no
more values, or a consumer wants none. A value that was pushed before the producer finished is still
read: an input is finished only when its slot is empty.

A change is noted for the port at the other end, so that its node can be asked; a port is noted once
until its node has been asked. Nothing here locks: ports belong to their node's `event`, which the
scheduler calls under its mutex. Using one elsewhere is an `InternalError`, not a race.

Source: ``port.rs`` of Databend, where the three flags are the low bits of an atomic pointer.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

from rowlock.errors import InternalError

T = TypeVar("T")


class Empty:
    """The type of `EMPTY`, the content of a slot without a value."""

    def __repr__(self) -> str:
        return "EMPTY"


EMPTY: Final = Empty()
"""The content of a slot without a value; None is a value like any other."""


class PortOwner:
    """What ports belong to: a node of a graph.

    Attributes:
        changed: its ports that the other side has changed since the node was last asked; the oldest
            first, each once.
    """

    __slots__ = ("changed",)

    def __init__(self) -> None:
        self.changed: list[Port] = []


class Changes:
    """What the edges of one graph report while nodes are asked.

    Attributes:
        asked: the owner whose `event` runs now; only its ports may be used.
        owners: whose ports changed; the newest last, maybe more than once.
        dropped: values that left their slot unread. They are kept until the mutex is free, because
            ``__del__`` of a value is code of the host.
    """

    __slots__ = ("asked", "dropped", "owners")

    def __init__(self) -> None:
        self.asked: PortOwner | None = None
        self.owners: list[PortOwner] = []
        self.dropped: list[object] = []


class Edge(Generic[T]):
    """The way of values from one output port to one input port.

    Attributes:
        value: the content of the slot; `EMPTY` if there is none.
        is_needed: the consumer asks for a value.
        is_finished: one side is done.
        passed: how many values were pushed.
        unread: how many of them were dropped since the consumer was done.
    """

    __slots__ = (
        "changes",
        "is_finished",
        "is_needed",
        "passed",
        "source",
        "target",
        "unread",
        "value",
    )

    def __init__(self, source: OutputPort[T], target: InputPort[T], changes: Changes) -> None:
        self.source = source
        self.target = target
        self.changes = changes
        self.value: T | Empty = EMPTY
        self.is_needed = False
        self.is_finished = False
        self.passed = 0
        self.unread = 0

    def clear(self) -> None:
        """Finish the edge and drop the value in its slot."""
        self.is_finished = True
        if self.value is not EMPTY:
            self.changes.dropped.append(self.value)
            self.value = EMPTY
            self.unread += 1


class _End(Generic[T]):
    """One end of an edge.

    Attributes:
        owner: the node of this port; None outside of a graph.
        is_changed: it stands in the list of its owner.
    """

    __slots__ = ("edge", "is_changed", "owner")

    def __init__(self) -> None:
        self.edge: Edge[T] = _UNCONNECTED
        self.owner: PortOwner | None = None
        self.is_changed = False

    @property
    def is_connected(self) -> bool:
        """Whether there is a port at the other end."""
        return self.edge is not _UNCONNECTED

    def _used_edge(self) -> Edge[T]:
        edge = self.edge
        if edge.changes.asked is not self.owner:
            msg = "a port that is not connected, or used outside of its own node's event()"
            raise InternalError(msg)
        return edge

    def notify(self, changes: Changes) -> None:
        """Note that the other end has changed this edge: the port's node is to be asked."""
        owner = self.owner
        if not self.is_changed and owner is not None:
            self.is_changed = True
            owner.changed.append(self)  # type: ignore[arg-type]  # both kinds are a `Port`
            changes.owners.append(owner)


class InputPort(_End[T]):
    """Where a node reads values."""

    __slots__ = ()

    @property
    def has_data(self) -> bool:
        """Whether there is a value to pull."""
        return self.edge.value is not EMPTY

    @property
    def is_finished(self) -> bool:
        """Whether no value will come any more, and none is left to read."""
        edge = self.edge
        return edge.is_finished and edge.value is EMPTY

    def need(self) -> None:
        """Ask for one value; nothing changes on a finished edge."""
        edge = self._used_edge()
        if not edge.is_needed:
            edge.is_needed = True
            if not edge.is_finished:
                edge.source.notify(edge.changes)

    def pull(self) -> T:
        """Return the value, which leaves the slot; the next one comes only when it is needed.

        The producer is not asked because of this: it can push only once a value is needed again.

        Raises:
            InternalError: there is none.
        """
        edge = self._used_edge()
        value = edge.value
        if value is EMPTY:
            msg = "pull() without a value: ask has_data first"
            raise InternalError(msg)
        edge.value = EMPTY
        edge.is_needed = False
        return cast("T", value)

    def finish(self) -> None:
        """Want no more values; one in the slot is dropped. Again: nothing happens."""
        edge = self._used_edge()
        if not edge.is_finished:
            edge.source.notify(edge.changes)
        edge.clear()


class OutputPort(_End[T]):
    """Where a node writes values."""

    __slots__ = ()

    @property
    def can_push(self) -> bool:
        """Whether the consumer asks for a value and its slot is empty."""
        edge = self.edge
        return edge.is_needed and edge.value is EMPTY and not edge.is_finished

    @property
    def has_data(self) -> bool:
        """Whether the last value is not pulled yet."""
        return self.edge.value is not EMPTY

    @property
    def is_finished(self) -> bool:
        """Whether the consumer wants no more values, or this side has none."""
        return self.edge.is_finished

    def push(self, value: T) -> None:
        """Fill the slot. An exception is a value like any other.

        Raises:
            InternalError: the slot is full, or the edge is finished.
        """
        edge = self._used_edge()
        if edge.value is not EMPTY or edge.is_finished:
            msg = "push() to a full or finished port: ask can_push first"
            raise InternalError(msg)
        edge.value = value
        edge.passed += 1
        edge.target.notify(edge.changes)

    def finish(self) -> None:
        """Have no more values; one in the slot is still read. Again: nothing happens."""
        edge = self._used_edge()
        if not edge.is_finished:
            edge.is_finished = True
            edge.target.notify(edge.changes)


Port: TypeAlias = InputPort[Any] | OutputPort[Any]


def connect(output: OutputPort[T], input_: InputPort[T], changes: Changes | None = None) -> Edge[T]:
    """Join two ports by a new edge and return it.

    Args:
        output: where values come from.
        input_: where they go.
        changes: of the graph that the ports belong to; the edge's own by default, for processors
            that are asked by hand.

    Raises:
        InternalError: a port is connected already.
    """
    if output.is_connected or input_.is_connected:
        msg = "a port is connected once"
        raise InternalError(msg)
    output.edge = input_.edge = Edge(output, input_, Changes() if changes is None else changes)
    return output.edge


def _unconnected() -> Edge[Any]:
    # No port is owned by this owner, so every use of an unconnected port is refused.
    edge: Edge[Any] = object.__new__(Edge)
    edge.changes = Changes()
    edge.changes.asked = PortOwner()
    edge.value = EMPTY
    edge.is_needed = edge.is_finished = False
    edge.passed = edge.unread = 0
    return edge


_UNCONNECTED: Final[Edge[Any]] = _unconnected()
