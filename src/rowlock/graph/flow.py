"""`Flow`, the typed builder: values on their way, and the operators that read them.

Each operator is a method that returns the flow behind it, so a chain reads as values go. Types are
inferred from the functions; a wrong next operator is an error in its line, for type checkers, and
wrong numbers are a `GraphError` there.

A flow has one open output for each lane of its operator. Between two operators a resize passes each
value to a lane that is idle; only from one lane to one lane there is none.

Arguments that several operators have:

- `function`: called with each value; a sequence of functions gives each lane its own.
- `lanes`: how many calls run at once.
- `on`: where it is called. A ``"thread"`` is for blocking code, and for code that releases the GIL;
  the ``"loop"`` for functions under 1 ms; a ``"process"`` for computation in Python.
- `keep_order`: True for results in the order of values; a function for the order among values with
  an equal key, of which one is worked on at a time. By default results come as they are ready.
- `ahead`: so many values are between the first without a result and the last begun; 2 × lanes.
- `on_error`: called with a value and what its call raised; the value is dropped then. By default,
  and if it raises, the run ends with that error.
- `name`: of the operator, in pictures, statistics and errors; by default that of the function.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Never, TypeAlias

from typing_extensions import TypeVar

from rowlock.errors import GraphError
from rowlock.graph import statistics as pictures
from rowlock.graph.host_code import (
    AHEAD_MAX,
    BATCH_MAX,
    BUFFER_MAX,
    LANES_MAX,
    PARTS_MAX,
    WIDTH_MAX,
    WITHIN_S_MAX,
    bounded,
    check_function,
    check_place,
    check_plain_function,
    check_type,
    functions_of,
    name_of,
    not_awaited,
    seconds_of,
    shown,
)
from rowlock.graph.processes import ProcessLane, check_travels
from rowlock.graph.processor import OutputPort, Place, Processor
from rowlock.graph.stock.batches import BatchMapProcessor, BatchProcessor
from rowlock.graph.stock.carriers import (
    BARE,
    BufferProcessor,
    Carrier,
    DuplicateProcessor,
    LimitProcessor,
    ResizeProcessor,
    ZipProcessor,
)
from rowlock.graph.stock.lanes import (
    FlatMapProcessor,
    Lane,
    MapProcessor,
    OnError,
    Use,
    consume,
    pass_on,
    replace,
    select,
)
from rowlock.graph.stock.ordered import (
    KeyedCollect,
    KeyedDispatch,
    KeyProcessor,
    OrderedCollect,
    OrderedDispatch,
)
from rowlock.graph.stock.parts import ScatterProcessor
from rowlock.graph.stock.sources import AsyncSource, IterableSource, MemorySource
from rowlock.graph.topology import Topology

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
V = TypeVar("V")
L = TypeVar("L", default=Never)
F = TypeVar("F")

Lanes: TypeAlias = F | Sequence[F]
"""A function for all lanes, or one for each of them."""
Seconds: TypeAlias = timedelta | float
Outputs: TypeAlias = Sequence[OutputPort[Any]]

IN_MEMORY: Final = (list, tuple, range, set, frozenset, dict, deque)
"""Collections that are read without a call; those derived from them are read in the loop, since a
value of them costs less than a thread.
"""


class Graph(Topology):
    """Operators and the flows between them; built, checked, and run once."""

    def source(
        self,
        items: Iterable[T] | AsyncIterable[T],
        *,
        on: Place | None = None,
        name: str | None = None,
    ) -> Flow[T]:
        """Return a flow of the values of `items`, which is read while they are wanted.

        Args:
            items: a generator is closed, however the run ends. It keeps its context variables from
                value to value, and an asynchronous one its task; threads take turns.
            on: where it is read; an asynchronous one in the loop by default, any other in a thread.
                A built-in collection is read without a call, unless this names a place.
            name: as above.

        Raises:
            GraphError: `on` does not fit.
        """
        made = _source_of(items, on, name=name or "source")
        self.add([made])
        return Flow(self, made.outputs)

    def mermaid(self) -> str:
        """Return the graph as it is now, as a flowchart for Mermaid."""
        return pictures.mermaid(self)

    def text(self) -> str:
        """Return the graph as it is now, as a line of text for each operator."""
        return pictures.text(self)


class CallOptions(NamedTuple):
    """Arguments of an operator that calls, as above."""

    lanes: int = 1
    on: Place = "loop"
    keep_order: bool | Callable[[Any], object] = False
    ahead: int | None = None
    on_error: OnError | None = None
    name: str | None = None


class Flow(Generic[T_co, L]):
    """Values of one type on their way through a graph; one operator reads them.

    `L` is the type of values that leave at once when an operator returns them. It is ``Never``,
    but in graphs that stay open.

    Attributes:
        graph: the graph that it belongs to.
    """

    def __init__(self, graph: Graph, outputs: Outputs, carrier: Carrier = BARE) -> None:
        self.graph = graph
        self._carrier = carrier
        self._outputs = outputs  # one for each lane; no operator reads them yet
        self._has_reader = False

    def map(
        self,
        function: Lanes[Callable[[T_co], U | L]],
        *,
        lanes: int = 1,
        on: Place = "thread",
        keep_order: bool | Callable[[T_co], object] = False,
        ahead: int | None = None,
        on_error: Callable[[T_co, Exception], object] | None = None,
        name: str | None = None,
    ) -> Flow[U, L]:
        """Return a flow of what `function` returns for each value."""
        options = CallOptions(lanes, on, keep_order, ahead, on_error, name)
        return self._calls(function, options)

    def amap(
        self,
        function: Lanes[Callable[[T_co], Awaitable[U | L]]],
        *,
        lanes: int = 1,
        timeout: Seconds | None = None,
        keep_order: bool | Callable[[T_co], object] = False,
        ahead: int | None = None,
        on_error: Callable[[T_co, Exception], object] | None = None,
        name: str | None = None,
    ) -> Flow[U, L]:
        """Return a flow of what is awaited for each value, in the event loop.

        A call that takes longer than `timeout`, in seconds, is cancelled, and raises
        ``TimeoutError``. Calls of a lane may share a task, and with it context variables.
        """
        options = CallOptions(lanes, "loop", keep_order, ahead, on_error, name)
        return self._calls(function, options, awaited=True, timeout=timeout)

    def filter(
        self,
        predicate: Lanes[Callable[[T_co], object]],
        *,
        lanes: int = 1,
        on: Place = "thread",
        keep_order: bool | Callable[[T_co], object] = False,
        ahead: int | None = None,
        on_error: Callable[[T_co, Exception], object] | None = None,
        name: str | None = None,
    ) -> Flow[T_co, L]:
        """Return a flow of the values for which `predicate` is true."""
        options = CallOptions(lanes, on, keep_order, ahead, on_error, name)
        return self._calls(predicate, options, use=select)

    def tap(
        self,
        function: Lanes[Callable[[T_co], object]],
        *,
        lanes: int = 1,
        on: Place = "thread",
        name: str | None = None,
    ) -> Flow[T_co, L]:
        """Return a flow of the same values, each after `function` was called with it."""
        options = CallOptions(lanes, on, name=name)
        return self._calls(function, options, use=pass_on)

    def flat_map(
        self,
        function: Lanes[Callable[[T_co], Iterable[U]]],
        *,
        lanes: int = 1,
        on: Place = "thread",
        on_error: Callable[[T_co, Exception], object] | None = None,
        name: str | None = None,
    ) -> Flow[U, L]:
        """Return a flow of all values of what `function` returns; it is read as they are wanted."""
        options = CallOptions(lanes, on, on_error=on_error, name=name)
        return self._flat_calls(function, options, operator="flat_map")

    def batch(self, size: int, *, within: Seconds | None = None) -> Flow[list[T_co], L]:
        """Return a flow of lists of `size` values: of fewer at the end, and `within` seconds after
        the first of a list came.
        """
        self._check_bare("batch")
        batch = self._batches(size, within, lanes=1, name="batch")
        return self._into([batch], name="batch")

    def unbatch(self: Flow[Iterable[U], L]) -> Flow[U, L]:
        """Return a flow of the values of each value: of lists, say."""
        options = CallOptions(name="unbatch")
        return self._flat_calls(lambda values: values, options, operator="unbatch")

    def map_batch(
        self,
        function: Lanes[Callable[[Sequence[T_co]], Sequence[U | L | Exception]]],
        *,
        size: int,
        within: Seconds | None = None,
        lanes: int = 1,
        on: Place = "thread",
        name: str | None = None,
    ) -> Flow[U, L]:
        """Return a flow of the results of calls that are shared by up to `size` values.

        `function` returns one result for each value, in their order; an exception in the list is
        that value's error. `within` is as of `batch`.
        """
        options = CallOptions(lanes, on, name=name)
        return self._batch_calls(function, options, size=size, within=within)

    def amap_batch(
        self,
        function: Lanes[Callable[[Sequence[T_co]], Awaitable[Sequence[U | L | Exception]]]],
        *,
        size: int,
        within: Seconds | None = None,
        lanes: int = 1,
        name: str | None = None,
    ) -> Flow[U, L]:
        """Return a flow of awaited results, as of `map_batch`."""
        options = CallOptions(lanes, name=name)
        return self._batch_calls(function, options, size=size, within=within, awaited=True)

    def fan_out(
        self,
        parts: Callable[[T_co], Iterable[U]],
        through: Callable[[Flow[U, L]], Flow[V, L]],
        *,
        groups: int = 2,
        parts_max: int = 10_000,
        name: str | None = None,
    ) -> Flow[tuple[T_co, list[V]], L]:
        """Return a flow of each value with the results of all of its parts, in their order.

        Args:
            parts: of a value; called and read in a thread.
            through: builds what parts go through, together with those of other values.
            groups: how many values may have parts inside.
            parts_max: how many parts a value may have.
            name: as above.
        """
        check_plain_function("through", through)
        check_function(parts)
        name = name or name_of(parts)
        scatter = ScatterProcessor(
            parts,
            groups=bounded("groups", groups, high=LANES_MAX),
            parts_max=bounded("parts_max", parts_max, high=PARTS_MAX),
            outer=self._carrier,
            name=name,
        )
        outputs = self._into([scatter], name=name)._outputs
        behind = not_awaited(through(Flow(self.graph, outputs, scatter.carrier)))
        if not isinstance(behind, Flow) or behind._carrier is not scatter.carrier:
            msg = "what parts go `through` returns the flow that it was given, or one behind it"
            raise GraphError(msg)
        return self._behind(behind._into([scatter.gather], name=f"{name} (gather)")._outputs)

    def through(self, processor: Processor, *, name: str | None = None) -> Flow[Any, L]:
        """Return a flow of what a processor of the host's hands on; it has one input and one
        output.
        """
        self._check_bare("through")
        check_type("processor", processor, Processor)
        ports = len(processor.inputs), len(processor.outputs)
        if ports != (1, 1):
            found = f"{ports[0]} inputs and {ports[1]} outputs"
            msg = f"{processor.name} has {found}; it must have 1 and 1"
            raise GraphError(msg)
        return self._into([processor], name=name or processor.name)

    def limit(self, count: int) -> Flow[T_co, L]:
        """Return a flow of the first `count` values; no more are read."""
        self._check_bare("limit")
        limit = LimitProcessor(bounded("count", count, low=0, high=sys.maxsize))
        return self._into([limit], name="limit")

    def buffer(self, size: int) -> Flow[T_co, L]:
        """Return a flow that may be `size` values ahead of its reader."""
        buffer = BufferProcessor(bounded("size", size, high=BUFFER_MAX))
        return self._into([buffer], name="buffer")

    def duplicate(self, count: int) -> list[Flow[T_co, L]]:
        """Return `count` flows of all values, the same objects, at the pace of the slowest."""
        self._check_bare("duplicate")
        copies = DuplicateProcessor(bounded("count", count, high=WIDTH_MAX))
        outputs = self._into([copies], name="duplicate")._outputs
        return [self._behind([one]) for one in outputs]

    def merge(self, *flows: Flow[U, L]) -> Flow[T_co | U, L]:
        """Return a flow of the values of this one and of others, as they come."""
        return self._joined(flows, ResizeProcessor(1 + len(flows), 1), name="merge")

    def zip(self, flow: Flow[U, L], *, ahead: int = 16) -> Flow[tuple[T_co, U], L]:
        """Return a flow of pairs, up to the end of the shorter flow; one flow may be `ahead` values
        ahead of the other.
        """
        self._check_bare("zip")
        pairs = ZipProcessor(2, ahead=bounded("ahead", ahead, high=AHEAD_MAX))
        return self._joined([flow], pairs, name="zip")

    def sink(
        self,
        function: Lanes[Callable[[T_co], object]],
        *,
        lanes: int = 1,
        on: Place = "thread",
        on_error: Callable[[T_co, Exception], object] | None = None,
        name: str | None = None,
    ) -> Graph:
        """End the flow: have `function` called with each value, and return the graph."""
        self._check_bare("sink")
        options = CallOptions(lanes, on, on_error=on_error, name=name)
        self._calls(function, options, use=consume)
        return self.graph

    def asink(
        self,
        function: Lanes[Callable[[T_co], Awaitable[object]]],
        *,
        lanes: int = 1,
        timeout: Seconds | None = None,
        on_error: Callable[[T_co, Exception], object] | None = None,
        name: str | None = None,
    ) -> Graph:
        """End the flow: have a coroutine awaited for each value, and return the graph."""
        self._check_bare("asink")
        options = CallOptions(lanes, on_error=on_error, name=name)
        self._calls(function, options, awaited=True, timeout=timeout, use=consume)
        return self.graph

    def last_output(self, name: str) -> OutputPort[T_co]:
        """Return one output for a reader that is no operator, and is called `name`."""
        return self._resized(1, name=name)[0]

    def _use(self) -> Outputs:
        """Return the outputs, for one reader."""
        if self._has_reader:
            msg = f"this flow of {self.graph.name!r} has a reader: use duplicate() for two"
            raise GraphError(msg)
        self._has_reader = True
        return self._outputs

    def _resized(self, width: int, *, name: str) -> Outputs:
        """Return `width` outputs, through a resize unless that is one to one."""
        outputs = self._use()
        if len(outputs) == width == 1:
            return outputs
        return self._added(outputs, [ResizeProcessor(len(outputs), width)], name=f"{name} (in)")

    def _added(self, outputs: Outputs, processors: Sequence[Processor], *, name: str) -> Outputs:
        self.graph.add(processors, name=name)
        inputs = [port for each in processors for port in each.inputs]
        for output, port in zip(outputs, inputs, strict=True):
            self.graph.connect(output, port)
        return [port for each in processors for port in each.outputs]

    def _behind(self, outputs: Outputs) -> Flow[Any, L]:
        return Flow(self.graph, outputs, self._carrier)

    def _into(self, lanes: Sequence[Processor], *, name: str) -> Flow[Any, L]:
        return self._behind(self._added(self._resized(len(lanes), name=name), lanes, name=name))

    def _joined(self, flows: Sequence[object], processor: Processor, *, name: str) -> Flow[Any, L]:
        joined: list[Flow[Any, Any]] = [self]
        for flow in flows:
            if not isinstance(flow, Flow):
                msg = f"a flow is joined with flows, not with {shown(flow)}"
                raise GraphError(msg)
            if flow.graph is not self.graph:
                msg = f"a flow of {flow.graph.name!r} cannot join one of {self.graph.name!r}"
                raise GraphError(msg)
            if flow._carrier is not self._carrier:
                msg = "a flow of parts joins flows of the same fan_out() only"
                raise GraphError(msg)
            joined.append(flow)
        outputs = [flow._resized(1, name=name)[0] for flow in joined]
        return self._behind(self._added(outputs, [processor], name=name))

    def _check_bare(self, operator: str) -> None:
        if self._carrier is not BARE:
            raise _needs_result(f"{operator}()")

    def _check_drops(self, what: str) -> None:
        """Check that no caller waits for a result of each value."""
        if self._carrier.is_answered:
            raise _needs_result(what)

    def _calls(
        self,
        function: Any,
        options: CallOptions,
        *,
        use: Use = replace,
        awaited: bool = False,
        timeout: Seconds | None = None,
    ) -> Flow[Any, L]:
        check_place(options.on, "loop", "thread", "process")
        calls = functions_of(function, options.lanes, awaited=awaited)
        name = options.name or name_of(calls[0])
        seconds = seconds_of("timeout", timeout, high=float("inf"))
        if use is select:
            self._check_drops("filter()")
        if options.on_error is not None:
            check_plain_function("on_error", options.on_error)
            self._check_drops("on_error")
        made = [
            MapProcessor(
                _in_place(one, options.on, name=name),
                timeout=seconds,
                use=use,
                place=None if awaited else options.on,
                carrier=self._carrier,
                on_error=options.on_error,
                name=name,
            )
            for one in calls
        ]
        return self._into_lanes(made, options, name=name)

    def _into_lanes(self, made: Sequence[Lane], options: CallOptions, *, name: str) -> Flow[Any, L]:
        keep_order, ahead, lanes = options.keep_order, options.ahead, len(made)
        if keep_order is False:
            if ahead is not None:
                msg = f"ahead is {shown(ahead)}, without keep_order"
                raise GraphError(msg)
            return self._into(made, name=name)
        if keep_order is not True:
            check_plain_function("keep_order", keep_order)
        ahead = 2 * lanes if ahead is None else bounded("ahead", ahead, high=AHEAD_MAX)
        if lanes == 1:
            return self._into(made, name=name)
        for lane in made:
            lane.marks_gone = True
        outputs = self._resized(1, name=name)
        dispatch: OrderedDispatch | KeyedDispatch
        if keep_order is True:
            dispatch = OrderedDispatch(lanes, ahead=ahead, name=name)
            collect: Processor = OrderedCollect(dispatch)
        else:
            place: Place = "loop" if options.on == "loop" else "thread"
            keys = KeyProcessor(keep_order, place=place, name=name, carrier=self._carrier)
            outputs = self._added(outputs, [keys], name=f"{name} (key)")
            dispatch = KeyedDispatch(keys, lanes, ahead=ahead)
            collect = KeyedCollect(dispatch)
        outputs = self._added(outputs, [dispatch], name=f"{name} (order)")
        outputs = self._added(outputs, made, name=name)
        return self._behind(self._added(outputs, [collect], name=f"{name} (ordered)"))

    def _flat_calls(self, function: Any, options: CallOptions, *, operator: str) -> Flow[Any, L]:
        self._check_bare(operator)
        if options.on == "process":
            instead = "use map(on='process') and unbatch()"
            msg = f"{operator}() reads in the loop or in a thread; {instead}"
            raise GraphError(msg)
        check_place(options.on, "loop", "thread")
        if options.on_error is not None:
            check_plain_function("on_error", options.on_error)
        calls = functions_of(function, options.lanes, awaited=False)
        name = options.name or name_of(calls[0])
        made = [
            FlatMapProcessor(one, place=options.on, on_error=options.on_error, name=name)
            for one in calls
        ]
        return self._into(made, name=name)

    def _batches(
        self, size: int, within: Seconds | None, *, lanes: int, name: str
    ) -> BatchProcessor:
        # Values of callers never end; parts end only with those before them, which may be in the
        # batch.
        if self._carrier is not BARE and within is None:
            msg = f"{name} of {self.graph.name!r} needs within=: its last batch may never be full"
            raise GraphError(msg)
        return BatchProcessor(
            bounded("size", size, high=BATCH_MAX),
            within=seconds_of("within", within, high=WITHIN_S_MAX),
            outputs=lanes,
            name=name,
            carrier=self._carrier,
        )

    def _batch_calls(
        self,
        function: Any,
        options: CallOptions,
        *,
        size: int,
        within: Seconds | None,
        awaited: bool = False,
    ) -> Flow[Any, L]:
        check_place(options.on, "loop", "thread", "process")
        calls = functions_of(function, options.lanes, awaited=awaited)
        name = options.name or name_of(calls[0])
        batch = self._batches(size, within, lanes=len(calls), name=name)
        made = [
            BatchMapProcessor(
                _in_place(one, options.on, name=name),
                size=size,
                is_awaited=awaited or options.on == "process",
                place=options.on,
                name=name,
                carrier=self._carrier,
            )
            for one in calls
        ]
        gathered = self._into([batch], name=f"{name} (batch)")._outputs
        return self._behind(self._added(gathered, made, name=name))


def _needs_result(what: str) -> GraphError:
    return GraphError(f"{what} cannot be used where each value needs a result of its own")


def _in_place(function: Callable[[Any], Any], place: Place, *, name: str) -> Callable[[Any], Any]:
    """Return what a lane calls: in child processes, a coroutine function."""
    if place != "process":
        return function
    check_travels(function, operator=name)
    return partial(ProcessLane().call, function)


def _source_of(items: Any, place: Place | None, *, name: str) -> Processor:
    if isinstance(items, AsyncIterable):
        if place not in {None, "loop"}:
            msg = f"an asynchronous source is read in the loop, not in a {place}"
            raise GraphError(msg)
        return AsyncSource(items, name=name)
    if place == "process":
        msg = "a source is read in the loop or in a thread, not in a process"
        raise GraphError(msg)
    if not isinstance(items, Iterable) and not hasattr(items, "__getitem__"):
        reason = "call it first" if callable(items) else "it is not iterable"
        msg = f"{shown(items)} cannot be read: {reason}"
        raise GraphError(msg)
    check_place(place or "thread", "loop", "thread")
    if place is None and type(items) in IN_MEMORY:
        return MemorySource(items, name=name)
    default: Place = "loop" if isinstance(items, IN_MEMORY) else "thread"
    return IterableSource(items, place=place or default, name=name)
