"""Lanes whose results come in the order of their values.

The one idea: each lane gives one result for one value, in order; so it is enough to remember which
lane got the n-th value, and to emit the next result of that lane. Lanes go on behind a slow value:
their results wait at the end, as many as may be ahead.

Not here: what is done with dropped values. Their lanes mark them (`carriers.GONE`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from rowlock.graph.ports import Port
from rowlock.graph.processor import NodeStatus, Processor
from rowlock.graph.stock.carriers import GONE, discard
from rowlock.graph.stock.port_queues import FullInputs, HungryOutputs, ask_again


class OrderedDispatch(Processor):
    """Passes each item to an idle lane, and remembers to which.

    Attributes:
        lanes: of the items that were passed on and not emitted yet, the numbers of their lanes.
        ahead: how many these may be.
        collect: what emits their results.
    """

    holds_max = 0

    def __init__(self, lanes: int, *, ahead: int, name: str = "") -> None:
        """Serve so many lanes.

        Args:
            lanes: how many.
            ahead: how many values are between the first one that is not emitted and the last one
                that is worked on.
            name: of the operator.
        """
        super().__init__(inputs=1, outputs=lanes, name=name)
        self.lanes: deque[int] = deque()
        self.ahead = ahead
        self.collect: OrderedCollect | None = None
        self._hungry = HungryOutputs(self.outputs)
        self._numbers = {port: at for at, port in enumerate(self.outputs)}

    @property
    def is_full(self) -> bool:
        """Whether no more items may be passed on."""
        return len(self.lanes) >= self.ahead

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Pass an item on, if a lane is idle."""
        source = self.inputs[0]
        self._hungry.update(changed)
        if self._hungry.are_finished:
            source.finish()
            return NodeStatus.FINISHED
        if source.has_data and self._hungry and not self.is_full:
            self.lanes.append(self._numbers[self._hungry.push(source.pull())])
        if source.is_finished:
            self._hungry.finish()
            return NodeStatus.FINISHED
        source.need()
        return NodeStatus.NEED_CONSUME if source.has_data else NodeStatus.NEED_DATA

    def details(self) -> str:
        """Return how many results are awaited, and of which lane the first."""
        if not self.lanes:
            return ""
        return f"{len(self.lanes)} of {self.ahead} ahead; lane {self.lanes[0]} has the first"

    def awaited(self) -> Sequence[Processor]:
        """Return what emits the results while no more items may be passed on."""
        return (self.collect,) if self.collect is not None and self.is_full else ()


class OrderedCollect(Processor):
    """Emits the results of lanes in the order in which `OrderedDispatch` passed the items on."""

    def __init__(self, dispatch: OrderedDispatch) -> None:
        """Collect what one dispatch passes on.

        Args:
            dispatch: of the same lanes.
        """
        super().__init__(inputs=len(dispatch.outputs), outputs=1, name=dispatch.name)
        self.holds_max = dispatch.ahead
        self._dispatch = dispatch
        dispatch.collect = self
        self._full = FullInputs(self.inputs)
        self._results: list[deque[Any]] = [deque() for _ in self.inputs]
        self._numbers = {port: at for at, port in enumerate(self.inputs)}

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Take in what is there, and emit the next result."""
        if self.outputs[0].is_finished:
            return self._end()
        self._full.update(changed)
        while self._full:
            port, result = self._full.pull()
            self._results[self._numbers[port]].append(result)
        self._emit()
        if self._full.are_used_up and not self._dispatch.lanes:
            return self._end()
        is_held = bool(self._dispatch.lanes and self._results[self._dispatch.lanes[0]])
        return NodeStatus.NEED_CONSUME if is_held else NodeStatus.NEED_DATA

    def _emit(self) -> None:
        lanes, was_full = self._dispatch.lanes, self._dispatch.is_full
        while lanes and (results := self._results[lanes[0]]):
            if results[0] is GONE:
                self.merged += 1
            elif self.outputs[0].can_push:
                self.outputs[0].push(results[0])
            else:
                break
            results.popleft()
            lanes.popleft()
        if was_full and not self._dispatch.is_full:
            ask_again(self._dispatch)

    def _end(self) -> NodeStatus:
        for results in self._results:
            while results:
                result = results.popleft()
                self.dropped += result is not GONE
                self.merged += result is GONE
                discard(self.inputs[0], result)
        self._full.finish()
        self.outputs[0].finish()
        return NodeStatus.FINISHED

    def clear(self) -> None:
        """Forget all results."""
        for results in self._results:
            results.clear()
