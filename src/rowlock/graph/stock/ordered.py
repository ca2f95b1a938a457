"""Lanes whose results come in order: of all values, or of those of one key.

In the order of all values, each lane gives one result for one value; so it is enough to remember
which lane got the n-th value, and to emit the next result of that lane. Lanes go on behind a slow
value: their results wait at the end, as many as may be ahead.

By key, values of one key are worked on one at a time. Keys are the host's, and so are their
``__hash__`` and ``__eq__``: one node gives each value the record of its key, outside of the mutex,
and from there on records are compared by identity. A record is busy from the moment in which a lane
gets a value of it until the result is emitted. `begun` is written by the node that gives it,
`ended` by the one that emits: where both are equal nothing of that key is in the graph, and its
record is forgotten.

Dropped values are marked by their lanes (`carriers.GONE`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rowlock.graph.host_code import not_awaited
from rowlock.graph.processor import NodeStatus, Place, Port, Processor
from rowlock.graph.stock.carriers import (
    BARE,
    GONE,
    Carrier,
    FullInputs,
    HungryOutputs,
    ask_again,
    discard,
)
from rowlock.graph.stock.lanes import Lane


class OrderedDispatch(Processor):
    """Passes each item to an idle lane, and remembers to which."""

    holds_max = 0

    def __init__(self, lanes: int, *, ahead: int, name: str = "") -> None:
        super().__init__(inputs=1, outputs=lanes, name=name)
        # The numbers of the lanes of the items that were passed on and not emitted yet; `ahead` at
        # most
        self.lanes: deque[int] = deque()
        self.ahead = ahead
        self.collect: OrderedCollect | None = None
        self._hungry = HungryOutputs(self.outputs)
        self._numbers = {port: at for at, port in enumerate(self.outputs)}

    @property
    def is_full(self) -> bool:
        return len(self.lanes) >= self.ahead

    def event(self, changed: Sequence[Port]) -> NodeStatus:
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
        if not self.lanes:
            return ""
        return f"{len(self.lanes)} of {self.ahead} ahead; lane {self.lanes[0]} has the first"

    def awaited(self) -> Sequence[Processor]:
        return (self.collect,) if self.collect is not None and self.is_full else ()


class OrderedCollect(Processor):
    """Emits the results of lanes in the order in which `OrderedDispatch` passed the items on."""

    def __init__(self, dispatch: OrderedDispatch) -> None:
        super().__init__(inputs=len(dispatch.outputs), outputs=1, name=dispatch.name)
        self.holds_max = dispatch.ahead
        self._dispatch = dispatch
        dispatch.collect = self
        self._full = FullInputs(self.inputs)
        self._results: list[deque[Any]] = [deque() for _ in self.inputs]
        self._numbers = {port: at for at, port in enumerate(self.inputs)}

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        if self.outputs[0].is_finished:
            return self._end()
        self._full.update(changed)
        while self._full:
            port, result = self._full.pull()
            self._results[self._numbers[port]].append(result)
        self._emit()
        if self._full.are_finished and not self._dispatch.lanes:
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
        for results in self._results:
            results.clear()


@dataclass(slots=True, eq=False, repr=False)
class KeyRecord:
    key: Any
    begun: int = 0  # how many values it was given to
    ended: int = 0  # how many of them are out of the graph
    waiting: deque[Any] = field(default_factory=deque)  # items that no lane got yet
    is_busy: bool = False  # a lane has one, or its result is not emitted


class KeyProcessor(Lane):
    """Gives each item the record of its key."""

    def __init__(
        self,
        key: Callable[[Any], object],
        *,
        place: Place = "thread",
        name: str = "",
        carrier: Carrier = BARE,
    ) -> None:
        super().__init__(name=name, place=place, carrier=carrier)
        self._key = key
        self._records: dict[Any, KeyRecord] = {}
        # Records of which a value has left; some of them may be forgotten
        self.ended: deque[KeyRecord] = deque()

    def call(self, item: Any) -> Any:
        self._forget_ended()
        key = not_awaited(self._key(self.carrier.body(item)))
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = KeyRecord(key)
        record.begun += 1
        return (record, item)

    def _forget_ended(self) -> None:
        while self.ended:
            record = self.ended.popleft()
            if record.begun == record.ended:
                with suppress(BaseException):  # its hash is the host's, and may fail now
                    self._records.pop(record.key, None)

    def clear(self) -> None:
        super().clear()
        self._records.clear()
        self.ended.clear()


class KeyedDispatch(Processor):
    """Passes items to idle lanes, of each key one at a time."""

    def __init__(self, keys: KeyProcessor, lanes: int, *, ahead: int) -> None:
        super().__init__(inputs=1, outputs=lanes, name=keys.name)
        self.holds_max = self.ahead = ahead
        self.keys = keys
        self.inside = 0  # how many items it got that are not emitted; `ahead` at most
        self.collect: KeyedCollect | None = None
        # For each lane, those of the items that it was passed and that are not emitted
        self.records: list[deque[KeyRecord]] = [deque() for _ in range(lanes)]
        self._ready: deque[KeyRecord] = deque()
        self._waiting = 0
        self._hungry = HungryOutputs(self.outputs)
        self._numbers = {port: at for at, port in enumerate(self.outputs)}

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        source = self.inputs[0]
        self._hungry.update(changed)
        if self._hungry.are_finished:
            return self._end()
        if source.has_data and self.inside < self.ahead:
            self._admit(*source.pull())
        while self._ready and self._hungry:
            self._pass_on(self._ready.popleft())
        if source.is_finished and not self._waiting:
            return self._end()
        if self.inside < self.ahead:
            source.need()
        return NodeStatus.NEED_CONSUME if self._waiting else NodeStatus.NEED_DATA

    def _admit(self, record: KeyRecord, item: Any) -> None:
        self.inside += 1
        self._waiting += 1
        record.waiting.append(item)
        if not record.is_busy and len(record.waiting) == 1:
            self._ready.append(record)

    def _pass_on(self, record: KeyRecord) -> None:
        self._waiting -= 1
        record.is_busy = True
        at = self._numbers[self._hungry.push(record.waiting.popleft())]
        self.records[at].append(record)

    def emitted(self, lane: int) -> None:
        """Note that the next result of `lane` has left; its key is free."""
        record = self.records[lane].popleft()
        record.is_busy = False
        record.ended += 1
        if record.waiting:
            self._ready.append(record)
        else:
            self.keys.ended.append(record)
        is_awaited = self.inside == self.ahead or self._ready
        self.inside -= 1
        if is_awaited:
            ask_again(self)

    def _end(self) -> NodeStatus:
        # What waits is kept until the run has ended: it may have a `__del__`.
        self.dropped += self._waiting
        self._waiting = 0
        self._ready.clear()
        self.inputs[0].finish()
        self._hungry.finish()
        return NodeStatus.FINISHED

    def details(self) -> str:
        return f"{self.inside} of {self.ahead} inside, {self._waiting} wait for their key"

    def awaited(self) -> Sequence[Processor]:
        is_held = self._waiting or self.inside >= self.ahead
        return (self.collect,) if self.collect is not None and is_held else ()

    def clear(self) -> None:
        self._ready.clear()
        self.records.clear()


class KeyedCollect(Processor):
    """Emits the results of lanes as they come, and has their keys free."""

    holds_max = 0

    def __init__(self, dispatch: KeyedDispatch) -> None:
        super().__init__(inputs=len(dispatch.outputs), outputs=1, name=dispatch.name)
        self._dispatch = dispatch
        dispatch.collect = self
        self._full = FullInputs(self.inputs)
        self._numbers = {port: at for at, port in enumerate(self.inputs)}

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        output = self.outputs[0]
        if output.is_finished:
            self._full.finish()
            return NodeStatus.FINISHED
        self._full.update(changed)
        while self._full and output.can_push:
            port, result = self._full.pull()
            self._dispatch.emitted(self._numbers[port])
            if result is GONE:
                self.merged += 1
            else:
                output.push(result)
        if self._full.are_finished:
            output.finish()
            return NodeStatus.FINISHED
        return NodeStatus.NEED_CONSUME if self._full else NodeStatus.NEED_DATA
