"""How values without parts are written as JSON and read again: numbers, texts, times, and plain
JSON.

A value of another type than the declared one is refused where it is written, so that a mistake is
met where it is made and not by the reader.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from json.encoder import encode_basestring_ascii
from typing import Any
from uuid import UUID

from rowlock.streams.computing.record_plans import ToText, ValuePlan, kind_of

_MICROSECOND = timedelta(microseconds=1)


def checked(cls: type | tuple[type, ...], to_text: ToText) -> ToText:
    """Return `to_text` with a check that values are of `cls`."""

    def check(value: Any) -> str:
        if not isinstance(value, cls):
            names = " or ".join(each.__name__ for each in _classes(cls))
            msg = f"{kind_of(value)} is no {names}"
            raise TypeError(msg)
        return to_text(value)

    return check


def _classes(cls: type | tuple[type, ...]) -> Iterable[type]:
    return cls if isinstance(cls, tuple) else (cls,)


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
    """Return the text of what has no declared type: what JSON has, and nothing else.

    Raises:
        TypeError: it, or something in it, would be read as something else than it was.
        ValueError: a number is not finite.
    """
    _check_plain(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _check_plain(value: Any) -> None:
    """Refuse what would be read as something else than it was."""
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
