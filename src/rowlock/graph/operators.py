"""The nodes of each operator: lanes, what spreads values over them, and what collects results.

The one idea: an operator gets open outputs and leaves open outputs, one for each of its lanes.
Between two operators a resize passes each value to a lane that is idle; only from one lane to one
lane there is none.

Not here: types, and the checks of what a host gives. That is `flow`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from rowlock.errors import GraphError
from rowlock.graph.host_code import (
    AHEAD_MAX,
    BATCH_MAX,
    LANES_MAX,
    PARTS_MAX,
    WITHIN_S_MAX,
    bounded,
    check_function,
    check_place,
    check_plain_function,
    check_type,
    functions_of,
    name_of,
    seconds_of,
    shown,
)
from rowlock.graph.processes import ProcessLane, check_travels
from rowlock.graph.processor import OutputPort, Place, Processor
from rowlock.graph.stock.batches import BatchMapProcessor, BatchProcessor
from rowlock.graph.stock.carriers import BARE, Carrier, ResizeProcessor
from rowlock.graph.stock.lanes import (
    FlatMapProcessor,
    Lane,
    MapProcessor,
    OnError,
    Use,
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

IN_MEMORY: Final = (list, tuple, range, set, frozenset, dict, deque)
"""Collections that are read without a call; those derived from them are read in the loop, since a
value of them costs less than a thread.
"""

Outputs: TypeAlias = Sequence[OutputPort[Any]]


def add_lanes(end: OpenEnd, lanes: Sequence[Processor], *, name: str) -> OpenEnd:
    outputs = resized(end.graph, end.use(), len(lanes), name=name)
    return end.behind(_added(end.graph, outputs, lanes, name=name))


def resized(graph: Topology, outputs: Outputs, width: int, *, name: str) -> Outputs:
    """Return `width` outputs of those given, through a resize unless that is one to one."""
    if len(outputs) == width == 1:
        return outputs
    resize = ResizeProcessor(len(outputs), width)
    return _added(graph, outputs, [resize], name=f"{name} (in)")


def _added(
    graph: Topology, outputs: Outputs, processors: Sequence[Processor], *, name: str
) -> Outputs:
    graph.add(processors, name=name)
    inputs = [port for each in processors for port in each.inputs]
    for output, port in zip(outputs, inputs, strict=True):
        graph.connect(output, port)
    return [port for each in processors for port in each.outputs]


def source_of(
    items: Iterable[Any] | AsyncIterable[Any], place: Place | None, *, name: str
) -> Processor:
    if isinstance(items, AsyncIterable):
        if place not in {None, "loop"}:
            msg = f"an asynchronous source is read in the loop, not in a {place}"
            raise GraphError(msg)
        return AsyncSource(items, name=name)
    if place == "process":
        msg = "a source is read in the loop or in a thread, not in a process"
        raise GraphError(msg)
    _check_readable(items)
    check_place(place or "thread", "loop", "thread")
    if place is None and type(items) in IN_MEMORY:
        return MemorySource(items, name=name)
    default: Place = "loop" if isinstance(items, IN_MEMORY) else "thread"
    return IterableSource(items, place=place or default, name=name)


def _check_readable(items: object) -> None:
    if not isinstance(items, Iterable) and not hasattr(items, "__getitem__"):
        reason = "call it first" if callable(items) else "it is not iterable"
        msg = f"{shown(items)} cannot be read: {reason}"
        raise GraphError(msg)


def in_place(function: Callable[[Any], Any], place: Place, *, name: str) -> Callable[[Any], Any]:
    """Return what a lane calls: in child processes, a coroutine function."""
    if place != "process":
        return function
    check_travels(function, operator=name)
    return partial(ProcessLane().call, function)


class OpenEnd:
    """Outputs that no operator reads yet, one for each lane."""

    def __init__(self, graph: Topology, outputs: Outputs, carrier: Carrier = BARE) -> None:
        self.graph = graph
        self.outputs = outputs
        self.carrier = carrier
        self._is_used = False

    def use(self) -> Outputs:
        """Return the outputs, for one reader."""
        if self._is_used:
            msg = f"this flow of {self.graph.name!r} has a reader: use duplicate() for two"
            raise GraphError(msg)
        self._is_used = True
        return self.outputs

    def behind(self, outputs: Outputs) -> OpenEnd:
        return OpenEnd(self.graph, outputs, self.carrier)

    def check_bare(self, operator: str) -> None:
        if self.carrier is not BARE:
            raise _needs_result(f"{operator}()")

    def check_drops(self, what: str) -> None:
        """Check that no caller waits for a result of each value."""
        if self.carrier.is_answered:
            raise _needs_result(what)


def _needs_result(what: str) -> GraphError:
    return GraphError(f"{what} cannot be used where each value needs a result of its own")


def behind_one(end: OpenEnd, processor: Processor, *, name: str) -> OpenEnd:
    return add_lanes(end, [processor], name=name)


def add_own(end: OpenEnd, processor: Processor, *, name: str | None) -> OpenEnd:
    check_type("processor", processor, Processor)
    ports = len(processor.inputs), len(processor.outputs)
    if ports != (1, 1):
        msg = f"{processor.name} has {ports[0]} inputs and {ports[1]} outputs; it must have 1 and 1"
        raise GraphError(msg)
    return behind_one(end, processor, name=name or processor.name)


def joined(end: OpenEnd, flows: Sequence[object], processor: Processor, *, name: str) -> OpenEnd:
    others = [_end_of(flow) for flow in flows]
    for other in others:
        if other.graph is not end.graph:
            msg = f"a flow of {other.graph.name!r} cannot join one of {end.graph.name!r}"
            raise GraphError(msg)
        if other.carrier is not end.carrier:
            msg = "a flow of parts joins flows of the same fan_out() only"
            raise GraphError(msg)
    outputs = [each.use() for each in (end, *others)]
    sources = [port for each in outputs for port in resized(end.graph, each, 1, name=name)]
    return end.behind(_added(end.graph, sources, [processor], name=name))


def _end_of(flow: object) -> OpenEnd:
    end = getattr(flow, "_end", None)
    if not isinstance(end, OpenEnd):
        msg = f"a flow is joined with flows, not with {shown(flow)}"
        raise GraphError(msg)
    return end


class CallOptions(NamedTuple):
    """Options of an operator that calls; the names are those of `flow`."""

    lanes: int = 1
    on: Place = "loop"
    keep_order: bool | Callable[[Any], object] = False
    ahead: int | None = None
    on_error: OnError | None = None
    name: str | None = None


def add_calls(
    end: OpenEnd,
    function: Any,
    options: CallOptions,
    *,
    use: Use = replace,
    awaited: bool = False,
    timeout: timedelta | float | None = None,
) -> OpenEnd:
    check_place(options.on, "loop", "thread", "process")
    calls = functions_of(function, options.lanes, awaited=awaited)
    name = options.name or name_of(calls[0])
    seconds = seconds_of("timeout", timeout, high=float("inf"))
    if use is select:
        end.check_drops("filter()")
    if options.on_error is not None:
        check_plain_function("on_error", options.on_error)
        end.check_drops("on_error")
    made = [
        MapProcessor(
            in_place(one, options.on, name=name),
            timeout=seconds,
            use=use,
            place=None if awaited else options.on,
            carrier=end.carrier,
            on_error=options.on_error,
            name=name,
        )
        for one in calls
    ]
    return _add(end, made, options, name=name)


def _add(end: OpenEnd, made: Sequence[Lane], options: CallOptions, *, name: str) -> OpenEnd:
    keep_order, ahead, lanes = options.keep_order, options.ahead, len(made)
    if keep_order is False:
        if ahead is not None:
            msg = f"ahead is {shown(ahead)}, without keep_order"
            raise GraphError(msg)
        return add_lanes(end, made, name=name)
    if keep_order is not True:
        check_plain_function("keep_order", keep_order)
    ahead = 2 * lanes if ahead is None else bounded("ahead", ahead, high=AHEAD_MAX)
    if lanes == 1:
        return add_lanes(end, made, name=name)
    for lane in made:
        lane.marks_gone = True
    add, outputs = partial(_added, end.graph), resized(end.graph, end.use(), 1, name=name)
    dispatch: OrderedDispatch | KeyedDispatch
    if keep_order is True:
        dispatch = OrderedDispatch(lanes, ahead=ahead, name=name)
        collect: Processor = OrderedCollect(dispatch)
    else:
        place: Place = "loop" if options.on == "loop" else "thread"
        keys = KeyProcessor(keep_order, place=place, name=name, carrier=end.carrier)
        outputs = add(outputs, [keys], name=f"{name} (key)")
        dispatch = KeyedDispatch(keys, lanes, ahead=ahead)
        collect = KeyedCollect(dispatch)
    outputs = add(outputs, [dispatch], name=f"{name} (order)")
    outputs = add(outputs, made, name=name)
    return end.behind(add(outputs, [collect], name=f"{name} (ordered)"))


def add_flat_calls(end: OpenEnd, function: Any, options: CallOptions, *, operator: str) -> OpenEnd:
    end.check_bare(operator)
    if options.on == "process":
        msg = f"{operator}() reads in the loop or in a thread; use map(on='process') and unbatch()"
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
    return add_lanes(end, made, name=name)


def add_batch(end: OpenEnd, size: int, within: timedelta | float | None) -> OpenEnd:
    end.check_bare("batch")
    return behind_one(end, _batch(end, size, within, lanes=1, name="batch"), name="batch")


def add_batch_calls(
    end: OpenEnd,
    function: Any,
    options: CallOptions,
    *,
    size: int,
    within: timedelta | float | None,
    awaited: bool,
) -> OpenEnd:
    check_place(options.on, "loop", "thread", "process")
    calls = functions_of(function, options.lanes, awaited=awaited)
    name = options.name or name_of(calls[0])
    batch = _batch(end, size, within, lanes=len(calls), name=name)
    made = [
        BatchMapProcessor(
            in_place(one, options.on, name=name),
            size=size,
            is_awaited=awaited or options.on == "process",
            place=options.on,
            name=name,
            carrier=end.carrier,
        )
        for one in calls
    ]
    gathered = behind_one(end, batch, name=f"{name} (batch)").outputs
    return end.behind(_added(end.graph, gathered, made, name=name))


def _batch(
    end: OpenEnd, size: int, within: timedelta | float | None, *, lanes: int, name: str
) -> BatchProcessor:
    # Values of callers never end; parts end only with those before them, which may be in the batch.
    if end.carrier is not BARE and within is None:
        msg = f"{name} of {end.graph.name!r} needs within=: its last batch may never be full"
        raise GraphError(msg)
    return BatchProcessor(
        bounded("size", size, high=BATCH_MAX),
        within=seconds_of("within", within, high=WITHIN_S_MAX),
        outputs=lanes,
        name=name,
        carrier=end.carrier,
    )


def add_fan_out(
    end: OpenEnd,
    parts: Callable[[Any], Any],
    through: Callable[[OpenEnd], OpenEnd | None],
    *,
    groups: int,
    parts_max: int,
    name: str | None,
) -> OpenEnd:
    """`through` returns None if the host returned no flow."""
    check_function(parts)
    name = name or name_of(parts)
    scatter = ScatterProcessor(
        parts,
        groups=bounded("groups", groups, high=LANES_MAX),
        parts_max=bounded("parts_max", parts_max, high=PARTS_MAX),
        outer=end.carrier,
        name=name,
    )
    inside = OpenEnd(end.graph, behind_one(end, scatter, name=name).outputs, scatter.carrier)
    behind = through(inside)
    if behind is None or behind.carrier is not inside.carrier:
        msg = "what parts go `through` returns the flow that it was given, or one behind it"
        raise GraphError(msg)
    return end.behind(behind_one(behind, scatter.gather, name=f"{name} (gather)").outputs)
