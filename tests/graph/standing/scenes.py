"""Standing graphs for tests, and what such a test waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rowlock.errors import GraphDeadlockError
from rowlock.graph import Flow, NodeStatus, Port, Processor, StandingGraph


class Heard(StandingGraph[Any, Any]):
    def __init__(self, build: Callable[[Any], Any], *, name: str = "graph") -> None:
        super().__init__(build, name=name)
        self.rebuilt_after: list[Exception] = []
        self.deadlocks: list[GraphDeadlockError] = []
        self.long: list[tuple[int, int]] = []

    def _rebuilt(self, error: Exception) -> None:
        self.rebuilt_after.append(error)

    def _deadlocked(self, error: GraphDeadlockError) -> None:
        self.deadlocks.append(error)

    def _call_took_long(self, node: Any, seconds: float) -> None:
        self.long.append((node.lane, round(seconds)))


class Gate:
    """Calls that wait until a test lets them go on.

    Attributes:
        begun: the values of calls that have begun.
        ended: those that went through.
        cancelled: those that were cancelled.
        has_begun: set when the first one has.
    """

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.ended: list[Any] = []
        self.cancelled: list[Any] = []
        self.has_begun = asyncio.Event()
        self._open = asyncio.Event()

    async def passed(self, value: Any) -> Any:
        self.begun.append(value)
        self.has_begun.set()
        try:
            await self._open.wait()
        except asyncio.CancelledError:
            self.cancelled.append(value)
            raise
        self.ended.append(value)
        return value

    async def all_passed(self, values: Sequence[Any]) -> list[Any]:
        return list(await self.passed(list(values)))

    def open(self) -> None:
        self._open.set()


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def outcomes(submits: Iterable[asyncio.Task[Any]]) -> list[Any]:
    """Wait for tasks, and return their results or errors."""
    return await asyncio.gather(*submits, return_exceptions=True)


def doubled(value: int) -> int:
    return 2 * value


def evens_fail(value: int) -> int:
    if value % 10 == 0:
        raise ValueError(value)
    return value


class Custom(Processor):
    """A node whose `event` does what a test says."""

    def __init__(self, act: Callable[[Any], NodeStatus | None]) -> None:
        super().__init__(inputs=1, outputs=1, name="custom")
        self.act = act

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Pass values on, after `act` was called with each."""
        source, output = self.inputs[0], self.outputs[0]
        if source.has_data and output.can_push:
            envelope = source.pull()
            answer = self.act(envelope.value)
            if answer is not None:
                return answer
            output.push(envelope)
        source.need()
        return NodeStatus.NEED_DATA


def custom(flow: Flow[Any], act: Callable[[Any], NodeStatus | None]) -> Flow[Any]:
    return flow._into([Custom(act)], name="custom")
