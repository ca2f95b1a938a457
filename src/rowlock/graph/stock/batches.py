"""Several values as one: lists of them, and calls that take a list and give one result per value.

The one idea: a batch is gathered by one node for all lanes, so that two lanes do not wait with half
a batch each. It is emitted when it is full, when its time is up, or when no more values come, and
goes on growing while no lane is free. Values that are obsolete by then are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rowlock.graph.host_code import not_awaited, to_await
from rowlock.graph.processor import EMPTY, NodeStatus, Place, Port, Processor
from rowlock.graph.stock.carriers import BARE, GONE, Call, Carrier, HungryOutputs, discard
from rowlock.graph.topology import add_place


class BatchProcessor(Processor):
    def __init__(
        self,
        size: int,
        *,
        within: float | None = None,
        outputs: int = 1,
        name: str = "batch",
        carrier: Carrier = BARE,
    ) -> None:
        """The first item of a batch waits `within` seconds for others; None is no limit."""
        super().__init__(inputs=1, outputs=outputs, name=name)
        # A list in an edge counts as one value there.
        self.holds_max = size + outputs * (size - 1)
        self._size = size
        self._within = within
        self._carrier = carrier
        self._items: list[Any] = []
        self._hungry = HungryOutputs(self.outputs)

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        source = self.inputs[0]
        self._hungry.update(changed)
        if self._hungry.are_finished:
            return self._end()
        if not changed and self._carrier.has_callers:
            self._leave_out()  # it was woken: a caller has left
        if source.has_data and len(self._items) < self._size:
            if not self._items and self._within is not None:
                self.wake_after(self._within)
            self._items.append(source.pull())
        is_ready = self._is_ready()
        if is_ready and self._hungry:
            self._leave_out()
            if self._is_ready():
                self._emit()
            is_ready = False
        if source.is_finished and not self._items:
            return self._end()
        if len(self._items) < self._size:
            source.need()
        return NodeStatus.NEED_CONSUME if is_ready else NodeStatus.NEED_DATA

    def _is_ready(self) -> bool:
        if not self._items:
            return False
        return self.is_due or self.inputs[0].is_finished or len(self._items) >= self._size

    def _leave_out(self) -> None:
        wanted: list[Any] = []
        for item in self._items:
            if self._carrier.is_wanted(item):
                wanted.append(item)
            else:
                self.dropped += 1
                self._carrier.drop(item)
                discard(self.inputs[0], item)
        self._items = wanted
        if not wanted:
            self._stop_timer()

    def _emit(self) -> None:
        self._hungry.push(self._items)
        self.merged += len(self._items) - 1
        self._items = []
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._within is not None:
            self.wake_after(None)

    def _end(self) -> NodeStatus:
        source = self.inputs[0]
        self.dropped += len(self._items)
        for item in self._items:
            discard(source, item)
        self._items = []
        self._stop_timer()
        source.finish()
        self._hungry.finish()
        return NodeStatus.FINISHED

    def details(self) -> str:
        return f"holds {len(self._items)} of {self._size}"

    def clear(self) -> None:
        self._items = []


class BatchMapProcessor(Processor):
    """Takes a batch, calls, and hands its results on one by one."""

    def __init__(
        self,
        function: Callable[[Sequence[Any]], Any],
        *,
        size: int,
        is_awaited: bool = False,
        place: Place = "thread",
        name: str = "",
        carrier: Carrier = BARE,
    ) -> None:
        super().__init__(inputs=1, outputs=1, name=name)
        self.place = place
        self._status = NodeStatus.ASYNC if is_awaited else NodeStatus.SYNC
        self.holds_max = size
        self._function = function
        self._carrier = carrier
        self._batch: list[Any] = []
        self._results: deque[Any] = deque()
        self._call: Call | None = None

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        source, output = self.inputs[0], self.outputs[0]
        if output.is_finished:
            return self._end()
        if self._results and output.can_push:
            output.push(self._results.popleft())
        if self._results:
            return NodeStatus.NEED_CONSUME
        if not self._batch and source.has_data:
            self._batch = source.pull()
            self.made += len(self._batch) - 1
        if self._batch:
            return self._status
        if source.is_finished:
            output.finish()
            return NodeStatus.FINISHED
        source.need()
        return NodeStatus.NEED_DATA

    def _end(self) -> NodeStatus:
        source = self.inputs[0]
        for held in (*self._batch, *self._results):
            self.dropped += 1
            discard(source, held)
        self._batch = []
        self._results.clear()
        source.finish()
        return NodeStatus.FINISHED

    def process(self) -> None:
        with self as bodies:
            if bodies:
                self._answer(not_awaited(self._function(bodies)))

    async def async_process(self) -> None:
        with self as bodies:
            if bodies:
                self._answer(await to_await(self._function(bodies)))

    # One call. Not by contextlib: it assigns tracebacks to errors, which frozen ones refuse.
    def __enter__(self) -> list[Any]:
        if self._carrier.has_callers:
            self._call = Call(self, is_awaited=self._status is NodeStatus.ASYNC)
            wanted = self._call.begin(self._carrier, self._batch)
            kept = {id(item) for item in wanted}
            for item in self._batch:
                if id(item) not in kept:
                    self.dropped += 1
                    self._carrier.drop(item)
            self._batch = wanted
        return self._bodies()

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        call, self._call = self._call, None
        if error is not None:
            self._fail_all(error)  # of the host; raised again if it ends the run
        if call is not None:
            call.end()
        return True

    def _bodies(self) -> list[Any]:
        return [self._carrier.body(item) for item in self._batch]

    def _answer(self, returned: Sequence[Any]) -> None:
        results = list(returned)
        if len(results) != len(self._batch):
            # No result is whose it seems to be.
            msg = f"{self.name} returned {len(results)} results for {len(self._batch)} values"
            raise ValueError(msg)
        for item, result in zip(self._batch, results, strict=True):
            try:
                self._answer_one(item, result)
            except BaseException as error:  # even to ask a result for its class may raise
                if not self._carrier.has_callers:
                    raise
                add_place(error, self)
                self._fail(item, error)
        self._batch = []

    def _answer_one(self, item: Any, result: Any) -> None:
        if isinstance(result, Exception):
            if self._carrier.has_callers:
                add_place(result, self)
            self._fail(item, result)
        elif (carried := self._carrier.result(item, result)) is GONE:
            self.merged += 1
        else:
            self._results.append(carried)

    def _fail(self, item: Any, error: BaseException) -> None:
        if not self._carrier.fail(item, error):
            raise error
        self.failed += 1

    def _fail_all(self, error: BaseException) -> None:
        if self._carrier.has_callers:
            add_place(error, self)
        for item in self._batch:
            self._fail(item, error)
        self._batch = []

    def subject(self) -> object:
        return self._bodies() or EMPTY

    def details(self) -> str:
        return f"holds {len(self._results)} results" if self._results else ""

    def clear(self) -> None:
        self._batch = []
        self._results.clear()
