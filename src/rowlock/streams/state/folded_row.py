"""Rows of the host as states of a fold: what the database has of a row, what a handler has made of
it, and what is therefore written.

A handler gets an instance of the host's model of its own in each step. What it leaves in it is kept
as plain values, so a step that is not written changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy.orm.attributes import instance_dict
from sqlalchemy.sql import ClauseElement

from rowlock.rows.instances import instance_of
from rowlock.streams.computing.hashing import Key
from rowlock.streams.state.fold_model import FoldModel

_UNCHANGING = (
    *(bool, bytes, date, Decimal, Enum, float, int, NoneType, str, time, timedelta, UUID),
)
"""Types of values that cannot be changed in place; times are dates, too."""


class StoredRow(NamedTuple):
    """What the database has of a row.

    Attributes:
        values: by the names of the attributes.
        mark: of that version of the row; None if there is no other writer.
    """

    values: Mapping[str, Any]
    mark: str | None


@dataclass(slots=True, eq=False)
class FoldedRow:
    """A row of the host, as a step has left it.

    Attributes:
        values: by the names of the attributes. Those of a new row that are None get their defaults.
        stored: what the database has; None if there is no such row.
    """

    values: Mapping[str, Any]
    stored: StoredRow | None

    def __str__(self) -> str:
        return repr(self.values)


@dataclass(slots=True)
class HeldRow:
    """A row while a handler has it.

    Attributes:
        row: the instance of the host's model.
        key: its primary key, by the names of the attributes.
        before: what it was made of; None if it is new.
    """

    row: Any
    key: Mapping[str, Any]
    before: FoldedRow | None


class FoldCodec:
    """Makes instances of rows, and rows of what a handler has left in them.

    Args:
        model: of the host.

    Attributes:
        name: says which rows these are.
    """

    def __init__(self, model: FoldModel) -> None:
        self._model = model
        columns = ", ".join(model.columns[name].name for name in model.keys)
        self.name = f"rows of {model.table.fullname} by {columns}"

    def fresh(self, value: Key | tuple[Key, ...]) -> HeldRow:
        """Return a new row for a key.

        Raises:
            ValueError: there is no row for it.
            Exception: whatever the host's class raised.
        """
        key = self._model.key_of(value if isinstance(value, tuple) else (value,))
        return HeldRow(self._model.make(key), self._named(key), None)

    def decode_many(self, texts: Sequence[FoldedRow]) -> list[HeldRow]:
        """Return rows for a handler, each with values of its own."""
        keys = self._model.keys
        return [
            HeldRow(self._instance(one), {name: one.values[name] for name in keys}, one)
            for one in texts
        ]

    def encode(self, value: HeldRow) -> FoldedRow:
        """Return what a handler has left in a row.

        Raises:
            TypeError: it left an expression of SQL.
            ValueError: it changed the key or what the database computes, or left null what is never
                null.
        """
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

    def _named(self, key: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self._model.keys, key, strict=True))

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
        """Refuse what a handler must not set."""
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
