"""What a host's annotations say, as far as they can be read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

_NAMES_NONE = re.compile(r"\bNone(Type)?\b|\bOptional\b")
_PASSED_ON = frozenset({Annotated, Awaitable, Coroutine, Union, UnionType})
"""What is looked into: of each, only what a caller gets."""


def may_return_none(function: Any) -> bool:
    """Whether the annotation of `function` says that it may return None, or may return anything.

    An annotation that is missing says no. One that cannot be resolved is read as text.
    """
    inner: Callable[..., Any] = inspect.unwrap(getattr(function, "__func__", function))
    annotations = getattr(inner, "__annotations__", None) or {}
    if "return" not in annotations:
        return False
    try:
        return _has_none(get_type_hints(inner, include_extras=True)["return"])
    # Names that are there for type checkers alone, or the host's own classes.
    except Exception:  # noqa: BLE001
        return bool(_NAMES_NONE.search(str(annotations["return"])))


def _has_none(kind: Any) -> bool:
    if kind in (Any, NoneType, object):
        return True
    origin = get_origin(kind)
    if origin not in _PASSED_ON:
        return False
    parts = get_args(kind)
    if origin is Annotated:
        parts = parts[:1]
    elif origin is Coroutine:
        parts = parts[2:]
    return any(map(_has_none, parts))
