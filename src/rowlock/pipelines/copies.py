"""Copies of outcomes: what was said when `process` returned stands, whatever the host goes on to do
with its dicts and lists.

Not here: the outcomes, and whether they can be written (`outcomes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from copy import copy
from datetime import datetime
from inspect import getattr_static
from types import MemberDescriptorType, NoneType
from typing import Any, TypeVar, cast
from uuid import UUID

from rowlock.pipelines.outcomes import Apply, Delete, Outcome, Park, Reset, Retry, has_values_alone

T = TypeVar("T")


def copied(returned: T) -> T:
    """Return an outcome as it is now, whatever the host goes on to do with the dicts and lists in
    it; anything else as it is.

    Each field is read once, and of what is returned no field runs code of the host's: writers read
    it where nothing is contained. An outcome of a host's own class keeps its class if that is so of
    it. Nothing has been checked yet. Values of other kinds, such as a column type of the host's own
    may take, are shared with the host.

    Raises:
        BaseException: whatever the host's own properties, mappings and sequences raise.
    """
    given: Any = returned
    if type(given) is Apply and has_values_alone(given):
        # What nearly every outcome is.
        values: Any = _copied_values(given.values)
        same: Any = Apply(values)
        # Its type is T, which a cast would say at the cost of a call for each row.
        return same  # type: ignore[no-any-return]
    kind = type(returned) if type(returned) in _COPIES else _kind_of(returned)
    if kind is None:
        return returned
    fields = {
        name: copy_field(getattr(returned, name)) for name, copy_field in _COPIES[kind].items()
    }
    if type(returned) is not kind and (same := _of_the_same_class(returned, fields)) is not None:
        return same
    return cast("T", kind(**fields))


def _kind_of(returned: object) -> type[Outcome] | None:
    return next((kind for kind in _COPIES if isinstance(returned, kind)), None)


def _of_the_same_class(returned: T, fields: Mapping[str, object]) -> T | None:
    """Return a copy with `fields`, or None if these could not be read from it without running
    code of the host's.
    """
    cls = type(returned)
    if not _is_read_plainly(cls, fields):
        return None
    try:
        # Not made by its own arguments, which may be others; nor by copy(), whose `__getstate__` is
        # that of a dataclass with slots: it forgets what the host keeps beside the fields, and
        # `on_stale` needs that to clean up.
        kind: Any = BaseException if issubclass(cls, BaseException) else object
        made = cast("T", kind.__new__(cls))
        _take_over(made, returned)
        for name, value in fields.items():
            object.__setattr__(made, name, value)
    # Of some classes that cannot be; what is said has been read.
    except BaseException:  # noqa: BLE001
        return None
    return made


def _take_over(made: object, original: object) -> None:
    """Give `made` what `original` has in its dict and in its slots."""
    cls = type(original)
    if hasattr(original, "__dict__"):
        made.__dict__.update(original.__dict__)
    slots = (
        member
        for base in cls.__mro__
        for member in vars(base).values()
        if type(member) is MemberDescriptorType
    )
    for slot in slots:
        # An empty one stays so.
        with suppress(AttributeError):
            slot.__set__(made, slot.__get__(original, cls))


def _is_read_plainly(cls: type, names: Iterable[str]) -> bool:
    # `__class__`, too: it is what isinstance() asks for.
    root = BaseException if issubclass(cls, BaseException) else object
    if any(
        getattr_static(cls, name) is not getattr_static(root, name)
        for name in ("__class__", "__getattribute__")
    ):
        return False
    kinds = [type(getattr_static(cls, name)) for name in names]
    return all(kind is MemberDescriptorType or not hasattr(kind, "__get__") for kind in kinds)


def _copied_related(related: object) -> object:
    if type(related) is not dict and not isinstance(related, Mapping):
        return related
    return {named: _copied_values(values) for named, values in related.items()}


def _copied_values(values: object) -> object:
    if type(values) is dict and _FLAT.issuperset(map(type, values.values())):
        return values.copy()
    if type(values) is not dict and not isinstance(values, Mapping):
        return values
    return {
        key: value if type(value) in _FLAT else _copied_if_it_ends(value)
        for key, value in values.items()
    }


def _copied_if_it_ends(value: object) -> object:
    try:
        return copied_value(value)
    except RecursionError:
        # It contains itself, or is too deep: the database's serializer refuses it, and `on_stale`
        # is given the outcome.
        return value


def _copied_list(value: object) -> object:
    if type(value) is tuple or isinstance(value, str | type):
        return value
    if isinstance(value, list):
        return list(value)
    return tuple(value) if isinstance(value, Sequence | Set) else value


def _as_given(value: object) -> object:
    return value


_COPIES: dict[type[Any], dict[str, Callable[[Any], Any]]] = {
    Apply: {
        "values": _copied_values,
        "related": _copied_related,
        "also": _as_given,
        "after": _as_given,
        "due_at": _as_given,
        "unless_changed": _copied_list,
        "hint": _copied_list,
    },
    Retry: {"after": _as_given, "error": _as_given, "values": _copied_values},
    Reset: {},
    Park: {"reason": _as_given},
    Delete: {
        "related": _copied_related,
        "also": _as_given,
        "unless_changed": _copied_list,
        "hint": _copied_list,
    },
}
"""How each field of each kind of outcome is copied."""
_FLAT = frozenset({bool, bytes, datetime, float, int, NoneType, str, UUID})
"""Types of values that hold nothing that changes."""


def copied_value(value: Any) -> Any:
    """Return a value with dicts, lists, tuples and sets of its own, at every depth.

    Those of a host's own class are what a column type of the host's may take: they keep their
    class, and what is in them is shared.
    """
    cls = type(value)
    if cls is dict:
        return {key: copied_value(inner) for key, inner in value.items()}
    if cls is list:
        return [copied_value(inner) for inner in value]
    if cls is tuple:
        return tuple(copied_value(inner) for inner in value)
    if cls is set or cls is bytearray:
        return value.copy()
    return _copied_as_it_is(value) if issubclass(cls, dict | list | set | bytearray) else value


def _copied_as_it_is(value: T) -> T:
    try:
        return copy(value)
    # The host's own `__copy__`; it is shared, as objects of other kinds are.
    except Exception:  # noqa: BLE001
        return value
