"""What a host gives to an operator, checked: numbers within their bounds, functions that fit.

Each mistake is a `GraphError` in the line that makes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from rowlock.errors import GraphError
from rowlock.graph.processor import Place

LANES_MAX: Final = 10_000
AHEAD_MAX: Final = 100_000
BATCH_MAX: Final = 100_000
BUFFER_MAX: Final = 1_000_000
WIDTH_MAX: Final = 10_000
PARTS_MAX: Final = 1_000_000
WITHIN_S_MAX: Final = 3600.0

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def bounded(name: str, value: int, *, low: int = 1, high: int) -> int:
    """Return `value`.

    Raises:
        GraphError: it is no whole number from `low` to `high`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        msg = f"{name} is {value!r}; it must be a whole number from {low:,} to {high:,}"
        raise GraphError(msg)
    return value


def seconds_of(name: str, value: timedelta | float | None, *, high: float) -> float | None:
    """Return a time in seconds; None is no limit.

    Raises:
        GraphError: it is not above 0, or above `high` seconds.
    """
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= high:
        msg = f"{name} is {value!r}; it must be above 0 and at most {high:g} seconds"
        raise GraphError(msg)
    return float(seconds)


def check_place(place: Place, *allowed: Place) -> None:
    """Check where a host wants its code called.

    Raises:
        GraphError: it is none of the `allowed` places.
    """
    if place not in allowed:
        msg = f"on is {place!r}; it must be one of {', '.join(map(repr, allowed))}"
        raise GraphError(msg)


def functions_of(
    function: FunctionT | Sequence[FunctionT], lanes: int, *, awaited: bool
) -> list[FunctionT]:
    """Return the function of each lane.

    Args:
        function: one for all lanes, or one for each.
        lanes: how many; for a sequence 1, or its length.
        awaited: it is to return what is awaited.

    Raises:
        GraphError: a number does not fit, or a coroutine would never be awaited.
    """
    bounded("lanes", lanes, high=LANES_MAX)
    if isinstance(function, Sequence):
        functions = list(function)
        bounded("the number of functions", len(functions), high=LANES_MAX)
        if lanes not in {1, len(functions)}:
            msg = f"{len(functions)} functions for {lanes} lanes"
            raise GraphError(msg)
    else:
        functions = [function] * lanes
    for each in functions:
        check_function(each, awaited=awaited)
    return functions


def check_function(function: object, *, awaited: bool = False) -> None:
    """Check what is to be called.

    Raises:
        GraphError: it cannot be called, or its coroutine would never be awaited.
    """
    if not callable(function):
        msg = f"{function!r} cannot be called"
        raise GraphError(msg)
    if not awaited and is_coroutine_function(function):
        msg = f"{function!r} is a coroutine function: use the operator whose name begins with a"
        raise GraphError(msg)


def is_coroutine_function(function: Any) -> bool:
    """Return whether calling `function` gives a coroutine or an asynchronous generator."""
    while isinstance(function, partial):
        function = function.func
    call = function if inspect.isroutine(function) else type(function).__call__
    return inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)
