"""How values travel: bare, or in what their carrier wraps them.

The one idea: an operator is written once, for items. What an item is, who wants it, and where an
error of it goes, is its carrier's to say. A bare value is its own item, and its error ends the run;
parts of a value and values of a caller travel with what they belong to (`parts`, `standing`).

A caller is to know which calls run for it: it returns only when there are none, and cancels those
that it shares with no other. So operators whose items have callers begin and end each call.

Not here: a carrier is asked within `event` too, so none of its methods but `fail` may call code of
the host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextvars import Context
from typing import Any, Final, Literal, Protocol, TypeAlias

from rowlock.graph.ports import InputPort
from rowlock.graph.processor import Processor

SyncPlace: TypeAlias = Literal["loop", "thread"]
"""Where a plain function is called."""


class Gone:
    """The type of `GONE`, the place of an item that was dropped or has left."""

    def __repr__(self) -> str:
        return "GONE"


GONE: Final = Gone()
"""What a lane hands on instead of a dropped item where each item must have one result."""


class CallOwner(Protocol):
    """A caller whose values travel."""

    @property
    def is_done(self) -> bool:
        """Whether its result is known; no call is to begin for it."""
        ...

    def begin(self, call: Call) -> bool:
        """Take in that a call begins for it; False if none is to. May call code of the host."""
        ...

    def end(self, call: Call) -> None:
        """Take in that the call has ended."""
        ...


class Call:
    """A call of host code that runs for one or several callers.

    Attributes:
        processor: makes it.
        task: awaits it; None if it is no coroutine.
        owners: the callers.
    """

    __slots__ = ("_is_cancelled", "owners", "processor", "task")

    def __init__(self, processor: Processor, *, is_awaited: bool = False) -> None:
        """Be made by `processor`; in the current task if it is awaited."""
        self.processor = processor
        self.task = asyncio.current_task() if is_awaited else None
        self.owners: dict[CallOwner, None] = {}
        self._is_cancelled = False

    def begin(self, carrier: Carrier, items: Iterable[Any]) -> list[Any]:
        """Begin, and return the items for which the call is to be made: those that are wanted."""
        begun: dict[CallOwner | None, bool] = {None: True}
        wanted = []
        for item in items:
            owner = carrier.owner(item)
            if owner is not None and owner not in begun:
                begun[owner] = owner.begin(self)
                self.owners[owner] = None
            if begun[owner] and carrier.is_wanted(item):
                wanted.append(item)
        return wanted

    @property
    def is_obsolete(self) -> bool:
        """Whether no caller wants its result."""
        return all(owner.is_done for owner in list(self.owners))

    def cancel(self) -> None:
        """Cancel it, in the event loop, unless a caller wants its result."""
        if not self.is_obsolete:
            return
        if self.task is None:
            self.processor.wake()  # it may have something to close
        else:
            self._is_cancelled = True
            self.task.cancel()

    def end(self) -> None:
        """End."""
        if self._is_cancelled and self.task is not None:
            self.task.uncancel()  # it may go on with a call for others
        for owner in list(self.owners):
            owner.end(self)


class Carrier:
    """Values travel bare.

    Attributes:
        has_callers: its items belong to callers, and the graph stays open for more of them.
        is_answered: each item is to have a result, so none may be dropped.
    """

    has_callers = False
    is_answered = False

    def owner(self, item: Any) -> CallOwner | None:
        """Return the caller that `item` belongs to, if there are callers."""
        del item
        return None

    def body(self, item: Any) -> Any:
        """Return the value that a function of the host is called with."""
        return item

    def result(self, item: Any, value: Any) -> Any:
        """Return what travels on after a call for `item` returned `value`; `GONE` if it has
        left.
        """
        del item
        return value

    def fail(self, item: Any, error: BaseException) -> bool:
        """Have a call for `item` fail; False if that is to end the run."""
        del item, error
        return False

    def drop(self, item: Any) -> None:
        """Leave `item` out: a filter or an `on_error` wants no result of it, or it is obsolete."""

    def is_wanted(self, item: Any) -> bool:
        """Return whether a result of `item` is still of use."""
        del item
        return True

    def context(self, item: Any) -> Context | None:
        """Return the context variables of calls for `item`; None for those of the run."""
        del item
        return None


BARE: Final = Carrier()
"""The carrier of values that travel bare."""


def discard(port: InputPort[Any], item: object) -> None:
    """Drop an item within `event`: it is kept until the mutex is free.

    Args:
        port: any input of the node.
        item: the last reference to it may be the caller's.
    """
    port.edge.changes.dropped.append(item)
