"""How each type of a value is written as JSON and read again; composed once per type.

A plan has two functions. One returns the JSON of a value as text. The other makes the value of what
a JSON parser gives; there is none where that is the value already. Equal values have equal texts:
fields and keys are sorted, sets too.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING
from datetime import date, datetime
from enum import Enum
from functools import partial
from json.encoder import encode_basestring_ascii
from typing import Any, Literal, Union, cast
from uuid import UUID

from typing_extensions import is_typeddict

from rowlock.streams.computing.hashing import key_text
from rowlock.streams.computing.leaf_plans import LEAVES, PLAIN_TYPES, checked, plain_text
from rowlock.streams.computing.record_plans import (
    FromPlain,
    RecordPlan,
    ToText,
    ValuePlan,
    kind_of,
)

DEPTH_MAX = 32
"""How deep the type of a value may be nested."""


def plan_of(type_: Any, *, depth: int = 0) -> ValuePlan:
    """Return the plan of a type.

    Raises:
        TypeError: values of this type cannot be written as JSON and read again.
    """
    if depth > DEPTH_MAX:
        msg = f"{type_name(type_)} is nested more than {DEPTH_MAX} deep, or contains itself"
        raise TypeError(msg)
    if isinstance(type_, typing.NewType):
        return plan_of(type_.__supertype__, depth=depth)
    origin = typing.get_origin(type_)
    if origin is not None:
        return _plan_of_parts(type_, origin, depth=depth + 1)
    is_type = isinstance(type_, type) or any(type_ is one for one in (None, Any))
    if not is_type:
        msg = (
            f"{kind_of(type_)} was given as a type: values are declared by their type, such as int,"
            " dict[str, int] or a dataclass"
        )
        raise TypeError(msg)
    if type_ in LEAVES:
        return LEAVES[type_]
    if is_typeddict(type_):
        return LEAVES[dict]
    if isinstance(type_, type) and issubclass(type_, Enum):
        return ValuePlan(_enum_text(type_), type_)
    if isinstance(type_, type) and (dataclasses.is_dataclass(type_) or _is_named_tuple(type_)):
        record = _record_plan(type_, depth=depth + 1)
        return ValuePlan(record.to_text, record.from_plain, record)
    if type_ in _WITH_PARTS:
        msg = f"values of {type_name(type_)} cannot be stored: write {_WITH_PARTS[type_]}"
        raise TypeError(msg)
    msg = (
        f"values of {type_name(type_)} cannot be stored: use dataclasses, named tuples, numbers,"
        " texts, dates, UUIDs, Decimals, enumerations, and lists, dicts and sets of these"
    )
    raise TypeError(msg)


def type_name(type_: Any) -> str:
    """Return the name of a type, for messages."""
    return type_.__name__ if isinstance(type_, type) else str(type_)


def _plan_of_parts(type_: Any, origin: Any, *, depth: int) -> ValuePlan:
    make = _GENERIC.get(origin)
    if make is None:
        msg = f"values of {type_name(type_)} cannot be stored: it is generic; declare a plain class"
        raise TypeError(msg)
    return make(type_, depth)


def _annotated_plan(type_: Any, depth: int) -> ValuePlan:
    return plan_of(typing.get_args(type_)[0], depth=depth)


def _literal_plan(type_: Any, depth: int) -> ValuePlan:
    del depth
    return ValuePlan(_literal_text(typing.get_args(type_)))


def _literal_text(values: tuple[Any, ...]) -> ToText:
    # Python takes True for 1, and JSON does not.
    kinds = {(type(value), value) for value in values}

    def to_text(value: Any) -> str:
        if (type(value), value) not in kinds:
            msg = f"{value!r} is none of {', '.join(map(repr, values))}"
            raise TypeError(msg)
        return plain_text(value)

    return to_text


def _union_plan(type_: Any, depth: int) -> ValuePlan:
    parts = typing.get_args(type_)
    some = [part for part in parts if part is not type(None)]
    if len(some) != 1:
        if PLAIN_TYPES.issuperset(parts):
            return ValuePlan(checked(parts, plain_text))
        msg = f"values of {type_name(type_)} cannot be told apart when they are read: use one class"
        raise TypeError(msg)
    inner = plan_of(some[0], depth=depth)
    read = inner.from_plain
    return ValuePlan(
        lambda value: "null" if value is None else inner.to_text(value),
        None if read is None else lambda plain: None if plain is None else read(plain),
    )


def _list_plan(type_: Any, depth: int) -> ValuePlan:
    return _many_plan(list, plan_of(typing.get_args(type_)[0], depth=depth))


def _set_plan(type_: Any, depth: int) -> ValuePlan:
    inner = plan_of(typing.get_args(type_)[0], depth=depth)
    return _many_plan(typing.get_origin(type_), inner, is_sorted=True)


def _many_plan(make: Any, inner: ValuePlan, *, is_sorted: bool = False) -> ValuePlan:
    def to_text(values: Any) -> str:
        texts = map(inner.to_text, values)
        return f"[{','.join(sorted(texts) if is_sorted else texts)}]"

    read = inner.from_plain
    if read is None:
        return ValuePlan(checked(make, to_text), None if make is list else make)
    return ValuePlan(checked(make, to_text), lambda plain: make(map(read, plain)))


def _tuple_plan(type_: Any, depth: int) -> ValuePlan:
    parts = typing.get_args(type_)
    if Ellipsis in parts:
        return _many_plan(tuple, plan_of(parts[0], depth=depth))
    plans = [plan_of(part, depth=depth) for part in parts]

    def to_text(values: Any) -> str:
        return f"[{','.join(p.to_text(v) for p, v in zip(plans, values, strict=True))}]"

    def from_plain(plain: Any) -> tuple[Any, ...]:
        pairs = zip(plans, plain, strict=True)
        return tuple(v if p.from_plain is None else p.from_plain(v) for p, v in pairs)

    return ValuePlan(checked(tuple, to_text), from_plain)


def _dict_plan(type_: Any, depth: int) -> ValuePlan:
    parts = typing.get_args(type_)
    key_type, value = parts[0], plan_of(parts[1], depth=depth)
    if key_type not in _KEYS:
        msg = f"a dict has keys of str, int, UUID or date, not {type_name(key_type)}"
        raise TypeError(msg)

    def to_text(values: Any) -> str:
        texts = {_dict_key(key, key_type): value.to_text(each) for key, each in values.items()}
        pairs = (f"{encode_basestring_ascii(key)}:{text}" for key, text in sorted(texts.items()))
        return f"{{{','.join(pairs)}}}"

    read_key, read = _KEYS[key_type], value.from_plain
    if read_key is None and read is None:
        return ValuePlan(checked(dict, to_text))
    as_key, as_value = read_key or str, read or (lambda plain: plain)
    return ValuePlan(
        checked(dict, to_text),
        lambda plain: {as_key(key): as_value(each) for key, each in plain.items()},
    )


def _dict_key(key: Any, cls: Any) -> str:
    # Both are subclasses, and would be read as something else.
    is_other = isinstance(key, bool) or (cls is date and isinstance(key, datetime))
    if not isinstance(key, cls) or is_other:
        msg = f"{kind_of(key)} as a key is no {cls.__name__}"
        raise TypeError(msg)
    # Not str(): an enumeration of texts has one of its own there.
    return str.__str__(cast("str", key)) if cls is str else key_text(key)


def _enum_text(cls: type[Enum]) -> ToText:
    return checked(cls, lambda value: plain_text(value.value))


_KEYS: dict[Any, FromPlain | None] = {str: None, int: int, UUID: UUID, date: date.fromisoformat}
"""Types of keys of a dict, and what makes them of their texts."""
_GENERIC: dict[Any, Callable[[Any, int], ValuePlan]] = {
    typing.Annotated: _annotated_plan,
    Literal: _literal_plan,
    **dict.fromkeys((Union, types.UnionType), _union_plan),
    **dict.fromkeys((list, Sequence, Iterable), _list_plan),
    **dict.fromkeys((set, frozenset), _set_plan),
    **dict.fromkeys((dict, Mapping), _dict_plan),
    tuple: _tuple_plan,
}
"""What makes the plan of a type with parts, by the type without them."""
_WITH_PARTS = {set: "set[str]", frozenset: "frozenset[str]", tuple: "tuple[str, ...]"}
"""How a type is written with what is in it, such as texts, where it cannot be stored without."""


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_field_defaults")


def _record_plan(cls: Any, *, depth: int) -> RecordPlan:
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
        parameters = inspect.signature(cls).parameters
    except (NameError, TypeError, ValueError) as error:
        msg = f"values of {cls.__name__} cannot be stored: its fields are not known: {error}"
        raise TypeError(msg) from error
    names = _field_names(cls)
    if tuple(parameters) != names:
        msg = (
            f"values of {cls.__name__} cannot be stored: its constructor takes"
            f" ({', '.join(parameters)}), not its fields ({', '.join(names)})"
        )
        raise TypeError(msg)
    plans = {name: plan_of(hints[name], depth=depth) for name in names}
    is_keyword = [one.kind is inspect.Parameter.KEYWORD_ONLY for one in parameters.values()]
    return RecordPlan(cls, plans, _defaults_of(cls), by_keyword=any(is_keyword))


def _field_names(cls: Any) -> tuple[str, ...]:
    if not dataclasses.is_dataclass(cls):
        return tuple(cls._fields)
    fields = dataclasses.fields(cls)
    # A constructor has its keyword-only fields last, wherever they are declared.
    return tuple(each.name for each in sorted(fields, key=lambda field: bool(field.kw_only)))


def _defaults_of(cls: Any) -> dict[str, Callable[[], Any]]:
    if not dataclasses.is_dataclass(cls):
        return {name: partial(_same, value) for name, value in cls._field_defaults.items()}
    made: dict[str, Callable[[], Any]] = {}
    for field in dataclasses.fields(cls):
        if field.default_factory is not MISSING:
            made[field.name] = field.default_factory
        elif field.default is not MISSING:
            made[field.name] = partial(_same, field.default)
    return made


def _same(value: Any) -> Any:
    return value
