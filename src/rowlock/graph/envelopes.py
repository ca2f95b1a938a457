"""Values with their callers: each caller gets its own result or its own error; and the two ends of
a standing graph, where values come in and results go out.

The one idea: a caller is finished once, by the first of several that try: the end of the graph, an
operator that returned what leaves early, a call that raised, a cancellation, the end of the graph
itself. From then on its values are not wanted, and whatever holds one leaves it out when it gets to
it. The caller returns when it is finished and no call runs for it.

Two threads may try at once, and a call may begin while its caller is finished. So finishing takes a
ticket, as beginning a call does; and a call is noted before the caller is asked whether it is
finished, while the finishing side looks at the calls after it has finished.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rowlock.errors import GraphInterrupted
from rowlock.graph.host_code import add_check, goes_on
from rowlock.graph.processor import EMPTY, InputPort, NodeStatus, OutputPort, Port, Processor
from rowlock.graph.stock.carriers import GONE, Call, CallOwner, Carrier, discard
from rowlock.logs import get_logger
from rowlock.tasks import as_ordinary

logger = get_logger(__name__)


class Caller:
    """One caller of a standing graph, which waits in an event loop."""

    # `has_left`: it is done without a result of the last operator, so its values may still be in
    # the graph

    def __init__(
        self,
        graph: str,
        *,
        keep_going: Callable[[], bool] | None,
        on_done: Callable[[Caller], None],
    ) -> None:
        """`on_done` is called once it is done, by any thread."""
        self.is_done = self.has_left = False
        self.calls: dict[Call, None] = {}  # that run for it
        self.context: Context | None = copy_context()
        add_check(self.context, self._is_obsolete)
        self._graph = graph
        self._keep_going = keep_going
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._ticket = deque((None,))
        self._result: Any = EMPTY
        self._error: Exception | None = None
        self._traceback: TracebackType | None = None
        self._waiter: asyncio.Future[None] | None = None

    def finish(self, *, result: Any = EMPTY, error: Exception | None = None) -> bool:
        """Have this result or this error; False if it is done already. From any thread."""
        try:
            self._ticket.pop()
        except IndexError:
            return False
        self._result, self._error = result, error
        self._traceback = None if error is None else error.__traceback__
        self.is_done = True
        self._on_done(self)
        self._wake()
        return True

    def leave(self, *, result: Any = EMPTY, error: Exception | None = None) -> bool:
        """Finish, while values of it are in the graph."""
        self.has_left = True
        return self.finish(result=result, error=error)

    def begin(self, call: Call) -> bool:
        """Take in that a call begins, in its place; False if no result of it is wanted."""
        # A call of several steps begins each of them. One that has begun before has something to
        # close, so it goes on until it ends by itself.
        is_new = call not in self.calls
        self.calls[call] = None
        if not self.is_done:
            try:
                if goes_on(self._keep_going):
                    return True
                error: Exception = GraphInterrupted(self._graph)
            except BaseException as raised:  # noqa: BLE001  # it is code of the host
                error = as_ordinary(raised)
            self.leave(error=error)
        if is_new:
            self.end(call)
        return False

    def end(self, call: Call) -> None:
        self.calls.pop(call, None)
        if self.is_done and not self.calls:
            self._wake()

    async def outcome(self) -> Any:
        """Wait until it is done and no call runs for it; return its result or raise its error."""
        cancelled: asyncio.CancelledError | None = None
        while not self.is_done or self.calls:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            except asyncio.CancelledError as cancellation:
                cancelled = cancellation
                if not self.leave():
                    self._cancel_calls()  # again: they have ignored it
        error, self._error, self.context = self._error, None, None
        result, self._result = self._result, EMPTY
        try:
            if cancelled is not None:
                raise cancelled
            if error is not None:
                # Callers that share a call share its error: without the frames of the others.
                raise error.with_traceback(self._traceback)
        finally:
            # A traceback of this frame would otherwise refer to itself.
            self._traceback = None
            del error, cancelled
        return result

    def _cancel_calls(self) -> None:
        for call in list(self.calls):
            call.cancel()

    def _is_obsolete(self) -> bool:
        return self.is_done or not goes_on(self._keep_going)

    def _wake(self) -> None:
        if threading.get_ident() == self._thread:
            self._woken()
        else:
            with suppress(RuntimeError):  # the loop is closed, and nothing waits in it
                self._loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        if self.calls:
            # Not at once: the call that has finished this caller is one of them, and ends first.
            self._loop.call_soon(self._cancel_calls)
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@dataclass(slots=True, eq=False, repr=False)
class Envelope:
    caller: Caller
    value: Any


class EnvelopeCarrier(Carrier):
    """Values travel with their callers; an instance of `leaves` is a result at once."""

    has_callers = True
    is_answered = True

    def __init__(self, leaves: tuple[type, ...] = ()) -> None:
        self._leaves = leaves

    def owner(self, item: Any) -> CallOwner | None:
        caller: Caller = item.caller
        return caller

    def body(self, item: Any) -> Any:
        return item.value

    def result(self, item: Any, value: Any) -> Any:
        if self._leaves and isinstance(value, self._leaves):
            item.caller.leave(result=value)
            return GONE
        return Envelope(item.caller, value)

    def fail(self, item: Any, error: BaseException) -> bool:
        is_first = item.caller.leave(error=as_ordinary(error))
        if not (is_first or isinstance(error, asyncio.CancelledError)):
            logger.warning("A call failed whose value was not wanted any more", exc_info=error)
        return True

    def is_wanted(self, item: Any) -> bool:
        return not item.caller.is_done

    def context(self, item: Any) -> Context | None:
        context: Context | None = item.caller.context
        return context


INLET = "submit"
OUTLET = "result"


class Inlet(Processor):
    """Values are put in from outside. `inside`: callers whose value was handed on, not done."""

    holds_max = 0

    def __init__(self) -> None:
        super().__init__(outputs=1, name=INLET)
        self.inside: dict[Caller, None] = {}
        # Its methods are atomic, and values are put in while another thread hands them on.
        self._waiting: OrderedDict[Caller, Envelope] = OrderedDict()

    def put(self, caller: Caller, value: object) -> None:
        self._waiting[caller] = Envelope(caller, value)
        self.wake()

    def left(self, caller: Caller) -> None:
        self._waiting.pop(caller, None)
        self.inside.pop(caller, None)

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        output: OutputPort[Envelope] = self.outputs[0]
        if not output.can_push:
            return NodeStatus.NEED_CONSUME
        try:
            caller, envelope = self._waiting.popitem(last=False)
        except KeyError:
            return NodeStatus.NEED_DATA
        self.inside[caller] = None
        if caller.is_done:
            self.inside.pop(caller, None)
        self.made += 1
        output.push(envelope)
        return NodeStatus.NEED_CONSUME

    def is_open(self) -> bool:
        """Whether no caller waits for a value inside: more of them may come."""
        return not self.inside

    def details(self) -> str:
        return f"{len(self.inside)} values inside, {len(self._waiting)} wait"

    def clear(self) -> None:
        self._waiting.clear()
        self.inside.clear()


class Outlet(Processor):
    """Has no output: each value is its caller's result."""

    holds_max = 0

    def __init__(self) -> None:
        super().__init__(inputs=1, name=OUTLET)

    def event(self, changed: Sequence[Port]) -> NodeStatus:
        del changed
        source: InputPort[Envelope] = self.inputs[0]
        if source.has_data:
            envelope = source.pull()
            self.merged += 1
            if not envelope.caller.finish(result=envelope.value):
                discard(source, envelope)
        source.need()
        return NodeStatus.NEED_DATA
