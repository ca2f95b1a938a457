"""Operators that call a function of the host: one call for each value, for its parts, or shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from rowlock.errors import GraphError
from rowlock.graph.building.arguments import (
    BATCH_MAX,
    LANES_MAX,
    PARTS_MAX,
    WITHIN_S_MAX,
    bounded,
    check_function,
    check_place,
    check_plain_function,
    functions_of,
    name_of,
    seconds_of,
)
from rowlock.graph.building.operators import (
    OpenEnd,
    add_batch_lanes,
    add_lanes,
    add_one,
    add_ordered_lanes,
    call_lane,
    in_process,
    order_of,
)
from rowlock.graph.processor import Place, Processor
from rowlock.graph.stock.batches import AsyncBatchMapProcessor, BatchMapProcessor, BatchProcessor
from rowlock.graph.stock.carriers import BARE, SyncPlace
from rowlock.graph.stock.flat_maps import AsyncFlatMapProcessor, FlatMapProcessor
from rowlock.graph.stock.lanes import Lane, OnError
from rowlock.graph.stock.maps import AsyncMapProcessor, Use, replace, select
from rowlock.graph.stock.parts import ScatterProcessor


class CallOptions(NamedTuple):
    """What a host says of an operator that calls; the names are those of `flow`."""

    lanes: int = 1
    on: Place = "loop"
    keep_order: bool | Callable[[Any], object] = False
    ahead: int | None = None
    on_error: OnError | None = None
    name: str | None = None


def add_calls(end: OpenEnd, function: Any, options: CallOptions, *, use: Use = replace) -> OpenEnd:
    """Add lanes that call a function with each value."""
    check_place(options.on, "loop", "thread", "process")
    calls = functions_of(function, options.lanes, awaited=False)
    name = options.name or name_of(calls[0])
    _check_drops(end, options, use)
    made = [
        call_lane(
            one,
            use=use,
            place=options.on,
            carrier=end.carrier,
            on_error=options.on_error,
            name=name,
        )
        for one in calls
    ]
    return _add(end, made, options, name=name)


def add_awaited_calls(
    end: OpenEnd,
    function: Any,
    options: CallOptions,
    *,
    timeout: timedelta | float | None = None,
    use: Use = replace,
) -> OpenEnd:
    """Add lanes that await a coroutine for each value."""
    calls = functions_of(function, options.lanes, awaited=True)
    name = options.name or name_of(calls[0])
    seconds = seconds_of("timeout", timeout, high=float("inf"))
    _check_drops(end, options, use)
    made = [
        AsyncMapProcessor(
            one,
            use=use,
            timeout=seconds,
            carrier=end.carrier,
            on_error=options.on_error,
            name=name,
        )
        for one in calls
    ]
    return _add(end, made, options, name=name)


def _check_drops(end: OpenEnd, options: CallOptions, use: Use) -> None:
    if use is select:
        end.check_drops("filter()")
    if options.on_error is not None:
        check_plain_function("on_error", options.on_error)
        end.check_drops("on_error")


def _add(end: OpenEnd, made: Sequence[Lane], options: CallOptions, *, name: str) -> OpenEnd:
    order = order_of(
        options.keep_order,
        options.ahead,
        lanes=len(made),
        place=options.on,
        carrier=end.carrier,
    )
    if order is None:
        return end.behind(add_lanes(end.graph, end.use(), made, name=name))
    return end.behind(add_ordered_lanes(end.graph, end.use(), made, name=name, order=order))


def add_flat_calls(
    end: OpenEnd, function: Any, options: CallOptions, *, awaited: bool, operator: str
) -> OpenEnd:
    """Add lanes that hand on the values of what a function returns."""
    end.check_bare(operator)
    if options.on == "process":
        msg = f"{operator}() reads in the loop or in a thread; use map(on='process') and unbatch()"
        raise GraphError(msg)
    check_place(options.on, "loop", "thread")
    if options.on_error is not None:
        check_plain_function("on_error", options.on_error)
    calls = functions_of(function, options.lanes, awaited=awaited)
    name = options.name or name_of(calls[0])
    made: list[Processor] = [
        AsyncFlatMapProcessor(one, on_error=options.on_error, name=name)
        if awaited
        else FlatMapProcessor(one, place=options.on, on_error=options.on_error, name=name)
        for one in calls
    ]
    return end.behind(add_lanes(end.graph, end.use(), made, name=name))


class BatchOptions(NamedTuple):
    """How many values a batch has, and how long it waits for them."""

    size: int
    within: timedelta | float | None


def add_batch(end: OpenEnd, options: BatchOptions) -> OpenEnd:
    """Add a node that gathers lists."""
    end.check_bare("batch")
    batch = _batch(end, options, lanes=1, name="batch")
    return end.behind(add_one(end.graph, end.use(), batch, name="batch"))


def add_batch_calls(
    end: OpenEnd,
    function: Any,
    batches: BatchOptions,
    *,
    options: CallOptions,
    awaited: bool,
) -> OpenEnd:
    """Add lanes whose calls are shared by several values."""
    check_place(options.on, "loop", "thread", "process")
    calls = functions_of(function, options.lanes, awaited=awaited)
    name = options.name or name_of(calls[0])
    batch = _batch(end, batches, lanes=len(calls), name=name)
    made = [
        _batch_lane(one, end, batches.size, place=options.on, awaited=awaited, name=name)
        for one in calls
    ]
    return end.behind(add_batch_lanes(end.graph, end.use(), batch, lanes=made, name=name))


def _batch(end: OpenEnd, options: BatchOptions, *, lanes: int, name: str) -> BatchProcessor:
    # Values of callers never end; parts end only with those before them, which may be in the batch.
    if end.carrier is not BARE and options.within is None:
        msg = f"{name} of {end.graph.name!r} needs within=: its last batch may never be full"
        raise GraphError(msg)
    return BatchProcessor(
        bounded("size", options.size, high=BATCH_MAX),
        within=seconds_of("within", options.within, high=WITHIN_S_MAX),
        outputs=lanes,
        name=name,
        carrier=end.carrier,
    )


def _batch_lane(
    function: Any, end: OpenEnd, size: int, *, place: Place, awaited: bool, name: str
) -> Processor:
    if place == "process":
        function, awaited = in_process(function, name=name), True
    if awaited:
        lane = AsyncBatchMapProcessor(function, size=size, name=name, carrier=end.carrier)
        lane.place = place
        return lane
    where: SyncPlace = "loop" if place == "loop" else "thread"
    return BatchMapProcessor(function, size=size, place=where, name=name, carrier=end.carrier)


class FanOut:
    """A fan-out that was begun: its parts leave by `parts`, and come back to `gathered`."""

    def __init__(
        self,
        end: OpenEnd,
        parts: Callable[[Any], Any],
        *,
        groups: int,
        parts_max: int,
        name: str | None,
    ) -> None:
        """Add the node that scatters.

        Raises:
            GraphError: a number is out of its bounds, or `parts` cannot be called.
        """
        check_function(parts)
        self._name = name or name_of(parts)
        self._end = end
        self._scatter = ScatterProcessor(
            parts,
            groups=bounded("groups", groups, high=LANES_MAX),
            parts_max=bounded("parts_max", parts_max, high=PARTS_MAX),
            outer=end.carrier,
            name=self._name,
        )
        outputs = add_one(end.graph, end.use(), self._scatter, name=self._name)
        self.parts = OpenEnd(end.graph, outputs, self._scatter.carrier)

    def gathered(self, parts: OpenEnd | None) -> OpenEnd:
        """Add the node that gathers.

        Args:
            parts: what has become of the parts; None if a host returned no flow.

        Raises:
            GraphError: they are others.
        """
        if parts is None or parts.carrier is not self.parts.carrier:
            msg = "what parts go `through` returns the flow that it was given, or one behind it"
            raise GraphError(msg)
        gather, name = self._scatter.gather, f"{self._name} (gather)"
        return self._end.behind(add_one(self._end.graph, parts.use(), gather, name=name))
