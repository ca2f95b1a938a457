"""A lane: one value in, one call, one result out.

The one idea: a lane asks for a value only when it is idle, so a value is bound to a lane when it
can be worked on at once. A lane that has a result keeps it until its consumer wants it, and asks
for nothing meanwhile; that is back pressure.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from rowlock.graph.building.topology import add_place
from rowlock.graph.ports import EMPTY, OutputPort, Port
from rowlock.graph.processor import NodeStatus, Processor
from rowlock.graph.stock.carriers import BARE, GONE, Call, Carrier, SyncPlace, discard
from rowlock.graph.unawaited import not_awaited

OnError: TypeAlias = Callable[[Any, Exception], object]


class Lane(Processor):
    """Takes an item, calls, and hands on what the call gave.

    Attributes:
        marks_gone: a dropped item is handed on as `GONE`, for a node that counts results.
    """

    status = NodeStatus.SYNC
    """What it answers when it has an item."""

    def __init__(
        self,
        *,
        outputs: int = 1,
        name: str = "",
        place: SyncPlace = "thread",
        carrier: Carrier = BARE,
        on_error: OnError | None = None,
    ) -> None:
        """Be idle.

        Args:
            outputs: one, or none for the end of a flow.
            name: of the operator.
            place: where it calls.
            carrier: how its values travel.
            on_error: is called with a value and what its call raised; the value is dropped then.
        """
        super().__init__(inputs=1, outputs=outputs, name=name)
        self._input = self.inputs[0]
        self._output = self.outputs[0] if outputs else None
        self.place = place
        self.carrier = carrier
        self.on_error = on_error
        self.marks_gone = False
        self.item: Any = EMPTY
        self.result: Any = EMPTY
        self._call: Call | None = None

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Hand the result on, then get the next item."""
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
                return self._end_of_source()
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
        self._discard_item()
        return self.event(())

    def begins(self) -> bool:
        """Begin a call for the callers of the item; False if it is not wanted any more, and was
        left out.
        """
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
        """End that call."""
        call, self._call, self.context = self._call, None, None
        if call is not None:
            call.end()

    def _end_of_source(self) -> NodeStatus:
        if self._output is not None:
            self._output.finish()
        return NodeStatus.FINISHED

    def _discard_item(self) -> None:
        self.dropped += 1
        self.carrier.drop(self.item)
        discard(self.inputs[0], self.item)
        self.item, self.result = EMPTY, GONE

    def _end(self) -> NodeStatus:
        """Finish, since nothing more is wanted."""
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
        """Return whether the run goes on after a call for `item` raised."""
        if isinstance(error, CancelledError) and not self.carrier.is_wanted(item):
            self.carrier.drop(item)
            self.dropped += 1
            return True
        if self.carrier.has_callers:
            add_place(error, self)
        if self.on_error is not None and isinstance(error, Exception):
            try:
                not_awaited(self.on_error(self.carrier.body(item), error))
            except BaseException as raised:
                if not self.carrier.fail(item, raised):
                    raise
            else:
                self.carrier.drop(item)
        elif not self.carrier.fail(item, error):
            return False
        self.failed += 1
        return True

    def subject(self) -> object:
        """Return the value that it works on."""
        return EMPTY if self.item is EMPTY else self.carrier.body(self.item)

    def clear(self) -> None:
        """Forget the item and the result."""
        self.item = self.result = EMPTY
