"""What a host gives to a graph: arguments, checked in the line that passes them, and functions
whose coroutines and errors are not what they seem.

The trap: a lambda around a coroutine function looks like any other function until it is called: its
coroutine is true, so a predicate would choose one way for all values.

No thread can be cancelled, so a long call asks `check_interrupt` whether its result is still
wanted. What answers is a context variable of the call; calls of a graph within a call of another
graph ask both.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, ContextVar
from datetime import timedelta
from functools import partial
from inspect import isawaitable
from types import CoroutineType
from typing import Any, Final, TypeAlias, TypeVar

from rowlock.errors import GraphError, shorten
from rowlock.graph.processor import Place

# ---------------------------------------------------------------- unawaited


T = TypeVar("T")


def not_awaited(returned: T) -> T:
    """Return what a function of the host returned, if that is no coroutine."""
    if type(returned) is CoroutineType:
        raise never_awaited(returned)
    return returned


def never_awaited(coroutine: Any) -> TypeError:
    """The error about a coroutine, which is closed."""
    coroutine.close()
    msg = (
        f"{coroutine.__qualname__} is a coroutine, which is not awaited here: use the operator"
        " whose name begins with a, or a function that is not async"
    )
    return TypeError(msg)


def to_await(returned: T) -> T:
    """Return what a function of the host returned, if that can be awaited."""
    if type(returned) is not CoroutineType and not isawaitable(returned):
        msg = (
            f"a value of type {type(returned).__qualname__} was returned where a coroutine is"
            " awaited: use the operator whose name has no a in front, or a function that is async"
        )
        raise TypeError(msg)
    return returned


# ---------------------------------------------------------------- ending early


KeepGoing: TypeAlias = Callable[[], bool]
IsObsolete: TypeAlias = Callable[[], bool]

_asked: ContextVar[tuple[IsObsolete, ...]] = ContextVar("rowlock.graph.asked", default=())


def check_interrupt() -> None:
    """Raise if the call of a graph that runs here is obsolete: its run has ended, or its value is
    not wanted any more. Outside of a graph nothing happens.

    Raises:
        CancelledError: the result of the call will be thrown away. Let it through.
    """
    for is_obsolete in _asked.get():
        if is_obsolete():
            msg = "the call is obsolete"
            raise asyncio.CancelledError(msg)


def add_check(context: Context, is_obsolete: IsObsolete) -> None:
    """Have `check_interrupt` raise in `context` and its copies once `is_obsolete` returns True."""
    context.run(lambda: _asked.set((*_asked.get(), is_obsolete)))


def goes_on(keep_going: KeepGoing | None) -> bool:
    """What a caller's `keep_going` says; True without one."""
    return keep_going is None or bool(not_awaited(keep_going()))


# ---------------------------------------------------------------- arguments


LANES_MAX: Final = 10_000
AHEAD_MAX: Final = 100_000
BATCH_MAX: Final = 100_000
BUFFER_MAX: Final = 1_000_000
WIDTH_MAX: Final = 10_000
PARTS_MAX: Final = 1_000_000
WITHIN_S_MAX: Final = 3600.0
SHOWN_CHARS_MAX: Final = 60
"""How much of a wrong number or text stands in the error about it."""

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def shown(value: object) -> str:
    """Return how an error calls an argument: plain values as they are, others by type."""
    if value is None or type(value) in {bool, int, float, str, timedelta}:
        return shorten(repr(value), chars_max=SHOWN_CHARS_MAX)
    return f"a value of type {type(value).__qualname__}"


def name_of(function: object) -> str:
    while isinstance(function, partial):
        function = function.func
    name: object = None
    with suppress(Exception):  # an object of the host may have any attributes
        name = getattr(function, "__name__", None)
    found = name if isinstance(name, str) and name else type(function).__name__
    return "function" if found == "<lambda>" else found


def check_name(name: object) -> None:
    if not isinstance(name, str):
        msg = f"name is {shown(name)}; it must be a text"
        raise GraphError(msg)


def check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        msg = f"{name} is {shown(value)}; it must be a {kind.__name__}"
        raise GraphError(msg)


def bounded(name: str, value: int, *, low: int = 1, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        msg = f"{name} is {shown(value)}; it must be a whole number from {low:,} to {high:,}"
        raise GraphError(msg)
    return value


def seconds_of(
    name: str, value: timedelta | float | None, *, high: float, may_be_0: bool = False
) -> float | None:
    """A time in seconds; None is no limit."""
    if value is None:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not (is_number and 0 <= seconds <= high and (seconds or may_be_0)):
        low = "at least 0" if may_be_0 else "above 0"
        msg = f"{name} is {shown(value)}; it must be {low} and at most {high:g} seconds"
        raise GraphError(msg)
    return float(seconds)


def check_place(place: Place, *allowed: Place) -> None:
    if place not in allowed:
        msg = f"on is {shown(place)}; it must be one of {', '.join(map(repr, allowed))}"
        raise GraphError(msg)


def functions_of(
    function: FunctionT | Sequence[FunctionT], lanes: int, *, awaited: bool
) -> list[FunctionT]:
    """The function of each lane; `awaited`: it is to return what is awaited."""
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
    if not callable(function):
        msg = f"{shown(function)} cannot be called"
        raise GraphError(msg)
    if not awaited and is_coroutine_function(function):
        name = name_of(function)
        msg = f"{name} is a coroutine function: use the operator whose name begins with a"
        raise GraphError(msg)


def check_plain_function(name: str, function: object) -> None:
    """Check a function that is called beside that of an operator, such as a key."""
    if not callable(function):
        msg = f"{name} is {shown(function)}, which cannot be called"
        raise GraphError(msg)
    if is_coroutine_function(function):
        msg = f"{name} is a coroutine function, which is not awaited: give one that is not async"
        raise GraphError(msg)


def is_coroutine_function(function: Any) -> bool:
    """Whether calling `function` gives a coroutine or an asynchronous generator."""
    while isinstance(function, partial):
        function = function.func
    call = function if inspect.isroutine(function) else type(function).__call__
    return inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call)
