"""`Flow`, the typed builder: values on their way, and the operators that read them.

Each operator is a method that returns the flow behind it, so a chain reads as values go. Types are
inferred from the functions; a wrong next operator is an error in its line, for type checkers, and
wrong numbers are a `GraphError` there.

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
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Generic, Never, TypeAlias, cast

from typing_extensions import TypeVar

from rowlock.graph import statistics as pictures
from rowlock.graph.host_code import (
    AHEAD_MAX,
    BUFFER_MAX,
    WIDTH_MAX,
    bounded,
    check_plain_function,
    not_awaited,
)
from rowlock.graph.operators import (
    CallOptions,
    OpenEnd,
    add_batch,
    add_batch_calls,
    add_calls,
    add_fan_out,
    add_flat_calls,
    add_own,
    behind_one,
    joined,
    resized,
    source_of,
)
from rowlock.graph.processor import OutputPort, Place, Processor
from rowlock.graph.stock.carriers import (
    BufferProcessor,
    DuplicateProcessor,
    LimitProcessor,
    ResizeProcessor,
    ZipProcessor,
)
from rowlock.graph.stock.lanes import consume, pass_on, select
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
        made = source_of(items, on, name=name or "source")
        self.add([made])
        return Flow(OpenEnd(self, made.outputs))

    def mermaid(self) -> str:
        """Return the graph as it is now, as a flowchart for Mermaid."""
        return pictures.mermaid(self)

    def text(self) -> str:
        """Return the graph as it is now, as a line of text for each operator."""
        return pictures.text(self)


class Flow(Generic[T_co, L]):
    """Values of one type on their way through a graph; one operator reads them.

    `L` is the type of values that leave at once when an operator returns them. It is ``Never``,
    but in graphs that stay open.
    """

    def __init__(self, end: OpenEnd) -> None:
        self._end = end

    @property
    def graph(self) -> Graph:
        """The graph that it belongs to."""
        return cast("Graph", self._end.graph)

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
        return Flow(add_calls(self._end, function, options))

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
        return Flow(add_calls(self._end, function, options, awaited=True, timeout=timeout))

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
        return Flow(add_calls(self._end, predicate, options, use=select))

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
        return Flow(add_calls(self._end, function, options, use=pass_on))

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
        return Flow(add_flat_calls(self._end, function, options, operator="flat_map"))

    def batch(self, size: int, *, within: Seconds | None = None) -> Flow[list[T_co], L]:
        """Return a flow of lists of `size` values: of fewer at the end, and `within` seconds after
        the first of a list came.
        """
        return Flow(add_batch(self._end, size, within))

    def unbatch(self: Flow[Iterable[U], L]) -> Flow[U, L]:
        """Return a flow of the values of each value: of lists, say."""
        options = CallOptions(name="unbatch")
        return Flow(add_flat_calls(self._end, _itself, options, operator="unbatch"))

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
        return Flow(
            add_batch_calls(self._end, function, options, size=size, within=within, awaited=False)
        )

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
        return Flow(
            add_batch_calls(self._end, function, options, size=size, within=within, awaited=True)
        )

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

        def inside(end: OpenEnd) -> OpenEnd | None:
            flow = not_awaited(through(Flow(end)))
            return flow._end if isinstance(flow, Flow) else None

        return Flow(
            add_fan_out(self._end, parts, inside, groups=groups, parts_max=parts_max, name=name)
        )

    def through(self, processor: Processor, *, name: str | None = None) -> Flow[Any, L]:
        """Return a flow of what a processor of the host's hands on; it has one input and one
        output.
        """
        self._end.check_bare("through")
        return Flow(add_own(self._end, processor, name=name))

    def limit(self, count: int) -> Flow[T_co, L]:
        """Return a flow of the first `count` values; no more are read."""
        self._end.check_bare("limit")
        limit = LimitProcessor(bounded("count", count, low=0, high=sys.maxsize))
        return Flow(behind_one(self._end, limit, name="limit"))

    def buffer(self, size: int) -> Flow[T_co, L]:
        """Return a flow that may be `size` values ahead of its reader."""
        buffer = BufferProcessor(bounded("size", size, high=BUFFER_MAX))
        return Flow(behind_one(self._end, buffer, name="buffer"))

    def duplicate(self, count: int) -> list[Flow[T_co, L]]:
        """Return `count` flows of all values, the same objects, at the pace of the slowest."""
        self._end.check_bare("duplicate")
        copies = DuplicateProcessor(bounded("count", count, high=WIDTH_MAX))
        outputs = behind_one(self._end, copies, name="duplicate").outputs
        return [Flow(self._end.behind([one])) for one in outputs]

    def merge(self, *flows: Flow[U, L]) -> Flow[T_co | U, L]:
        """Return a flow of the values of this one and of others, as they come."""
        merge = ResizeProcessor(1 + len(flows), 1)
        return Flow(joined(self._end, flows, merge, name="merge"))

    def zip(self, flow: Flow[U, L], *, ahead: int = 16) -> Flow[tuple[T_co, U], L]:
        """Return a flow of pairs, up to the end of the shorter flow; one flow may be `ahead` values
        ahead of the other.
        """
        self._end.check_bare("zip")
        pairs = ZipProcessor(2, ahead=bounded("ahead", ahead, high=AHEAD_MAX))
        return Flow(joined(self._end, [flow], pairs, name="zip"))

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
        self._end.check_bare("sink")
        options = CallOptions(lanes, on, on_error=on_error, name=name)
        add_calls(self._end, function, options, use=consume)
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
        self._end.check_bare("asink")
        options = CallOptions(lanes, on_error=on_error, name=name)
        add_calls(self._end, function, options, awaited=True, timeout=timeout, use=consume)
        return self.graph

    def last_output(self, name: str) -> OutputPort[T_co]:
        """Return one output for a reader that is no operator, and is called `name`."""
        return resized(self.graph, self._end.use(), 1, name=name)[0]


def _itself(values: Iterable[Any]) -> Iterable[Any]:
    return values
