"""A lane: one value in, one call, one result out, or any number of them.

The one idea: a lane asks for a value only when it is idle, so a value is bound to a lane when it
can be worked on at once. A lane that has a result keeps it until its consumer wants it, and asks
for nothing meanwhile; that is back pressure.

A call's result is used in one of four ways: map, filter, tap and the end of a flow. Where the
function returns an iterable, the next value is read when the consumer wants it, so an endless
iterable is no trouble; a generator is closed exactly once: used up, when no more values are wanted,
or by the run that ends.
"""

from __future__ import annotations

from asyncio import CancelledError
from asyncio import timeout as time_limit
from collections.abc import Callable, Sequence
from types import CoroutineType
from typing import Any, TypeAlias

from rowlock.graph.host_code import never_awaited, not_awaited, to_await
from rowlock.graph.processor import EMPTY, NodeStatus, OutputPort, Place, Port, Processor
from rowlock.graph.stock.carriers import BARE, GONE, Call, Carrier, discard
from rowlock.graph.stock.sources import Reader
from rowlock.graph.topology import add_place

OnError: TypeAlias = Callable[[Any, Exception], object]


class Lane(Processor):
    status = NodeStatus.SYNC
    """What it answers when it has an item."""

    def __init__(
        self,
        *,
        outputs: int = 1,
        name: str = "",
        place: Place = "thread",
        carrier: Carrier = BARE,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(inputs=1, outputs=outputs, name=name)
        self._input = self.inputs[0]
        self._output = self.outputs[0] if outputs else None
        self.place = place
        self.carrier = carrier
        # Is called with a value and what its call raised; the value is dropped then
        self.on_error = on_error
        # A dropped item is handed on as `GONE`, for a node that counts results
        self.marks_gone = False
        self.item: Any = EMPTY
        self.result: Any = EMPTY
        self._call: Call | None = None

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        output = self._output
        if output is not None and output.is_finished:
            return self._end()
        if self.result is not EMPTY:
            if output is None or (self.result is GONE and not self.marks_gone):
                self.result = EMPTY
            elif output.can_push:
                self._hand_on(output)
            else:
                return NodeStatus.NEED_CONSUME
        if self.item is not EMPTY:
            return self.status
        source = self._input
        if not source.has_data:
            if source.is_finished:
                if output is not None:
                    output.finish()
                return NodeStatus.FINISHED
            source.need()
            return NodeStatus.NEED_DATA
        self.item = source.pull()
        return self.status if self.carrier is BARE else self._item_of_carrier()

    def _hand_on(self, output: OutputPort[Any]) -> None:
        self.made += self.result is GONE
        output.push(self.result)
        self.result = EMPTY

    def _item_of_carrier(self) -> NodeStatus:
        if self.carrier.is_wanted(self.item):
            self.context = self.carrier.context(self.item)
            return self.status
        self.dropped += 1
        self.carrier.drop(self.item)
        discard(self._input, self.item)
        self.item, self.result = EMPTY, GONE
        return self.event(())

    def begins(self) -> bool:
        """Begin a call for the callers of the item; False if none wants it any more."""
        call = Call(self, is_awaited=self.status is NodeStatus.ASYNC)
        if call.begin(self.carrier, (self.item,)):
            self._call = call
            return True
        self.dropped += 1
        self.carrier.drop(self.item)
        self.item, self.result, self.context = EMPTY, GONE, None
        call.end()
        return False

    def ends(self) -> None:
        call, self._call, self.context = self._call, None, None
        if call is not None:
            call.end()

    def process(self) -> None:
        if self.carrier.has_callers and not self.begins():
            return
        item = self.item
        try:
            self.result = self.call(item)
        except BaseException as error:  # of any kind: it fails its value, or ends the run
            if not self.outlives(item, error):
                raise
            self.result = GONE
        self.item = EMPTY
        if self.carrier.has_callers:
            self.ends()

    def call(self, item: Any) -> Any:
        """Return what is handed on for an item."""
        raise NotImplementedError

    def _end(self) -> NodeStatus:
        source = self.inputs[0]
        for held in (self.item, self.result):
            if held is not EMPTY and held is not GONE:
                self.dropped += 1
                discard(source, held)
        self.item = self.result = EMPTY
        self.context = None
        source.finish()
        return NodeStatus.FINISHED

    def outlives(self, item: Any, error: BaseException) -> bool:
        """Whether the run goes on after a call for `item` raised."""
        if isinstance(error, CancelledError) and not self.carrier.is_wanted(item):
            self.carrier.drop(item)
            self.dropped += 1
            return True
        if self.carrier.has_callers:
            add_place(error, self)
        if self.on_error is not None and isinstance(error, Exception):
            try:
                not_awaited(self.on_error(self.carrier.body(item), error))
            except BaseException as raised:  # of any kind: it fails its value, or ends the run
                if not self.carrier.fail(item, raised):
                    raise
            else:
                self.carrier.drop(item)
        elif not self.carrier.fail(item, error):
            return False
        self.failed += 1
        return True

    def subject(self) -> object:
        return EMPTY if self.item is EMPTY else self.carrier.body(self.item)

    def clear(self) -> None:
        self.item = self.result = EMPTY


Use: TypeAlias = Callable[[Lane, Any, Any], Any]
"""From a lane, its item and what the call returned, to what is handed on."""


def replace(lane: Lane, item: Any, returned: Any) -> Any:
    """Map: hand on what the function returned."""
    result = lane.carrier.result(item, returned)
    lane.merged += result is GONE
    return result


def select(lane: Lane, item: Any, returned: Any) -> Any:
    """Filter: hand on the item if the function returned something true."""
    if returned:
        return item
    lane.dropped += 1
    lane.carrier.drop(item)
    return GONE


def pass_on(lane: Lane, item: Any, returned: Any) -> Any:
    """Tap: hand on the item."""
    del lane, returned
    return item


def consume(lane: Lane, item: Any, returned: Any) -> Any:
    del item, returned
    lane.merged += 1
    return GONE


class MapProcessor(Lane):
    """Without a `place`, or in processes, what `function` returns is awaited, `timeout` seconds at
    most.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        timeout: float | None = None,
        use: Use = replace,
        place: Place | None = "thread",
        name: str = "",
        carrier: Carrier = BARE,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(
            outputs=0 if use is consume else 1,
            name=name,
            place=place or "loop",
            carrier=carrier,
            on_error=on_error,
        )
        if place in (None, "process"):
            self.status = NodeStatus.ASYNC
        self._function = function
        self._use = use
        self._timeout = timeout
        self._is_plain = use is replace and carrier is BARE and timeout is None

    def call(self, item: Any) -> Any:
        returned = self._function(item if self._is_plain else self.carrier.body(item))
        if type(returned) is CoroutineType:
            raise never_awaited(returned)
        return returned if self._is_plain else self._use(self, item, returned)

    async def async_process(self) -> None:
        if self.carrier.has_callers and not self.begins():
            return
        item = self.item
        try:
            if self._is_plain:
                self.result = await to_await(self._function(item))
            else:
                self.result = self._use(self, item, await self._await(self.carrier.body(item)))
        except BaseException as error:  # of any kind: it fails its value, or ends the run
            if not self.outlives(item, error):
                raise
            self.result = GONE
        self.item = EMPTY
        if self.carrier.has_callers:
            self.ends()

    async def _await(self, value: Any) -> Any:
        if self._timeout is None:
            return await to_await(self._function(value))
        async with time_limit(self._timeout):
            return await to_await(self._function(value))


class FlatMapProcessor(Lane):
    def __init__(
        self,
        function: Any,
        *,
        place: Place = "thread",
        name: str = "",
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(name=name, place=place, on_error=on_error)
        self._function = function
        self._reader: Reader | None = None
        self._read = 0

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        output = self.outputs[0]
        if output.is_finished and self._reader is not None:
            return NodeStatus.SYNC
        if self._reader is None or output.is_finished:
            return super().event(changed)
        if self.result is not EMPTY:
            output.push(self.result)
            self.result = EMPTY
        return NodeStatus.SYNC if output.can_push else NodeStatus.NEED_CONSUME

    def process(self) -> None:
        if self.outputs[0].is_finished:
            self.close()
            return
        try:
            if self._reader is None:
                self._reader = Reader(not_awaited(self._function(self.item)))
            try:
                self.result = self._reader.next()
            except StopIteration:
                self.merged += self._read == 0
                self._forget()
            else:
                self._read += 1
                self.made += self._read > 1
        except BaseException as error:  # of any kind: it fails its value, or ends the run
            if not self.outlives(self.item, error):
                raise
            # Values that were read of it have travelled on: it counts as one more, that failed.
            self.made += self._read > 0
            self._forget()
            self.result = GONE

    def closing(self) -> NodeStatus | None:
        return None if self._reader is None else NodeStatus.SYNC

    def close(self) -> None:
        reader = self._reader
        self._forget()
        if reader is not None:
            reader.close()

    def _forget(self) -> None:
        self._reader, self.item, self._read = None, EMPTY, 0

    def clear(self) -> None:
        super().clear()
        self._reader = None
