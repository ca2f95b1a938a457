"""Folds: handlers whose states are rows of the host's own table.

A row belongs to one key, and the text of the key says which, whatever type the column has. So no
two keys are one row, and no two shards write it. A model where that is not so is refused when the
handler is registered.

A handler gets an instance of the host's model of its own in each step; what it leaves in it is kept
as plain values, so a step that is not written changes nothing.

A step is computed from rows as they were read, and written to rows that are still so, many at once
and only what has changed. What the host does to a row in between is never overwritten: nothing is
written then, and the step is done again from what is there.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial, wraps
from types import NoneType
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import JSON, Column, String
from sqlalchemy import Enum as EnumType
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.attributes import instance_dict
from sqlalchemy.sql import ClauseElement

from rowlock import UtcDateTime
from rowlock.errors import ModelError
from rowlock.spi import (
    LOCK_COLUMNS,
    attributes_of,
    check_kept,
    innermost,
    instance_of,
    keeps_time,
    mapper_of,
    single_table,
)
from rowlock.stream_errors import RowsChanged
from rowlock.streams.computing.compute import KeyState
from rowlock.streams.computing.handlers import (
    FoldHandler,
    GroupKey,
    StageHandler,
    StepContext,
    check_handler,
    name_of,
)
from rowlock.streams.computing.hashing import Key, key_text
from rowlock.streams.dialects.stream_dialect import FOLDS, KeyedTable, python_type
from rowlock.streams.key_states import StageCache

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
    def __init__(self, model: type[Any], *, is_keyed_by_host: bool, is_cached: bool) -> None:
        """Look at a model; ModelError says what to change if it cannot be folded into."""
        # With `is_keyed_by_host` the host says what the key of an event is; otherwise it is one
        # value. With `is_cached` rows are kept in memory between steps.
        self.mapper: Mapper[Any] = mapper_of(model)
        self.name = model.__name__
        self._check_class()
        self.table = single_table(self.mapper)
        # By the names of their attributes
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
        # The names of those that a handler must not change
        self.read_only = frozenset({*computed, *locks, *self.keys})
        # The names of those that a row must have
        self.never_null = frozenset(
            name
            for name, one in self.columns.items()
            if not (one.nullable or one.type.should_evaluate_none)
        )
        # The names of those that get a value of the model or the database, unless they are set
        self.given = frozenset(
            name
            for name, one in self.columns.items()
            if one.default is not None or one.server_default is not None
        )
        self._defaults = {
            name: make
            for name, one in self.columns.items()
            if (make := _plain_default(one)) is not None
        }
        self._accepted = self._check_constructor(model)

    def key_of(self, parts: Sequence[Key]) -> tuple[Any, ...]:
        """Return the primary key for a key of events, or a tuple of them; ValueError if none."""
        if len(parts) != len(self.keys):
            msg = f"the primary key of {self.name} is ({', '.join(self.keys)}), not {parts!r:.100}"
            raise ValueError(msg)
        return tuple(
            self._value(name, read, key_text(part))
            for name, read, part in zip(self.keys, self._readers, parts, strict=True)
        )

    def check_room(self, chars_max: int | None, *, of: str) -> None:
        """Refuse a primary key that is shorter than keys of events; None: length unknown."""
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
        """Return a new row with this primary key and the plain defaults of the model."""
        # What else the model or the database gives is added when it is written.
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
        kind: Any = datetime if isinstance(type_, UtcDateTime) else python_type(type_)
        found = next((read for each, read in _READ.items() if issubclass(kind, each)), None)
        is_strange = found is None or issubclass(kind, bool) or isinstance(type_, EnumType)
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


_UNCHANGING = (
    *(bool, bytes, date, Decimal, Enum, float, int, NoneType, str, time, timedelta, UUID),
)
"""Types of values that cannot be changed in place; times are dates, too."""


class StoredRow(NamedTuple):
    """What the database has of a row; without another writer, that version has no mark."""

    values: Mapping[str, Any]
    mark: str | None


@dataclass(slots=True, eq=False)
class FoldedRow:
    """A row of the host, as a step has left it."""

    # By the names of the attributes. Those of a new row that are None get their defaults.
    values: Mapping[str, Any]
    stored: StoredRow | None  # what the database has; None if there is no such row

    def __str__(self) -> str:
        return repr(self.values)


@dataclass(slots=True)
class HeldRow:
    """A row while a handler has it; `before` is what it was made of, None if it is new."""

    row: Any
    key: Mapping[str, Any]
    before: FoldedRow | None


class FoldCodec:
    def __init__(self, model: FoldModel) -> None:
        self._model = model
        columns = ", ".join(model.columns[name].name for name in model.keys)
        self.name = f"rows of {model.table.fullname} by {columns}"

    def fresh(self, value: Key | tuple[Key, ...]) -> HeldRow:
        """Return a new row for a key; ValueError if there is none for it."""
        key = self._model.key_of(value if isinstance(value, tuple) else (value,))
        return HeldRow(self._model.make(key), dict(zip(self._model.keys, key, strict=True)), None)

    def decode_many(self, texts: Sequence[FoldedRow]) -> list[HeldRow]:
        """Return rows for a handler, each with values of its own."""
        keys = self._model.keys
        return [
            HeldRow(self._instance(one), {name: one.values[name] for name in keys}, one)
            for one in texts
        ]

    def encode(self, value: HeldRow) -> FoldedRow:
        """Return what a handler has left in a row."""
        before = value.before
        stored = None if before is None else before.stored
        values = self._values(value.row, is_new=stored is None)
        if before is None:
            self._check(values, value.key)
        else:
            changed = self._model.changed(values, before.values)
            if not changed:
                return before
            self._check({name: values[name] for name in changed}, before.values)
        self._check_complete(values, is_new=stored is None)
        return FoldedRow(values, stored)

    def _instance(self, of: FoldedRow) -> Any:
        values = {
            name: value if isinstance(value, _UNCHANGING) else deepcopy(value)
            for name, value in of.values.items()
        }
        if of.stored is not None:
            return instance_of(self._model.mapper, values)
        # As one that was never written: what is not set is None, and not to be loaded.
        row = self._model.mapper.class_manager.new_instance()
        instance_dict(row).update(values)
        return row

    def _values(self, row: Any, *, is_new: bool) -> dict[str, Any]:
        there, names = instance_dict(row), self._model.columns
        missing = [name for name in names if name not in there]
        if missing and not is_new:
            msg = f"{self._model.name}.{missing[0]} was deleted from its row: set it to None"
            raise ValueError(msg)
        # SQLAlchemy keeps defaults of mapped dataclasses beside the instance.
        return {name: there[name] if name in there else getattr(row, name) for name in names}

    def _check(self, changed: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        model = self._model
        for name, value in changed.items():
            if isinstance(value, ClauseElement) or hasattr(value, "__clause_element__"):
                msg = f"{model.name}.{name} is an expression of SQL: a step computes values"
                raise TypeError(msg)
            if name in model.read_only and value != before.get(name):
                why = "the key of its row" if name in model.keys else "not a handler's to change"
                msg = f"{model.name}.{name} is {why}, and was set to {value!r:.100}"
                raise ValueError(msg)

    def _check_complete(self, values: Mapping[str, Any], *, is_new: bool) -> None:
        needed = self._model.never_null - self._model.given if is_new else self._model.never_null
        missing = [name for name, value in values.items() if value is None and name in needed]
        if missing:
            msg = f"{self._model.name} needs {', '.join(missing)}: never null"
            raise ValueError(msg)


class FoldTable:
    """The rows of one fold, kept in memory between steps if there is no other writer."""

    def __init__(self, model: FoldModel, *, is_cached: bool) -> None:
        self.is_cached = is_cached
        self.topic = model.name
        self.model = model
        columns = tuple(model.columns.values())
        keys = tuple(model.columns[name] for name in model.keys)
        self._table = KeyedTable(model.table, keys, columns, is_marked=not is_cached)

    async def read(self, connection: AsyncConnection, keys: Iterable[str]) -> dict[str, KeyState]:
        """Return the rows that are there, by the texts of their keys."""
        texts = self._texts(keys)
        if not texts:
            return {}
        names, width = list(self.model.columns), len(self.model.columns)
        found: dict[str, KeyState] = {}
        for row in await FOLDS.of(connection).read(connection, self._table, list(texts)):
            values = dict(zip(names, row[:width], strict=True))
            key = tuple(values[name] for name in self.model.keys)
            if key not in texts:
                raise self._mistaken(key)
            stored = StoredRow(values, None if self.is_cached else row[width])
            found[texts[key]] = KeyState(FoldedRow(values, stored))
        return found

    async def write(self, connection: AsyncConnection, rows: Sequence[FoldedRow]) -> None:
        missing = await self._insert(connection, [row for row in rows if row.stored is None])
        missing += await self._update(connection, [row for row in rows if row.stored is not None])
        if missing:
            raise RowsChanged(table=self.model.table.fullname, rows=missing)

    def is_written(self, cache: StageCache) -> None:
        """Note that the database has all rows of a shard that steps have changed."""
        written = cache.states(tuple(cache.dirty))
        cache.dirty.clear()
        for key, state in written.items():
            row = state.value
            if row.stored is None and any(row.values[name] is None for name in self.model.given):
                # What the model or the database has given to a new row is not known here.
                cache.forget((key,))
            row.stored = StoredRow(row.values, None)

    def _texts(self, keys: Iterable[str]) -> dict[tuple[Any, ...], str]:
        """Return the texts of keys by the primary keys of their rows."""
        texts = {}
        for text in keys:
            try:
                parts = (text,) if len(self.model.keys) == 1 else json.loads(text)
                texts[self.model.key_of(parts)] = text
            except ValueError:
                # No row has it; and none can be made, which the step will say.
                continue
        return texts

    async def _insert(self, connection: AsyncConnection, rows: Sequence[FoldedRow]) -> int:
        """Insert new rows, by equal sets of columns; return how many were there already."""
        alike: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
        for row in rows:
            given = {
                name: value
                for name, value in row.values.items()
                # Otherwise it gets what the model and the database give.
                if value is not None or self.model.columns[name].type.should_evaluate_none
            }
            self._check(connection, given)
            alike.setdefault(tuple(given), []).append(tuple(given.values()))
        missing = 0
        for names, values in alike.items():
            keys = [self.model.columns[name].key for name in names]
            missing += len(values) - await FOLDS.of(connection).insert(
                connection, self._table, names=keys, rows=values
            )
        return missing

    async def _update(self, connection: AsyncConnection, rows: Sequence[FoldedRow]) -> int:
        """Update rows in all columns that changed in any; return how many are not as they were."""
        columns, changed, given = self.model.columns, set[str](), []
        for row in rows:
            assert row.stored is not None
            own = self.model.changed(row.values, row.stored.values)
            if own:
                self._check(connection, {name: row.values[name] for name in own})
                changed.update(own)
                mark = () if self.is_cached else (row.stored.mark,)
                given.append((row.values, mark))
        if not given:
            return 0
        names = sorted(changed)
        return len(given) - await FOLDS.of(connection).update(
            connection,
            self._table,
            names=[columns[name].key for name in names],
            rows=[
                (*(row[name] for name in self.model.keys), *mark, *(row[name] for name in names))
                for row, mark in given
            ],
        )

    def _check(self, connection: AsyncConnection, values: Mapping[str, Any]) -> None:
        by_column = {self.model.columns[name]: value for name, value in values.items()}
        check_kept(self.model.name, by_column, connection.dialect)

    def _mistaken(self, key: tuple[Any, ...]) -> ModelError:
        columns = ", ".join(self.model.keys)
        msg = (
            f"{self.model.name} cannot be folded into: the database has found the row {key!r:.100}"
            f" by another key, so two keys are one row there; give {columns} a type and a collation"
            " that tell them apart"
        )
        return ModelError(msg, model=self.model.name)


def fold_handler(
    rows: FoldTable, call: FoldHandler[Any, Any], by: GroupKey[Any] | None
) -> StageHandler:
    """Return the handler that folds into `rows`, by `by` or else by the key of events."""
    check_handler(call, "fold")

    @wraps(call, updated=())
    def change(step: StepContext, held: HeldRow, events: list[Any]) -> None:
        # What it returns is looked at: a fold returns nothing.
        return call(step, held.row, events)

    codec, group = FoldCodec(rows.model), None if by is None else rows.model.checked(by)
    return StageHandler(
        name_of(call), "fold", change, codec, by=group, fresh=codec.fresh, rows=rows
    )
