"""Functions and coroutines over one value: map, filter, tap and the end of a flow.

A call's result is used in one of four ways; where, and whether it is awaited, is the lane's.
"""

from __future__ import annotations

from asyncio import timeout as time_limit
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Any, TypeAlias

from rowlock.graph.ports import EMPTY
from rowlock.graph.processor import NodeStatus
from rowlock.graph.stock.carriers import BARE, GONE, Carrier, SyncPlace
from rowlock.graph.stock.lanes import Lane, OnError
from rowlock.graph.unawaited import never_awaited, to_await

Use: TypeAlias = Callable[[Lane, Any, Any], Any]
"""From a lane, its item and what the call returned, to what is handed on."""


def replace(lane: Lane, item: Any, returned: Any) -> Any:
    """Hand on what the function returned: map."""
    result = lane.carrier.result(item, returned)
    lane.merged += result is GONE
    return result


def select(lane: Lane, item: Any, returned: Any) -> Any:
    """Hand on the item if the function returned something true: filter."""
    if returned:
        return item
    lane.dropped += 1
    lane.carrier.drop(item)
    return GONE


def pass_on(lane: Lane, item: Any, returned: Any) -> Any:
    """Hand on the item, whatever the function returned: tap."""
    del lane, returned
    return item


def consume(lane: Lane, item: Any, returned: Any) -> Any:
    """Hand on nothing: the end of a flow."""
    del item, returned
    lane.merged += 1
    return GONE


class MapProcessor(Lane):
    """Calls a function with each value."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        use: Use = replace,
        place: SyncPlace = "thread",
        name: str = "",
        carrier: Carrier = BARE,
        on_error: OnError | None = None,
    ) -> None:
        """Be a lane of `function`.

        Args:
            function: the host's.
            use: what is done with what it returns.
            place: where it is called.
            name: of the operator.
            carrier: how values travel.
            on_error: is called with a value and what its call raised; the value is dropped then.
        """
        super().__init__(
            outputs=0 if use is consume else 1,
            name=name,
            place=place,
            carrier=carrier,
            on_error=on_error,
        )
        self._function = function
        self._use = use
        self._is_plain = use is replace and carrier is BARE

    def process(self) -> None:
        """Call the function."""
        if self.carrier.has_callers and not self.begins():
            return
        item = self.item
        try:
            if self._is_plain:
                returned = self._function(item)
            else:
                returned = self._function(self.carrier.body(item))
            if type(returned) is CoroutineType:
                raise never_awaited(returned)
            self.result = returned if self._is_plain else self._use(self, item, returned)
        except BaseException as error:
            if not self.outlives(item, error):
                raise
            self.result = GONE
        self.item = EMPTY
        if self.carrier.has_callers:
            self.ends()


class AsyncMapProcessor(Lane):
    """Awaits a coroutine for each value, in the event loop."""

    status = NodeStatus.ASYNC

    def __init__(
        self,
        function: Callable[[Any], Awaitable[Any]],
        *,
        use: Use = replace,
        timeout: float | None = None,
        name: str = "",
        carrier: Carrier = BARE,
        on_error: OnError | None = None,
    ) -> None:
        """Be a lane of `function`.

        Args:
            function: the host's; it returns what is awaited.
            use: what is done with what that gives.
            timeout: of each call, in seconds; a ``TimeoutError`` of that value then.
            name: of the operator.
            carrier: how values travel.
            on_error: is called with a value and what its call raised; the value is dropped then.
        """
        super().__init__(
            outputs=0 if use is consume else 1,
            name=name,
            place="loop",
            carrier=carrier,
            on_error=on_error,
        )
        self._function = function
        self._use = use
        self._timeout = timeout
        self._is_plain = use is replace and carrier is BARE and timeout is None

    async def async_process(self) -> None:
        """Await the coroutine."""
        if self.carrier.has_callers and not self.begins():
            return
        item = self.item
        try:
            if self._is_plain:
                self.result = await to_await(self._function(item))
            else:
                self.result = self._use(self, item, await self._await(self.carrier.body(item)))
        except BaseException as error:
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
