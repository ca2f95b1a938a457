"""Parts of one value: scattered, worked on by the same lanes as those of others, and gathered.

The one idea: a part knows its group, so any operator between the two ends can hand it on, drop it
or fail it; the group is complete when each of its parts has come or is known to be lost. So few
groups are open that memory is bounded, and so many that the parts of the next value fill the lanes
while those of the first one end. Open groups are read in turn, a part of each, so that a value with
few parts does not wait for one with many.

A group is written by one side at a time: `results` by the gathering node, the rest by the
scattering one. What is lost is noted from any thread, by appending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from rowlock.graph.host_code import not_awaited
from rowlock.graph.processor import EMPTY, NodeStatus, Place, Port, Processor
from rowlock.graph.stock.carriers import GONE, Call, CallOwner, Carrier, ask_again, discard
from rowlock.graph.stock.sources import Reader
from rowlock.graph.topology import add_place


@dataclass(slots=True, eq=False, repr=False)
class PartGroup:
    item: Any  # the value, as its own carrier carries it
    count: int | None = None  # how many parts it has; None while they are still read
    results: dict[int, Any] = field(default_factory=dict)
    lost: deque[None] = field(default_factory=deque)  # one entry for each part that will not come
    is_obsolete: bool = False  # its result is not wanted: a part failed, or has left
    read: int = 0  # how many parts were read
    reader: Reader | None = None  # of its parts; None before the first one, and when it is closed
    call: Call | None = None  # that reads them, from the first part to the last

    @property
    def is_complete(self) -> bool:
        return self.count is not None and len(self.results) + len(self.lost) >= self.count


@dataclass(slots=True, eq=False, repr=False)
class PartEnvelope:
    group: PartGroup
    number: int
    value: Any


class PartCarrier(Carrier):
    """Values travel as parts of others, which `outer` carries."""

    def __init__(self, outer: Carrier) -> None:
        self._outer = outer
        self.has_callers = outer.has_callers
        self.gather: GatherProcessor | None = None

    def owner(self, item: Any) -> CallOwner | None:
        return self._outer.owner(item.group.item)

    def body(self, item: Any) -> Any:
        return item.value

    def result(self, item: Any, value: Any) -> Any:
        if self._outer.result(item.group.item, value) is GONE:
            item.group.is_obsolete = True
            self.drop(item)
            return GONE
        return PartEnvelope(item.group, item.number, value)

    def fail(self, item: Any, error: BaseException) -> bool:
        if not self._outer.fail(item.group.item, error):
            return False
        item.group.is_obsolete = True
        self.drop(item)
        return True

    def drop(self, item: Any) -> None:
        item.group.lost.append(None)
        if self.gather is not None:
            self.gather.wake()

    def is_wanted(self, item: Any) -> bool:
        return not item.group.is_obsolete and self._outer.is_wanted(item.group.item)

    def context(self, item: Any) -> Context | None:
        return self._outer.context(item.group.item)


class ScatterProcessor(Processor):
    """Reads the parts of each value, and hands them on."""

    # `groups` values may have parts inside; those in `open` do now.

    def __init__(
        self,
        parts: Callable[[Any], Iterable[Any]],
        *,
        groups: int,
        parts_max: int,
        outer: Carrier,
        place: Place = "thread",
        name: str = "fan_out",
    ) -> None:
        super().__init__(inputs=1, outputs=1, name=name)
        self.place = place
        self.holds_max = groups + 1
        self.carrier = PartCarrier(outer)
        self.gather = GatherProcessor(self, outer, holds_max=groups * parts_max)
        self.carrier.gather = self.gather
        self.open: dict[PartGroup, None] = {}
        self._parts = parts
        self.groups = groups
        self._parts_max = parts_max
        self._outer = outer
        self._reading: deque[PartGroup] = deque()
        self._group: PartGroup | None = None
        self._part: Any = EMPTY

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        source, output = self.inputs[0], self.outputs[0]
        group, self._group = self._group, None
        self.context = None
        if group is not None and group.count is None:
            self._reading.append(group)
        elif group is not None:
            ask_again(self.gather)
        if output.is_finished:
            return self._end()
        if self._part is not EMPTY:
            output.push(self._part)
            self._part = EMPTY
        if source.has_data and len(self.open) < self.groups:
            self._open(source.pull())
        if len(self.open) < self.groups:
            source.need()
        if self._reading:
            return self._read_next(is_blocked=not output.can_push)
        if source.is_finished:
            output.finish()
            return NodeStatus.FINISHED
        return NodeStatus.NEED_DATA if len(self.open) < self.groups else NodeStatus.NEED_CONSUME

    def _open(self, item: Any) -> None:
        if self._outer.is_wanted(item):
            group = PartGroup(item)
            self.open[group] = None
            self._reading.append(group)
        else:
            self.dropped += 1
            self._outer.drop(item)
            discard(self.inputs[0], item)

    def _read_next(self, *, is_blocked: bool) -> NodeStatus:
        """Read the group whose turn it is, or close one whose parts are not wanted any more."""
        groups = (one for one in self._reading if not (is_blocked and self._is_wanted(one)))
        self._group = group = next(groups, None)
        if group is None:
            return NodeStatus.NEED_CONSUME
        self._reading.remove(group)
        self.context = self._outer.context(group.item)
        return NodeStatus.SYNC

    def _is_wanted(self, group: PartGroup) -> bool:
        return not group.is_obsolete and self._outer.is_wanted(group.item)

    def _end(self) -> NodeStatus:
        if self._reading:
            return self._read_next(is_blocked=False)
        if self._part is not EMPTY:
            self.dropped += 1
            discard(self.inputs[0], self._part)
            self._part = EMPTY
        self.inputs[0].finish()
        return NodeStatus.FINISHED

    def process(self) -> None:
        group = self._group
        assert group is not None
        if self._outer.has_callers:
            group.call = group.call or Call(self)
            group.call.begin(self._outer, (group.item,))
        try:
            if self.outputs[0].is_finished or not self._is_wanted(group):
                _close(group)
                self.dropped += group.read == 0
                group.count = group.read
                return
            if group.reader is None:
                group.reader = Reader(not_awaited(self._parts(self._outer.body(group.item))))
            self._read_part(group, group.reader)
        except BaseException as error:  # of any kind: it fails its value, or ends the run
            add_place(error, self)
            if not self._outer.fail(group.item, error):
                raise
            self.failed += 1
            self.made += group.read > 0
            group.is_obsolete = True
            group.count = group.read
            _close(group)
        finally:
            if group.count is not None:
                _end_call(group)

    def _read_part(self, group: PartGroup, reader: Reader) -> None:
        try:
            part = reader.next()
        except StopIteration:
            group.reader = None
            self.merged += group.read == 0
            group.count = group.read
            return
        if group.read == self._parts_max:
            msg = f"{self.name} got more than {self._parts_max} parts of one value"
            raise ValueError(msg)
        self._part = PartEnvelope(group, group.read, part)
        self.made += group.read > 0
        group.read += 1

    def closing(self) -> NodeStatus | None:
        is_read = any(group.reader is not None for group in self.open)
        return NodeStatus.SYNC if is_read else None

    def close(self) -> None:
        with ExitStack() as closed:
            for group in self.open:
                closed.callback(_close, group)

    def subject(self) -> object:
        return EMPTY if self._group is None else self._outer.body(self._group.item)

    def details(self) -> str:
        return f"{len(self.open)} of {self.groups} groups are open"

    def awaited(self) -> Sequence[Processor]:
        return (self.gather,) if len(self.open) == self.groups else ()

    def clear(self) -> None:
        self._group, self._part = None, EMPTY
        self._reading.clear()
        self.open.clear()


def _close(group: PartGroup) -> None:
    reader, group.reader = group.reader, None
    try:
        if reader is not None:
            reader.close()
    finally:
        _end_call(group)


def _end_call(group: PartGroup) -> None:
    """End the call for a value, which went on until its last part was read."""
    call, group.call = group.call, None
    if call is not None:
        call.end()


class GatherProcessor(Processor):
    """Collects parts, and hands on each value with its parts, in their order."""

    def __init__(self, scatter: ScatterProcessor, outer: Carrier, *, holds_max: int) -> None:
        super().__init__(inputs=1, outputs=1, name=scatter.name)
        self.holds_max = holds_max
        self._scatter = scatter
        self._outer = outer
        self._complete: dict[PartGroup, None] = {}

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        source, output = self.inputs[0], self.outputs[0]
        if output.is_finished:
            return self._end()
        # Without a part, a group may be complete all the same: all are looked at.
        changed_groups: Iterable[PartGroup] = self._scatter.open
        if source.has_data:
            part = source.pull()
            part.group.results[part.number] = part.value
            changed_groups = (part.group,)
        for group in changed_groups:
            if group.is_complete:
                self._complete[group] = None
        is_held = self._hand_on()
        if source.is_finished and not self._scatter.open:
            return self._end()
        source.need()
        return NodeStatus.NEED_CONSUME if is_held else NodeStatus.NEED_DATA

    def _hand_on(self) -> bool:
        """Close the groups that are complete; return whether one has to wait."""
        while self._complete:
            group = next(iter(self._complete))
            if group.is_obsolete or not self._outer.is_wanted(group.item):
                self._leave_out(group)
            elif self.outputs[0].can_push:
                self._emit(group)
            else:
                return True
            del self._complete[group]
            del self._scatter.open[group]
            ask_again(self._scatter)
        return False

    def _leave_out(self, group: PartGroup) -> None:
        self.dropped += len(group.results)
        if not group.is_obsolete:
            self._outer.drop(group.item)
        discard(self.inputs[0], group)

    def _emit(self, group: PartGroup) -> None:
        values = [group.results[number] for number in sorted(group.results)]
        self.merged += max(len(values) - 1, 0)
        self.made += not values
        gathered = (self._outer.body(group.item), values)
        result = self._outer.result(group.item, gathered)
        if result is GONE:
            self.merged += 1
        else:
            self.outputs[0].push(result)
        discard(self.inputs[0], group)

    def _end(self) -> NodeStatus:
        self.inputs[0].finish()
        self.outputs[0].finish()
        return NodeStatus.FINISHED

    def details(self) -> str:
        held = sum(len(group.results) for group in self._scatter.open)
        return f"holds {held} parts of {len(self._scatter.open)} values"

    def clear(self) -> None:
        self._complete.clear()
