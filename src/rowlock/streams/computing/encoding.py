"""Values as texts: events, states, results and messages, written as JSON and read again.

Values are plain Python: dataclasses, named tuples, numbers, texts, dates and collections of these.
Equal values have equal texts, in each process, so texts are compared and digested instead of
values. The texts are ASCII: each database stores them, and a character is a byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar, cast, overload

from rowlock.streams.computing.value_plans import plan_of, type_name

V = TypeVar("V")

PARSED_TEXTS_MAX = 1_000
PARSED_BYTES_MAX = 262_144
"""Most texts, and bytes, that are parsed in one call, which keeps the interpreter from all other
threads; unless one text has more.
"""
VALUE_BYTES_MAX = 1_048_576
"""Longest text of a state, a payload or a result, in bytes."""


class Codec(Generic[V]):
    """Writes and reads values of one type.

    Attributes:
        name: of the type.
    """

    @overload
    def __init__(self, type_: type[V]) -> None: ...
    @overload
    def __init__(self: Codec[Any], type_: Any) -> None: ...
    def __init__(self, type_: Any) -> None:
        """Compose the functions of a type.

        Args:
            type_: the type, such as a dataclass, ``int``, ``dict[str, int]`` or ``Any``. A type
                without parts such as ``dict`` has what JSON has.

        Raises:
            TypeError: values of this type cannot be written as JSON and read again.
        """
        self.name = type_name(type_)
        self._plan = plan_of(type_)

    def encode(self, value: V) -> str:
        """Return the text of a value.

        Raises:
            TypeError: it is of another type, or something in it is.
            ValueError: a number is not finite, or the text is longer than `VALUE_BYTES_MAX`.
        """
        return self._checked(self._plan.to_text(value))

    def encode_many(self, values: Sequence[V]) -> list[str]:
        """Return the texts of values.

        Raises:
            TypeError: as `encode`.
            ValueError: as `encode`.
        """
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

    def decode(self, text: str) -> V:
        """Return the value of a text.

        Raises:
            ValueError: it is no JSON, or none of such a value.
        """
        return self.build([_parsed(text)])[0]

    def decode_many(self, texts: Sequence[str]) -> list[V]:
        """Return the values of texts.

        Raises:
            ValueError: one of them is no JSON, or none of such a value.
        """
        return self.build(self.parse(texts))

    def parse(self, raw: Sequence[str]) -> list[Any]:
        """Return what the texts have, as a JSON parser gives it.

        Raises:
            ValueError: one of them is no JSON.
        """
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
        """Return the values of what `parse` gave.

        Raises:
            ValueError: one of them is none of such a value.
        """
        record, read = self._plan.record, self._plan.from_plain
        try:
            if record is not None:
                return record.from_plains(parsed)
            return list(parsed) if read is None else list(map(read, parsed))
        except (TypeError, AttributeError, ArithmeticError) as error:
            msg = f"no {self.name}: {error}"
            raise ValueError(msg) from error

    def column(self, parsed: Sequence[Any], name: str) -> list[Any]:
        """Return one field of what `parse` gave.

        Raises:
            ValueError: as `build`; or values of this type have no such field.
        """
        if self._plan.record is None:
            msg = f"{self.name} has no field {name}"
            raise ValueError(msg)
        return self._plan.record.column(parsed, name)


def slices(sizes: Sequence[int], *, rows_max: int, bytes_max: int) -> Iterator[slice]:
    """Yield consecutive parts of rows, as long as their bounds allow; one row at least.

    Args:
        sizes: of the rows, in bytes.
        rows_max: most rows of a part.
        bytes_max: most bytes of a part, unless it is one row.
    """
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
