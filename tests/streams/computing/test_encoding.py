"""Values as texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.streams.computing.encoding import VALUE_BYTES_MAX, Codec


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Point(NamedTuple):
    y: int
    x: int = 0


class Loose(TypedDict):
    a: int


@dataclass(frozen=True, slots=True)
class Usage:
    units: int
    account: str


@dataclass
class Month:
    begins: date
    usages: list[Usage]
    total: Decimal = Decimal(0)
    by_name: dict[str, int] = field(default_factory=dict)
    best: Usage | None = None
    points: tuple[Point, ...] = ()


@dataclass(kw_only=True)
class Named:
    b: int
    a: str = "x"


@dataclass
class Nothing:
    """A record without fields."""


AccountId = NewType("AccountId", str)

ROUND_TRIPS: list[tuple[Any, Any, str]] = [
    (int, -5, "-5"),
    (int, 10**30, "1" + "0" * 30),
    (bool, True, "true"),
    (float, 1.5, "1.5"),
    (float, 1, "1.0"),
    (str, 'a"ä\0\ud800', '"a\\"\\u00e4\\u0000\\ud800"'),
    (bytes, b"\0\xff", '"AP8="'),
    (Decimal, Decimal("1.10"), '"1.10"'),
    (UUID, UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    (datetime, datetime(2026, 3, 1, 5, tzinfo=UTC), '"2026-03-01T05:00:00+00:00"'),
    (datetime, datetime(2026, 3, 1, 5), '"2026-03-01T05:00:00"'),  # noqa: DTZ001
    (date, date(2026, 3, 1), '"2026-03-01"'),
    (time, time(5, 6), '"05:06:00"'),
    (timedelta, timedelta(days=-1, microseconds=3), "-86399999997"),
    (Colour, Colour.RED, '"red"'),
    (Level, Level.LOW, "1"),
    (Literal["a", 1], 1, "1"),
    (AccountId, AccountId("a"), '"a"'),
    (Annotated[int, "units"], 5, "5"),
    (Optional[int], None, "null"),  # noqa: UP045
    (date | None, date(2026, 3, 1), '"2026-03-01"'),
    (int | str | None, "a", '"a"'),
    (list[date], [date(2026, 3, 1)], '["2026-03-01"]'),
    (list[int], [2, 1], "[2,1]"),
    (Sequence[int], [2, 1], "[2,1]"),
    (set[str], {"b", "a", "c"}, '["a","b","c"]'),
    (frozenset[int], frozenset({2, 1}), "[1,2]"),
    (tuple[int, date], (1, date(2026, 3, 1)), '[1,"2026-03-01"]'),
    (tuple[int, ...], (1, 2), "[1,2]"),
    (dict[str, int], {"b": 1, "a": 2}, '{"a":2,"b":1}'),
    (dict[int, date], {5: date(2026, 3, 1)}, '{"5":"2026-03-01"}'),
    (Mapping[UUID, int], {UUID(int=1): 5}, '{"00000000-0000-0000-0000-000000000001":5}'),
    (dict, {"b": [1, {"a": None}]}, '{"b":[1,{"a":null}]}'),
    (list, ["a", 1.5], '["a",1.5]'),
    (Any, {"a": True}, '{"a":true}'),
    (Loose, {"a": 1}, '{"a":1}'),
    (Point, Point(1, 2), '{"x":2,"y":1}'),
    (Usage, Usage(5, "a"), '{"account":"a","units":5}'),
    (Named, Named(b=1), '{"a":"x","b":1}'),
    (Nothing, Nothing(), "{}"),
    (
        Month,
        Month(date(2026, 3, 1), [Usage(1, "a")], by_name={"z": 1}, points=(Point(1),)),
        (
            '{"begins":"2026-03-01","best":null,"by_name":{"z":1},"points":[{"x":0,"y":1}],'
            '"total":"0","usages":[{"account":"a","units":1}]}'
        ),
    ),
]


@pytest.mark.parametrize(("type_", "value", "text"), ROUND_TRIPS)
def test_round_trip(type_: Any, value: Any, text: str) -> None:
    """The next step would get another state than this one has returned."""
    codec: Codec[Any] = Codec(type_)
    assert codec.encode(value) == text
    assert codec.encode_many([value, value]) == [text, text]
    assert text.isascii()
    (again,) = codec.decode_many([text])
    assert again == value
    assert type(again) is (float if type_ is float else type(value))
    assert codec.decode_many([text, text, text]) == [value] * 3
    assert codec.encode_many([]) == codec.decode_many([]) == []


@given(
    st.builds(Usage, st.integers(), st.text()), st.lists(st.builds(Usage, st.integers(), st.text()))
)
def test_records_one_by_one_and_together(one: Usage, many: list[Usage]) -> None:
    """The rows of a long step would be read otherwise than those of a short one."""
    codec = Codec[Usage](Usage)
    texts = codec.encode_many([one, *many])
    assert texts == [codec.encode(each) for each in [one, *many]]
    assert codec.decode_many(texts) == [one, *many]
    assert codec.column(codec.parse(texts), "units") == [each.units for each in [one, *many]]


@given(st.dictionaries(st.text(), st.integers()))
def test_equal_values_have_equal_texts(value: dict[str, int]) -> None:
    """A replay would differ by the order in which a dict was filled."""
    turned = dict(reversed(value.items()))
    assert Codec(dict[str, int]).encode(value) == Codec(dict[str, int]).encode(turned)
    assert Codec(dict).encode(value) == Codec(dict).encode(turned)


class Shade(str, Enum):  # noqa: UP042 - a StrEnum has its text there
    """Texts, whose ``str()`` is another text: the name of the class and of the member."""

    DARK = "dark"


def test_keys_of_a_dict_come_back() -> None:
    """A handler would not find again what it has kept under a key."""
    codec = Codec(dict[str, int])
    text = codec.encode({Shade.DARK: 1, "light": 2})
    assert text == '{"dark":1,"light":2}'
    assert codec.decode_many([text])[0][Shade.DARK] == 1


def test_the_order_of_a_set() -> None:
    """A replay in another process would find the set in another order."""
    texts = {str(n) for n in range(50)}
    assert json.loads(Codec(set[str]).encode(texts)) == sorted(texts)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (int, "5"),
        (int, 5.0),
        (int, True),
        (bool, 1),
        (str, 5),
        (float, "5"),
        (Decimal, 5),
        (date, datetime(2026, 3, 1, tzinfo=UTC)),
        (datetime, date(2026, 3, 1)),
        (Usage, {"units": 5, "account": "a"}),
        (Usage, Usage("5", "a")),  # type: ignore[arg-type]
        (Usage, None),
        (list[int], (1, 2)),
        (tuple[int, ...], [1, 2]),
        (dict[str, int], {1: 2}),
        (dict[int, int], {True: 2}),
        (dict, {1: 2}),
        (dict, {"a": (1, 2)}),
        (Any, Decimal(5)),
        (Any, {"a": date(2026, 3, 1)}),
        (dict[date, int], {datetime(2026, 3, 1, tzinfo=UTC): 2}),
        (Literal["a"], "b"),
        (Literal["a", 1], True),
        (Colour, "red"),
        (int | None, "a"),
        (int | str, 1.5),
    ],
)
def test_wrong_types(type_: Any, value: Any) -> None:
    """A mistake of a handler would be stored, and be met by the step after it."""
    codec: Codec[Any] = Codec(type_)
    with pytest.raises(TypeError):
        codec.encode(value)
    with pytest.raises(TypeError):
        codec.encode_many([value])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_has_not(value: float) -> None:
    """Another program could not read the payload."""
    for type_ in (float, Any, list[float]):
        with pytest.raises(ValueError, match=r"finite|JSON"):
            Codec[Any](type_).encode([value] if type_ == list[float] else value)
    with pytest.raises(ValueError, match="NaN is no JSON"):
        Codec(float).decode_many(["NaN"])


def test_bound() -> None:
    """A state of a gigabyte would be written with every step."""
    codec = Codec(str)
    codec.encode("x" * (VALUE_BYTES_MAX - 2))
    for too_long in ("x" * (VALUE_BYTES_MAX - 1), "ä" * (VALUE_BYTES_MAX // 6 + 1)):
        with pytest.raises(ValueError, match="is the maximum"):
            codec.encode(too_long)
        with pytest.raises(ValueError, match="is the maximum"):
            codec.encode_many(["a", too_long])


@dataclass
class Tree:
    below: list[Tree]


@dataclass
class Computed:
    """A record with a field that its constructor does not take."""

    a: int
    b: int = field(init=False)


class Plain:
    """No record."""


def function_with_a_local_class() -> type:
    @dataclass
    class Local:
        other: Missing  # type: ignore[name-defined] # noqa: F821

    return Local


@pytest.mark.parametrize(
    "type_",
    [
        Plain,
        Tree,
        Computed,
        function_with_a_local_class(),
        list[Plain],
        dict[tuple[int, int], int],
        Usage | Point,
        type[int],
        complex,
    ],
)
def test_types_that_cannot_be_stored(type_: Any) -> None:
    """A flow would start, and fail with the first event."""
    with pytest.raises(TypeError, match=r"cannot be stored|told apart|nested|a dict has keys"):
        Codec(type_)


async def _state() -> int:
    return 0


@pytest.mark.parametrize("value", [0, "int", {}, [], (), Plain(), _state, len])
def test_values_instead_of_types(value: Any) -> None:
    """A coroutine function or another value in ``state=`` is refused, with advice."""
    with pytest.raises(TypeError, match=r"was given as a type: .* such as int, dict\[str, int\]"):
        Codec(value)


@pytest.mark.parametrize("type_", [set, frozenset, tuple])
def test_types_without_what_is_in_them(type_: type) -> None:
    """A host would read that a set cannot be stored, and that it is to use a set."""
    with pytest.raises(TypeError, match=rf"write {type_.__name__}\[str(, \.\.\.)?\]$"):
        Codec(type_)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        (Usage, '{"units":5}'),
        (Usage, "5"),
        (Usage, "null"),
        (Usage, "[1,2]"),
        (Usage, "{"),
        (date, '"2026-13-01"'),
        (date, "5"),
        (Decimal, '"x"'),
        (list[date], "5"),
        (tuple[int, date], "[1]"),
        (int, "1,2"),
        (int, ""),
        (dict[int, int], "[]"),
    ],
)
def test_texts_that_are_no_such_value(type_: Any, text: str) -> None:
    """A payload that was written by hand would become an event with other fields."""
    codec: Codec[Any] = Codec(type_)
    with pytest.raises(ValueError):  # noqa: PT011 - of the json module, or of ours
        codec.decode_many([text])
    with pytest.raises(ValueError):  # noqa: PT011 - as above
        codec.decode_many([text])


def test_fields_of_another_version() -> None:
    """After an upgrade the payloads of yesterday could not be read."""
    codec = Codec[Month](Month)
    texts = ['{"begins":"2026-03-01","usages":[],"gone":1}', '{"usages":[],"begins":"2026-03-02"}']
    found = codec.decode_many(texts)
    assert found == [Month(date(2026, 3, 1), []), Month(date(2026, 3, 2), [])]
    assert found[0].by_name is not found[1].by_name
    assert Codec[Named](Named).decode_many(['{"b":1}']) == [Named(b=1)]


def test_columns() -> None:
    """A batch handler would make objects in order to read one field of each."""
    codec = Codec[Month](Month)
    parsed = codec.parse(['{"begins":"2026-03-01","usages":[]}'])
    assert codec.column(parsed, "begins") == [date(2026, 3, 1)]
    assert codec.column(parsed, "total") == [Decimal(0)]
    with pytest.raises(ValueError, match="no field gone"):
        codec.column(parsed, "gone")
    with pytest.raises(ValueError, match="no field a"):
        Codec(int).column([1], "a")
