"""Coroutines that a function of the host returned where nothing is awaited, and other values where
something is.

A lambda around a coroutine function looks like any other function until it is called. Its coroutine
is true, so a predicate would choose one way for all values.
"""

from __future__ import annotations

from inspect import isawaitable
from types import CoroutineType
from typing import Any, TypeVar

T = TypeVar("T")


def not_awaited(returned: T) -> T:
    """Return what a function of the host returned.

    Raises:
        TypeError: it is a coroutine.
    """
    if type(returned) is CoroutineType:
        raise never_awaited(returned)
    return returned


def never_awaited(coroutine: Any) -> TypeError:
    """Return the error about a coroutine, which is closed."""
    coroutine.close()
    msg = (
        f"{coroutine.__qualname__} is a coroutine, which is not awaited here: use the operator"
        " whose name begins with a, or a function that is not async"
    )
    return TypeError(msg)


def to_await(returned: T) -> T:
    """Return what a function of the host returned.

    Raises:
        TypeError: it cannot be awaited.
    """
    if type(returned) is not CoroutineType and not isawaitable(returned):
        msg = (
            f"a value of type {type(returned).__qualname__} was returned where a coroutine is"
            " awaited: use the operator whose name has no a in front, or a function that is async;"
            " aflat_map reads what an asynchronous generator yields"
        )
        raise TypeError(msg)
    return returned
