"""One flow to several: all of them get each value, or one of them does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rowlock.graph.building.topology import add_place
from rowlock.graph.ports import EMPTY, Port
from rowlock.graph.processor import NodeStatus, Processor
from rowlock.graph.stock.carriers import BARE, Call, Carrier, SyncPlace, discard


class DuplicateProcessor(Processor):
    """Passes each value, the same object, to all outputs at the pace of the slowest."""

    holds_max = 0

    def __init__(
        self, outputs: int, *, finishes_together: bool = False, name: str = "duplicate"
    ) -> None:
        """Split into so many flows.

        Args:
            outputs: how many.
            finishes_together: one output that wants no more ends all of them; by default the
                others go on.
            name: of the operator.
        """
        super().__init__(inputs=1, outputs=outputs, name=name)
        self._finishes_together = finishes_together

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Pass a value on once all outputs want one."""
        del changed
        source = self.inputs[0]
        enough = any if self._finishes_together else all
        if enough(output.is_finished for output in self.outputs):
            source.finish()
        if source.is_finished:
            for output in self.outputs:
                output.finish()
            return NodeStatus.FINISHED
        if any(not (output.is_finished or output.can_push) for output in self.outputs):
            return NodeStatus.NEED_CONSUME
        if source.has_data:
            self._pass_on(source.pull())
            return NodeStatus.NEED_CONSUME
        source.need()
        return NodeStatus.NEED_DATA

    def _pass_on(self, value: Any) -> None:
        hungry = [output for output in self.outputs if not output.is_finished]
        for output in hungry:
            output.push(value)
        self.made += len(hungry) - 1


class RouteProcessor(Processor):
    """Passes each value to the one output that a function of the host chooses."""

    def __init__(
        self,
        outputs: int,
        choose: Callable[[Any], int],
        *,
        place: SyncPlace = "loop",
        name: str = "partition",
        carrier: Carrier = BARE,
    ) -> None:
        """Split into so many flows.

        Args:
            outputs: how many.
            choose: gives the number of the output for a value.
            place: where it is called.
            name: of the operator.
            carrier: how values travel.
        """
        super().__init__(inputs=1, outputs=outputs, name=name)
        self.place = place
        self._choose = choose
        self._carrier = carrier
        self._item: Any = EMPTY
        self._chosen: int | None = None

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        """Hand on the value to its output, then get the next one."""
        del changed
        source = self.inputs[0]
        if all(output.is_finished for output in self.outputs):
            self._discard_item()
            source.finish()
            return NodeStatus.FINISHED
        if self._chosen is not None and not self._hand_on(self._chosen):
            return NodeStatus.NEED_CONSUME
        if self._item is EMPTY and source.has_data:
            self._item = source.pull()
            self.context = self._carrier.context(self._item)
        if self._item is not EMPTY:
            return NodeStatus.SYNC
        if source.is_finished:
            for output in self.outputs:
                output.finish()
            return NodeStatus.FINISHED
        source.need()
        return NodeStatus.NEED_DATA

    def _hand_on(self, chosen: int) -> bool:
        output = self.outputs[chosen]
        if self._item is EMPTY or output.is_finished:
            self._discard_item()
        elif output.can_push:
            output.push(self._item)
            self._item = EMPTY
        else:
            return False
        self._chosen = None
        return True

    def _discard_item(self) -> None:
        if self._item is not EMPTY:
            self.dropped += 1
            discard(self.inputs[0], self._item)
            self._item = EMPTY

    def process(self) -> None:
        """Choose the output."""
        item, call = self._item, None
        if self._carrier.has_callers:
            call = Call(self)
            if not call.begin(self._carrier, (item,)):
                self._leave_out(call)
                return
        try:
            self._chosen = range(len(self.outputs))[self._choose(self._carrier.body(item))]
        except BaseException as error:
            if call is not None:
                add_place(error, self)
            if not self._carrier.fail(item, error):
                raise
            self.failed += 1
            self._item = EMPTY
        if call is not None:
            self._end(call)

    def _leave_out(self, call: Call) -> None:
        self.dropped += 1
        self._carrier.drop(self._item)
        self._item = EMPTY
        self._end(call)

    def _end(self, call: Call) -> None:
        self.context = None
        call.end()

    def subject(self) -> object:
        """Return the value whose output is chosen."""
        return EMPTY if self._item is EMPTY else self._carrier.body(self._item)

    def details(self) -> str:
        """Return which output it waits for."""
        return "" if self._chosen is None else f"waits for output {self._chosen}"

    def clear(self) -> None:
        """Forget the value."""
        self._item = EMPTY
