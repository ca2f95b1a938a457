"""Values as texts: events, states, results and messages, written as JSON and read again.

Values are plain Python: dataclasses, named tuples, numbers, texts, dates and collections of these.
Equal values have equal texts, in each process, so texts are compared and digested instead of
values: fields are written in the order of their names, keys and sets are sorted. The texts are
ASCII: each database stores them, and a character is a byte.

A plan is composed once per type. One function returns the JSON of a value as text; the other makes
the value of what a JSON parser gives, and there is none where that is the value already. Many
records are written and read field by field, which takes a third of the time. A value of another
type than the declared one is refused where it is written, not where it is read.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import types
import typing
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from json.encoder import encode_basestring_ascii
from operator import attrgetter, itemgetter
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, Union, cast, overload
from uuid import UUID

from typing_extensions import is_typeddict

from rowlock.streams.computing.hashing import key_text

ToText: TypeAlias = Callable[[Any], str]
FromPlain: TypeAlias = Callable[[Any], Any]


class ValuePlan(NamedTuple):
    """How values of one type are written and read; without `from_plain`, JSON is the value."""

    to_text: ToText
    from_plain: FromPlain | None = None
    record: RecordPlan | None = None


class RecordPlan:
    def __init__(
        self,
        cls: type,
        plans: Mapping[str, ValuePlan],
        defaults: Mapping[str, Callable[[], Any]],
        *,
        by_keyword: bool,
    ) -> None:
        self.cls = cls
        self.names = tuple(plans)
        self.plans = tuple(plans.values())
        self._defaults = defaults
        self._by_keyword = by_keyword
        ordered = sorted(plans)
        self._fields = [(plans[name].to_text, attrgetter(name)) for name in ordered]
        pairs = ",".join(f"{encode_basestring_ascii(name)}:%s" for name in ordered)
        self._template = f"{{{pairs}}}"

    def to_text(self, value: Any) -> str:
        if type(value) is not self.cls:
            msg = f"{kind_of(value)} is no {self.cls.__name__}"
            raise TypeError(msg)
        return self._template % tuple([text(get(value)) for text, get in self._fields])

    def to_texts(self, values: Sequence[Any]) -> list[str]:
        if set(map(type, values)) - {self.cls} or not self.names:
            return [self.to_text(value) for value in values]
        fields = [map(text, map(get, values)) for text, get in self._fields]
        return list(map(self._template.__mod__, zip(*fields, strict=True)))

    def from_plain(self, plain: Any) -> Any:
        """Return the record of parsed JSON; ValueError if a field without a default is missing."""
        values = [self._value(plain, each) for each in range(len(self.names))]
        if self._by_keyword:
            return self.cls(**dict(zip(self.names, values, strict=True)))
        return self.cls(*values)

    def from_plains(self, plains: Sequence[Any]) -> list[Any]:
        if self._by_keyword or not self.names:
            return [self.from_plain(plain) for plain in plains]
        return list(map(self.cls, *(self.column(plains, name) for name in self.names)))

    def column(self, plains: Sequence[Any], name: str) -> list[Any]:
        """Return one field of many records of parsed JSON; ValueError if there is none."""
        if name not in self.names:
            msg = f"{self.cls.__name__} has no field {name}"
            raise ValueError(msg)
        index = self.names.index(name)
        try:
            found = list(map(itemgetter(name), plains))
        except (KeyError, TypeError, IndexError):
            return [self._value(plain, index) for plain in plains]
        read = self.plans[index].from_plain
        return found if read is None else list(map(read, found))

    def _value(self, plain: Any, index: int) -> Any:
        if not isinstance(plain, dict):
            msg = f"{kind_of(plain)} is no {self.cls.__name__}"
            raise ValueError(msg)
        name, read = self.names[index], self.plans[index].from_plain
        if name not in plain:
            if name not in self._defaults:
                msg = f"a {self.cls.__name__} without {name}, which has no default"
                raise ValueError(msg)
            return self._defaults[name]()
        return plain[name] if read is None else read(plain[name])


def kind_of(value: object) -> str:
    """Return what a message calls a value, without the value."""
    return f"a value of type {type(value).__name__}"


# ---------------------------------------------------------------- leaf plans


_MICROSECOND = timedelta(microseconds=1)


def checked(cls: type | tuple[type, ...], to_text: ToText) -> ToText:
    def check(value: Any) -> str:
        if not isinstance(value, cls):
            names = " or ".join(
                each.__name__ for each in (cls if isinstance(cls, tuple) else (cls,))
            )
            msg = f"{kind_of(value)} is no {names}"
            raise TypeError(msg)
        return to_text(value)

    return check


def _float_text(value: float) -> str:
    if not math.isfinite(value):
        msg = f"{value} is no finite number"
        raise ValueError(msg)
    return repr(float(value))


def _int_text(value: Any) -> str:
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int)):
        msg = f"{kind_of(value)} is no int"
        raise TypeError(msg)
    return int.__repr__(value)


def _date_text(value: date) -> str:
    if isinstance(value, datetime):
        raise TypeError("a datetime is no date")
    return f'"{value.isoformat()}"'


def plain_text(value: Any) -> str:
    """Return the text of what has no declared type: what JSON has, and nothing else."""
    _check_plain(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _check_plain(value: Any) -> None:
    cls = type(value)
    if cls is dict:
        for key, each in value.items():
            if type(key) is not str:
                msg = f"a dict without a type has texts as keys, not {kind_of(key)}"
                raise TypeError(msg)
            _check_plain(each)
    elif cls is list:
        for each in value:
            _check_plain(each)
    elif cls not in PLAIN_TYPES:
        msg = f"{kind_of(value)} needs a declared type: without one it would be read as another"
        raise TypeError(msg)


def _quoted(to_text: Callable[[Any], str]) -> ToText:
    return lambda value: f'"{to_text(value)}"'


PLAIN_TYPES = frozenset({str, int, float, bool, type(None)})
_PLAIN = ValuePlan(plain_text)
_BOOLS = {True: "true", False: "false"}
LEAVES: dict[Any, ValuePlan] = {
    **dict.fromkeys((Any, object), _PLAIN),
    dict: ValuePlan(checked(dict, plain_text)),
    list: ValuePlan(checked(list, plain_text)),
    None: ValuePlan(checked(type(None), lambda _: "null")),
    type(None): ValuePlan(checked(type(None), lambda _: "null")),
    bool: ValuePlan(checked(bool, _BOOLS.__getitem__)),
    int: ValuePlan(_int_text),
    float: ValuePlan(checked((float, int), _float_text), float),
    str: ValuePlan(encode_basestring_ascii),
    bytes: ValuePlan(checked(bytes, _quoted(lambda v: b64encode(v).decode())), b64decode),
    Decimal: ValuePlan(checked(Decimal, _quoted(str)), Decimal),
    UUID: ValuePlan(checked(UUID, _quoted(str)), UUID),
    datetime: ValuePlan(checked(datetime, _quoted(datetime.isoformat)), datetime.fromisoformat),
    date: ValuePlan(checked(date, _date_text), date.fromisoformat),
    time: ValuePlan(checked(time, _quoted(time.isoformat)), time.fromisoformat),
    timedelta: ValuePlan(
        checked(timedelta, lambda v: str(v // _MICROSECOND)), lambda n: timedelta(microseconds=n)
    ),
}
"""Plans of types without parts. An int may be given for a float; a bool is no int."""


# ---------------------------------------------------------------- value plans


DEPTH_MAX = 32
"""How deep the type of a value may be nested."""


def plan_of(type_: Any, *, depth: int = 0) -> ValuePlan:
    """Return the plan of a type; TypeError if its values cannot be stored as JSON."""
    if depth > DEPTH_MAX:
        msg = f"{type_name(type_)} is nested more than {DEPTH_MAX} deep, or contains itself"
        raise TypeError(msg)
    if isinstance(type_, typing.NewType):
        return plan_of(type_.__supertype__, depth=depth)
    origin = typing.get_origin(type_)
    if origin is not None:
        return _GENERIC.get(origin, _refuse_generic)(type_, depth + 1)
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
        return ValuePlan(checked(type_, lambda value: plain_text(value.value)), type_)
    if isinstance(type_, type) and (
        dataclasses.is_dataclass(type_)
        or (issubclass(type_, tuple) and hasattr(type_, "_field_defaults"))
    ):
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
    return type_.__name__ if isinstance(type_, type) else str(type_)


def _refuse_generic(type_: Any, _depth: int) -> ValuePlan:
    msg = f"values of {type_name(type_)} cannot be stored: it is generic; declare a plain class"
    raise TypeError(msg)


def _inner_plan(type_: Any, depth: int) -> ValuePlan:
    return plan_of(typing.get_args(type_)[0], depth=depth)


def _literal_plan(type_: Any, _depth: int) -> ValuePlan:
    values = typing.get_args(type_)
    # Python takes True for 1, and JSON does not.
    kinds = {(type(value), value) for value in values}

    def to_text(value: Any) -> str:
        if (type(value), value) not in kinds:
            msg = f"{value!r} is none of {', '.join(map(repr, values))}"
            raise TypeError(msg)
        return plain_text(value)

    return ValuePlan(to_text)


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


def _list_or_set_plan(type_: Any, depth: int) -> ValuePlan:
    make = typing.get_origin(type_)
    is_set = make in (set, frozenset)
    return _many_plan(make if is_set else list, _inner_plan(type_, depth), is_sorted=is_set)


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


_KEYS: dict[Any, FromPlain | None] = {str: None, int: int, UUID: UUID, date: date.fromisoformat}
"""Types of keys of a dict, and what makes them of their texts."""
_GENERIC: dict[Any, Callable[[Any, int], ValuePlan]] = {
    typing.Annotated: _inner_plan,
    Literal: _literal_plan,
    **dict.fromkeys((Union, types.UnionType), _union_plan),
    **dict.fromkeys((list, Sequence, Iterable, set, frozenset), _list_or_set_plan),
    **dict.fromkeys((dict, Mapping), _dict_plan),
    tuple: _tuple_plan,
}
"""What makes the plan of a type with parts, by the type without them."""
_WITH_PARTS = {set: "set[str]", frozenset: "frozenset[str]", tuple: "tuple[str, ...]"}
"""How a type is written with what is in it, such as texts, where it cannot be stored without."""


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
        return {name: _always(value) for name, value in cls._field_defaults.items()}
    made: dict[str, Callable[[], Any]] = {}
    for field in dataclasses.fields(cls):
        if field.default_factory is not MISSING:
            made[field.name] = field.default_factory
        elif field.default is not MISSING:
            made[field.name] = _always(field.default)
    return made


def _always(value: Any) -> Callable[[], Any]:
    return lambda: value


V = TypeVar("V")

PARSED_TEXTS_MAX = 1_000
PARSED_BYTES_MAX = 262_144
"""Most texts, and bytes, that are parsed in one call, which keeps the interpreter from all other
threads; unless one text has more.
"""
VALUE_BYTES_MAX = 1_048_576
"""Longest text of a state, a payload or a result, in bytes."""


class Codec(Generic[V]):
    """Writes and reads values of one type, such as a dataclass, ``dict[str, int]`` or ``Any``."""

    @overload
    def __init__(self, type_: type[V]) -> None: ...
    @overload
    def __init__(self: Codec[Any], type_: Any) -> None: ...
    def __init__(self, type_: Any) -> None:
        self.name = type_name(type_)
        self._plan = plan_of(type_)

    def encode(self, value: V) -> str:
        return self._checked(self._plan.to_text(value))

    def encode_many(self, values: Sequence[V]) -> list[str]:
        record = self._plan.record
        if record is not None:
            texts = record.to_texts(values)
        else:
            texts = list(map(self._plan.to_text, values))
        if texts:
            self._checked(max(texts, key=len))
        return texts

    def _checked(self, text: str) -> str:
        if len(text) > VALUE_BYTES_MAX:
            msg = f"a value of {self.name} has {len(text)} bytes; {VALUE_BYTES_MAX} is the maximum"
            raise ValueError(msg)
        return text

    def decode_many(self, texts: Sequence[str]) -> list[V]:
        """Return the values of texts; ValueError if one is no JSON, or none of such a value."""
        return self.build(self.parse(texts))

    def parse(self, raw: Sequence[str]) -> list[Any]:
        """Return what the texts have, as a JSON parser gives it; ValueError if one is no JSON."""
        plains: list[Any] = []
        sizes = list(map(len, raw))
        for some in slices(sizes, rows_max=PARSED_TEXTS_MAX, bytes_max=PARSED_BYTES_MAX):
            plains += self._parse(raw[some])
        return plains

    def _parse(self, raw: Sequence[str]) -> list[Any]:
        # One call for many: half of the time of a small text is that of its call. A text with a
        # comma of its own would be several values, so they are counted.
        try:
            plains = _parsed(f"[{','.join(raw)}]")
        except ValueError:
            plains = None
        if plains is None or len(plains) != len(raw):
            return [_parsed(text) for text in raw]
        return cast("list[Any]", plains)

    def texts(self, raw: Sequence[str]) -> list[str]:
        """Return the texts as they are: of values that cannot be read, too."""
        return list(raw)

    def build(self, parsed: Sequence[Any]) -> list[V]:
        """Return the values of what `parse` gave; ValueError if one is none of such a value."""
        record, read = self._plan.record, self._plan.from_plain
        try:
            if record is not None:
                return record.from_plains(parsed)
            return list(parsed) if read is None else list(map(read, parsed))
        except (TypeError, AttributeError, ArithmeticError) as error:
            msg = f"no {self.name}: {error}"
            raise ValueError(msg) from error

    def column(self, parsed: Sequence[Any], name: str) -> list[Any]:
        """Return one field of what `parse` gave; ValueError if there is no such field."""
        if self._plan.record is None:
            msg = f"{self.name} has no field {name}"
            raise ValueError(msg)
        return self._plan.record.column(parsed, name)


def slices(sizes: Sequence[int], *, rows_max: int, bytes_max: int) -> Iterator[slice]:
    """Yield consecutive parts of rows, as long as their bounds allow; one row at least."""
    begin = size = 0
    for at, own in enumerate(sizes):
        if at > begin and (at - begin == rows_max or size + own > bytes_max):
            yield slice(begin, at)
            begin, size = at, 0
        size += own
    if begin < len(sizes):
        yield slice(begin, len(sizes))


def _parsed(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> float:
    msg = f"{name} is no JSON"
    raise ValueError(msg)
