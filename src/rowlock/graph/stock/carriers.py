"""How values travel: bare, or in what their carrier wraps them.

The one idea: an operator is written once, for items. What an item is, who wants it, and where an
error of it goes, is its carrier's to say. A bare value is its own item, and its error ends the run;
parts of a value and values of a caller travel with what they belong to (`parts`).

Not here: a carrier is asked within `event` too, so none of its methods but `fail` may call code of
the host.
"""

from __future__ import annotations

from contextvars import Context
from typing import Any, Final, Literal, TypeAlias

from rowlock.graph.ports import InputPort

SyncPlace: TypeAlias = Literal["loop", "thread"]
"""Where a plain function is called."""


class Gone:
    """The type of `GONE`, the place of an item that was dropped or has left."""

    def __repr__(self) -> str:
        return "GONE"


GONE: Final = Gone()
"""What a lane hands on instead of a dropped item where each item must have one result."""


class Carrier:
    """Values travel bare."""

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
