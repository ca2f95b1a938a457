"""What a custom node is written as: a `Processor`, a state machine with ports.

The scheduler asks `Processor.event` what the node needs; the answer is a `NodeStatus`. `event` runs
under the scheduler's mutex: it moves values between ports and the processor, and calls no code of
the host. `process` and `async_process` run outside of it and use no port. The three never overlap
for one node.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from contextvars import Context
from enum import IntEnum
from typing import Any, Literal, Protocol, TypeAlias

from rowlock.errors import InternalError
from rowlock.graph.ports import EMPTY, InputPort, OutputPort, Port, PortOwner

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
    """What a processor reaches its scheduler by, during a run."""

    def wake(self, processor: Processor) -> None:
        """Ask its node soon."""

    def wake_after(self, processor: Processor, seconds: float | None) -> None:
        """Ask its node in that time; None takes the last request away."""


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
        """Have so many ports.

        Args:
            inputs: number of input ports.
            outputs: number of output ports.
            name: the name of the class by default.
        """
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
