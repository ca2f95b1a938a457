"""What a fold needs to know of the host's model: its columns, how a key becomes a row's, and how a
new row is made.

The one idea: a row belongs to one key, and the text of the key says which, whatever type the
column has. So no two keys are one row, and no two shards write it. A model where that is not so is
refused when the handler is registered.

Nothing here runs SQL.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from datetime import date, datetime
from functools import partial
from typing import Any
from uuid import UUID

from sqlalchemy import JSON, Column, Enum, String
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.attributes import instance_dict

from rowlock.errors import ModelError
from rowlock.rows.database_time import UtcDateTime
from rowlock.rows.instances import attributes_of
from rowlock.rows.model_check import LOCK_COLUMNS, innermost, keeps_time, mapper_of, single_table
from rowlock.streams.computing.handlers import GroupKey
from rowlock.streams.computing.hashing import Key, key_text

_READ: dict[type, Callable[[str], Any]] = {
    UUID: UUID,
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    int: int,
    str: str,
}
"""What makes a value of a key's text, by its type; a time is a date, too, so it comes first."""
_COLLECTIONS = (dict, list, set)


class FoldModel:
    """A model whose rows a fold changes.

    Attributes:
        mapper: of the model.
        table: of the model.
        columns: by the names of their attributes.
        keys: the names of those that are the primary key.
        read_only: the names of those that a handler must not change.
        never_null: the names of those that a row must have.
        given: the names of those that get a value of the model or the database, unless they are
            set.
    """

    def __init__(self, model: type[Any], *, is_keyed_by_host: bool, is_cached: bool) -> None:
        """Look at a model.

        Args:
            model: of the host.
            is_keyed_by_host: the host says what the key of an event is; otherwise it is one value.
            is_cached: rows are kept in memory between steps.

        Raises:
            ModelError: it cannot be folded into; the text says what to change.
        """
        self.mapper: Mapper[Any] = mapper_of(model)
        self.name = model.__name__
        self._check_class()
        self.table = single_table(self.mapper)
        self.columns: Mapping[str, Column[Any]] = attributes_of(self.mapper)
        by_column = {column: name for name, column in self.columns.items()}
        own: Any = self.mapper.primary_key
        self.keys: tuple[str, ...] = tuple(by_column[column] for column in own)
        self._readers = [self._reader(name) for name in self.keys]
        self._check_keys(is_keyed_by_host=is_keyed_by_host)
        if is_cached:
            self._check_cached()
        computed = {name for name, one in self.columns.items() if one.computed is not None}
        locks = {name for name, one in self.columns.items() if one.key in LOCK_COLUMNS}
        self.read_only = frozenset({*computed, *locks, *self.keys})
        self.never_null = frozenset(
            name
            for name, one in self.columns.items()
            if not (one.nullable or one.type.should_evaluate_none)
        )
        self.given = frozenset(name for name, one in self.columns.items() if _is_given(one))
        self._defaults = {
            name: make
            for name, one in self.columns.items()
            if (make := _plain_default(one)) is not None
        }
        self._accepted = self._check_constructor(model)

    def __repr__(self) -> str:
        return f"<FoldModel {self.name}>"

    def key_of(self, parts: Sequence[Key]) -> tuple[Any, ...]:
        """Return the values of the primary key for a key of events, or for a tuple of them.

        Raises:
            ValueError: there are more parts than the primary key has, or fewer; or a part is the
                text of no value of its column.
        """
        if len(parts) != len(self.keys):
            msg = f"the primary key of {self.name} is ({', '.join(self.keys)}), not {parts!r:.100}"
            raise ValueError(msg)
        return tuple(
            self._value(name, read, key_text(part))
            for name, read, part in zip(self.keys, self._readers, parts, strict=True)
        )

    def check_room(self, chars_max: int | None, *, of: str) -> None:
        """Refuse a primary key that is shorter than keys of events.

        Args:
            chars_max: the longest of these; None: it is not known.
            of: whose they are.

        Raises:
            ModelError: it is shorter.
        """
        name = self.keys[0]
        kept = innermost(self.columns[name].type)
        room = kept.length if isinstance(kept, String) else None
        if room is not None and chars_max is not None and room < chars_max:
            raise self._refused(
                f"its primary key {name} takes {room} characters, and keys of {of} have up to"
                f" {chars_max}: make it as long",
                column=name,
            )

    def checked(self, by: GroupKey[Any]) -> GroupKey[Any]:
        """Return `by`, refusing for an event what is no primary key."""

        def checked_by(event: Any) -> Any:
            key = by(event)
            if isinstance(key, tuple) != (len(self.keys) > 1):
                names = ", ".join(self.keys)
                wanted = f"({names})" if len(self.keys) > 1 else names
                msg = f"by returned {key!r:.100}: the primary key of {self.name} is {wanted}"
                raise ValueError(msg)
            return key

        return checked_by

    def make(self, key: Sequence[Any]) -> Any:
        """Return a new row with this primary key and the plain defaults of the model: values, and
        empty collections. What else the model or the database gives is added when it is written.
        """
        given = dict(zip(self.keys, key, strict=True))
        row = self.mapper.class_(**{name: given[name] for name in self._accepted})
        for name, value in given.items():
            setattr(row, name, value)
        there = instance_dict(row)
        for name, make in self._defaults.items():
            if name not in there:
                setattr(row, name, make())
        return row

    def changed(self, values: Mapping[str, Any], before: Mapping[str, Any]) -> list[str]:
        """Return the names of attributes that are not as before, in the order of the columns."""
        return [
            name
            for name, column in self.columns.items()
            if not _is_same(column, values[name], before[name])
        ]

    def _value(self, name: str, read: Callable[[str], Any], text: str) -> Any:
        try:
            value = read(text)
        except ValueError:
            value = None
        # A value with two texts would be the row of two keys.
        if value is None or key_text(value) != text:
            msg = f"the key {text!r:.100} is no value of {self.name}.{name}"
            raise ValueError(msg)
        return value

    def _check_class(self) -> None:
        if self.mapper.polymorphic_on is not None or self.mapper.inherits is not None:
            raise self._refused(
                "it is a class of a hierarchy, and a fold makes rows of one class: map the table"
                " once more, without inheritance"
            )
        if self.mapper.version_id_col is not None:
            raise self._refused(
                "it counts its versions (version_id_col), which a write of many rows does not: map"
                " the table once more, without it"
            )

    def _check_keys(self, *, is_keyed_by_host: bool) -> None:
        if len(self.keys) > 1 and not is_keyed_by_host:
            raise self._refused(
                f"its primary key is ({', '.join(self.keys)}), and the key of an event is one"
                " value: pass by=..., which returns a tuple of these for an event"
            )
        for name in self.keys:
            problem = _problem_with_key(self.columns[name])
            if problem:
                raise self._refused(f"its primary key {name} {problem}", column=name)

    def _reader(self, name: str) -> Callable[[str], Any]:
        type_ = self.columns[name].type
        kind: Any = datetime if isinstance(type_, UtcDateTime) else _python_type(type_)
        found = next((read for each, read in _READ.items() if issubclass(kind, each)), None)
        is_strange = found is None or issubclass(kind, bool) or isinstance(type_, Enum)
        if is_strange or (keeps_time(type_) and not isinstance(type_, UtcDateTime)):
            raise self._refused(
                f"its primary key {name} is {type_!r}, and keys are texts, whole numbers, UUIDs,"
                " dates or times of UtcDateTime",
                column=name,
            )
        assert found is not None
        return found

    def _check_cached(self) -> None:
        for name, one in self.columns.items():
            if one.onupdate is not None or one.server_onupdate is not None:
                raise self._refused(
                    f"{name} changes when the row is written, so the row in memory would not have"
                    " it: leave out cache=True",
                    column=name,
                )

    def _check_constructor(self, model: type[Any]) -> tuple[str, ...]:
        """Return which parts of the key the class takes when an instance is made."""
        parameters = inspect.signature(model).parameters
        takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        accepted = tuple(name for name in self.keys if takes_all or name in parameters)
        try:
            inspect.signature(model).bind(**dict.fromkeys(accepted))
        except TypeError as error:
            raise self._refused(
                f"no new row can be made of its key alone ({error}): give what else it takes a"
                " default, or init=False"
            ) from None
        return accepted

    def _refused(self, why: str, *, column: str | None = None) -> ModelError:
        msg = f"{self.name} cannot be folded into: {why}"
        return ModelError(msg, model=self.name, column=column)


def _problem_with_key(column: Column[Any]) -> str:
    is_counted = column.server_default is not None or column.table.autoincrement_column is column
    if is_counted:
        return (
            "is given by the database, and the row of a key is found by that key: make it the key"
            " of the events; a whole number with autoincrement=False"
        )
    if column.default is not None:
        return (
            "has a default, and the row of a key is found by that key: make it the key of the"
            " events, without a default"
        )
    kept = innermost(column.type)
    if isinstance(kept, String) and (kept.collation or type(kept).__name__ in ("CHAR", "CITEXT")):
        return (
            f"is {column.type!r}, which may take two keys for one row: make it a String without a"
            " collation"
        )
    return ""


def _python_type(type_: Any) -> type:
    try:
        kind: type = type_.python_type
    except NotImplementedError:
        return object
    return kind


def _is_given(column: Column[Any]) -> bool:
    return column.default is not None or column.server_default is not None


def _is_same(column: Column[Any], value: Any, before: Any) -> bool:
    if value is before:
        return True
    if not column.type.compare_values(value, before):
        return False
    # Python takes 1 for True, and JSON does not.
    return not isinstance(innermost(column.type), JSON) or repr(value) == repr(before)


def _plain_default(column: Column[Any]) -> Callable[[], Any] | None:
    """Return what makes the default of a column, if that is a value or an empty collection."""
    default: Any = column.default
    if default is None:
        return None
    if default.is_scalar:
        return partial(deepcopy, default.arg)
    # SQLAlchemy wraps what takes no argument.
    of = getattr(default.arg, "__wrapped__", None) if default.is_callable else None
    return of if of in _COLLECTIONS else None
