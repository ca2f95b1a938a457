"""How the records among values, dataclasses and named tuples, are written as JSON and read again.

Fields are written in the order of their names, so equal records have equal texts. Many records are
written and read field by field, which takes a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring_ascii
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeAlias

ToText: TypeAlias = Callable[[Any], str]
FromPlain: TypeAlias = Callable[[Any], Any]


class ValuePlan(NamedTuple):
    """How values of one type are written and read.

    Attributes:
        to_text: returns a value's JSON.
        from_plain: makes a value of parsed JSON; None if that is the value.
        record: of a dataclass or a named tuple.
    """

    to_text: ToText
    from_plain: FromPlain | None = None
    record: RecordPlan | None = None


class RecordPlan:
    """How the fields of a dataclass or a named tuple are written and read.

    Attributes:
        cls: the class.
        names: of its fields, in the order of its constructor.
        plans: of its fields.
    """

    def __init__(
        self,
        cls: type,
        plans: Mapping[str, ValuePlan],
        defaults: Mapping[str, Callable[[], Any]],
        *,
        by_keyword: bool,
    ) -> None:
        """Compose the functions of a class.

        Args:
            cls: the class.
            plans: of its fields, by their names, in the order of its constructor.
            defaults: of fields that may be missing in what is read, what makes the value.
            by_keyword: the constructor needs the names.
        """
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
        """Return the JSON of a record.

        Raises:
            TypeError: it is of another class, or a field is of another type.
        """
        if type(value) is not self.cls:
            msg = f"{kind_of(value)} is no {self.cls.__name__}"
            raise TypeError(msg)
        return self._template % tuple([text(get(value)) for text, get in self._fields])

    def to_texts(self, values: Sequence[Any]) -> list[str]:
        """Return the JSON of many records, field by field.

        Raises:
            TypeError: as `to_text`.
        """
        if set(map(type, values)) - {self.cls} or not self.names:
            return [self.to_text(value) for value in values]
        fields = [map(text, map(get, values)) for text, get in self._fields]
        return list(map(self._template.__mod__, zip(*fields, strict=True)))

    def from_plain(self, plain: Any) -> Any:
        """Return the record of parsed JSON.

        Raises:
            ValueError: a field is missing that has no default, or the JSON is no object.
        """
        return self.made_of([self._value(plain, each) for each in range(len(self.names))])

    def from_plains(self, plains: Sequence[Any]) -> list[Any]:
        """Return many records of parsed JSON.

        Raises:
            ValueError: as `from_plain`.
        """
        if self._by_keyword or not self.names:
            return [self.from_plain(plain) for plain in plains]
        return list(map(self.cls, *(self.column(plains, name) for name in self.names)))

    def column(self, plains: Sequence[Any], name: str) -> list[Any]:
        """Return one field of many records of parsed JSON.

        Raises:
            ValueError: as `from_plain`; or there is no such field.
        """
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

    def made_of(self, values: Sequence[Any]) -> Any:
        """Return the record with these values, in the order of `names`."""
        if self._by_keyword:
            return self.cls(**dict(zip(self.names, values, strict=True)))
        return self.cls(*values)

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
