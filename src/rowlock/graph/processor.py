"""What a custom node is written as: a `Processor`, a state machine with ports; and the edge between
two ports: one slot and three flags, which are back pressure.

The consumer sets *needed*; the producer may then push one value, which fills the slot; the consumer
pulls it, which clears both. *Finished* is set by either side and never cleared: a producer has no
more values, or a consumer wants none. A value that was pushed before the producer finished is still
read: an input is finished only when its slot is empty. A change is noted for the port at the other
end, once until its node has been asked.

The scheduler asks `Processor.event` what the node needs; the answer is a `NodeStatus`. `event` runs
under the scheduler's mutex: it moves values between ports and the processor, and calls no code of
the host. `process` and `async_process` run outside of it and use no port, whose use there is an
`InternalError`, not a race. The three never overlap for one node.

Source: ``port.rs`` of Databend, where the three flags are the low bits of an atomic pointer.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

from rowlock.errors import InternalError

# ---------------------------------------------------------------- ports


T = TypeVar("T")


class Empty:
    def __repr__(self) -> str:
        return "EMPTY"


EMPTY: Final = Empty()
"""The content of a slot without a value; None is a value like any other."""


@dataclass(slots=True, eq=False)
class PortOwner:
    # Ports that the other side changed since the last ask, oldest first
    changed: list[Port] = field(default_factory=list, init=False)


@dataclass(slots=True, eq=False)
class Changes:
    """What the edges of one graph report while nodes are asked."""

    # The owner whose `event` runs now; only its ports may be used
    asked: PortOwner | None = None
    # Whose ports changed; the newest last, maybe more than once
    owners: list[PortOwner] = field(default_factory=list)
    # Values that left their slot unread, kept until the mutex is free: ``__del__`` of a value is
    # code of the host
    dropped: list[object] = field(default_factory=list)


@dataclass(slots=True, eq=False, repr=False)
class Edge(Generic[T]):
    """The way of values from one output port to one input port."""

    source: OutputPort[T]
    target: InputPort[T]
    changes: Changes
    value: T | Empty = EMPTY
    is_needed: bool = False
    is_finished: bool = False  # one side is done
    passed: int = 0
    unread: int = 0  # how many values were dropped since the consumer was done

    def clear(self) -> None:
        """Finish the edge and drop the value in its slot."""
        self.is_finished = True
        if self.value is not EMPTY:
            self.changes.dropped.append(self.value)
            self.value = EMPTY
            self.unread += 1


class _End(Generic[T]):
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
    """Join two ports."""
    # `changes` is that of the graph; by default the edge has its own, for processors that are asked
    # by hand.
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


# ---------------------------------------------------------------- processor


Place: TypeAlias = Literal["loop", "thread", "process"]
"""Where host code is called: in the event loop, in a thread, or in a child process.

A processor whose code runs in a child process answers `NodeStatus.ASYNC` and awaits it.
"""


class NodeStatus(IntEnum):
    """What a node answers when it is asked."""

    NEED_DATA = 0
    """It waits for a value of an input port, or to be woken."""
    NEED_CONSUME = 1
    """It waits until the consumer of an output port wants a value."""
    SYNC = 2
    """Call `Processor.process`, then ask again."""
    ASYNC = 3
    """Await `Processor.async_process`, then ask again."""
    FINISHED = 4
    """It is done; it is not asked again, and its ports are finished."""


class Waker(Protocol):
    def wake(self, processor: Processor) -> None: ...

    def wake_after(self, processor: Processor, seconds: float | None) -> None: ...


class Processor:
    """A state machine with ports; `event` is to be implemented, and what it answers.

    Attributes:
        name: of the operator it belongs to, for pictures, statistics and errors.
        inputs: ports to read from; all of them are connected when a run begins.
        outputs: ports to write to.
        owner: the node that it is in a graph.
        place: where `process` and `close` are called. A thread by default.
        blocks: its calls may wait long for something outside, as a read of a queue does. The thread
            that runs one is replaced meanwhile, so that other calls do not wait for it.
        holds_max: how many values it holds at most, beside those in its edges.
        context: the context variables of which the next call gets a copy; None for the run's.
        is_due: the time given to `wake_after` has passed.
        keeps_task: its next `async_process` or `async_close` is awaited in the task of the last
            one, since what it reads from has opened something that belongs to a task.
        cancellation: of that task, while nothing was awaited in it: by what was opened there, such
            as a timeout.
        made: values that it created: those of a source, or parts beyond the first.
        merged: values that became part of others.
        failed: values whose call raised, if the run went on.
        dropped: values that it left out.
    """

    place: Place = "thread"
    blocks: bool = False
    holds_max: int = 1

    def __init__(self, *, inputs: int = 0, outputs: int = 0, name: str = "") -> None:
        """Have so many ports; `name` is that of the class by default."""
        self.name = name or type(self).__name__
        self.inputs: Sequence[InputPort[Any]] = [InputPort() for _ in range(inputs)]
        self.outputs: Sequence[OutputPort[Any]] = [OutputPort() for _ in range(outputs)]
        self.owner: PortOwner | None = None
        self.context: Context | None = None
        self.is_due = self.keeps_task = False
        self.cancellation: CancelledError | None = None
        self.made = self.merged = self.failed = self.dropped = 0
        self._waker: Waker | None = None

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Move values, and return what the node needs now.

        It is called under the scheduler's mutex: it must be quick, and calls no code of the host.

        Args:
            changed: the ports that the other side has changed since the last call, those during
                `process` included; the oldest change first, each port once. Empty at the start,
                after a call, and when the node was woken. The list is reused: copy it to keep it.
        """
        raise NotImplementedError

    def process(self) -> None:
        """Do the work after `NodeStatus.SYNC`, at `place`. What it raises ends the run."""
        raise NotImplementedError

    async def async_process(self) -> None:
        """Do the work after `NodeStatus.ASYNC`, in the event loop. What it raises ends the run."""
        raise NotImplementedError

    def details(self) -> str:
        """Return what the node waits for beside its ports, for reports: "needs 100 values"."""
        return ""

    def awaited(self) -> Sequence[Processor]:
        """Return the processors that the node waits for beside its ports, for reports.

        A node that lets few values into a part of the graph waits for the one that lets them out.
        Without this, a deadlock through the two would name no cycle.
        """
        return ()

    def subject(self) -> object:
        """Return the value that `process` or `async_process` works on, for the note on an error;
        `EMPTY` if there is none.
        """
        return EMPTY

    def is_open(self) -> bool:
        """Return whether an idle node may still be woken from outside of the graph.

        A graph in which nothing runs is not deadlocked while that is so. Called under the
        scheduler's mutex.
        """
        return False

    def closing(self) -> NodeStatus | None:
        """Return how the processor is closed when the run ends: `NodeStatus.SYNC` for `close`, at
        `place`, `NodeStatus.ASYNC` for `async_close`; None if there is nothing to close.

        It is asked once, when no call of the node runs.
        """
        return None

    def close(self) -> None:
        """Close what the processor reads from, such as a generator."""

    async def async_close(self) -> None:
        """Close what the processor reads from, such as an asynchronous generator."""

    def clear(self) -> None:
        """Forget all values: the run has ended. They must not outlive it."""

    def wake(self) -> None:
        """Have the node asked soon. Callable from any thread, a signal handler or ``__del__``.

        Nothing happens outside of a run.
        """
        if self._waker is not None:
            self._waker.wake(self)

    def wake_after(self, seconds: float | None) -> None:
        """Have the node asked in `seconds`, with `is_due` set; only from `event`.

        A later request replaces an earlier one, and None takes it away.

        Raises:
            InternalError: no run has begun.
        """
        if self._waker is None:
            msg = "wake_after() outside of a run"
            raise InternalError(msg)
        self.is_due = False
        self._waker.wake_after(self, seconds)

    def attach(self, waker: Waker | None) -> None:
        """Have a scheduler to wake, or none any more; the scheduler calls it."""
        self._waker = waker
