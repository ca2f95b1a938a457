"""A table of the host as a stream: its rows as they are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import date
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Column, Integer, Table, inspect
from sqlalchemy.orm import InstanceState, InstrumentedAttribute, Mapper

from rowlock.errors import ConfigurationError, ModelError
from rowlock.rows.database_time import UtcDateTime
from rowlock.rows.instances import instance_of
from rowlock.rows.model_check import innermost, keeps_time, mapper_of, single_table
from rowlock.streams.columns import EventColumns, key_chars_max, stream_key_of
from rowlock.streams.inputs.positions import position_column
from rowlock.streams.inputs.row_reader import RowReader, RowSource

E = TypeVar("E")


class TableSource(RowSource[E]):
    """A table of the host, whose rows are only ever added, as a stream of instances of its model.

        TableSource(Payment, position=Payment.id, key=Payment.account)

    Handlers get detached instances with the columns of the row: no relationship is loaded, and what
    is changed in them is not written. Deferred columns are left out, so a column that the host
    changes later belongs among these: a replay compares what it reads.

    Args:
        model: the mapped class.
        position: a whole number that the database assigns to each row, ascending, such as an
            identity; an index begins with it.
        key: the column of the keys: texts, whole numbers, UUIDs or dates, never null.
        bucket: of the key (`EventColumns`), null where it is not known; without it each replica
            reads all rows.
        name: of the source, within a flow; by default that of the table. It is kept with the
            progress of flows, so it stays.

    Raises:
        ModelError: a column cannot be what it is to be; the text says what to change.
    """

    def __init__(
        self,
        model: type[E],
        *,
        position: Any,
        key: Any,
        bucket: Any = None,
        name: str | None = None,
    ) -> None:
        mapper = mapper_of(model)
        if mapper.polymorphic_on is not None or mapper.inherits is not None:
            raise ModelError(
                f"{model.__name__} is a class of a hierarchy, and each row of a stream is an event"
                " of one class: map the table once more, without inheritance",
                model=model.__name__,
            )
        table = single_table(mapper)
        decoder = _ModelDecoder(mapper)
        reader = RowReader(
            table.name if name is None else name,
            position_column(table, position),
            _key_column(table, key),
            None if bucket is None else _bucket_column(table, bucket),
            decoder.columns,
            lambda *columns: list(zip(*columns, strict=True)),
            decoder,
            are_foreign=bucket is not None,
        )
        super().__init__(reader, topic=model.__name__)
        self.key_chars_max = key_chars_max(reader.key)
        self._mapper = mapper

    def position_of(self, added: object) -> int | None:
        """Return the position of a row, also of one that is detached and expired, as rows are
        behind a commit.

        Raises:
            ConfigurationError: it was not written, or its position is not loaded any more.
        """
        mapper, column = self._mapper, self._reader.position
        if not isinstance(added, mapper.class_):
            return None
        state: InstanceState[Any] = inspect(added)
        position = state.dict.get(mapper.get_property_by_column(column).key)
        if position is None and state.identity is not None and column in mapper.primary_key:
            position = state.identity[mapper.primary_key.index(column)]
        if position is None:
            raise ConfigurationError(
                f"a {mapper.class_.__name__} has no {column.name} here: it was not written yet, or"
                " it is expired; flush the session, and read the attribute before the commit"
            )
        return int(position)

    def fingerprint(self) -> str:
        """Return the table, and which columns give its positions and keys."""
        position, key = self._reader.position, self._reader.key
        return f"{self.name} = table {position.table.fullname} by {position.name}, {key.name}"


def event_table(model: type[E]) -> TableSource[E]:
    """Return a class with `EventColumns` as a source.

    Raises:
        ModelError: it is none, or it does not say what its key is.
    """
    mapper = mapper_of(model)
    if not issubclass(model, EventColumns):
        raise ModelError(
            f"{model.__name__} is no stream: add EventColumns to it, or name its columns by"
            f" TableSource({model.__name__}, position=..., key=...)",
            model=model.__name__,
        )
    if len(mapper.primary_key) != 1:
        raise ModelError(
            f"{model.__name__} has a primary key beside its `position`: leave it out, or use"
            " TableSource with a model of your own columns",
            model=model.__name__,
        )
    return TableSource(
        model, position=model.position, key=stream_key_of(model), bucket=model.bucket
    )


class _ModelDecoder:
    """Makes instances of a model of the columns of rows."""

    def __init__(self, mapper: Mapper[Any]) -> None:
        self._mapper = mapper
        found = {
            prop.key: prop.columns[0]
            for prop in mapper.column_attrs
            if isinstance(prop.columns[0], Column) and not prop.deferred
        }
        self._names = tuple(found)
        self.columns = tuple(found.values())

    def parse(self, raw: Sequence[Any], /) -> Sequence[Any]:
        """Return the rows as they are."""
        return raw

    def texts(self, raw: Sequence[Any], /) -> list[str]:
        """Return the columns of each row by their attributes, as JSON."""
        names = self._names
        return [json.dumps(dict(zip(names, row, strict=True)), default=str) for row in raw]

    def build(self, parsed: Sequence[Any], /) -> list[Any]:
        """Return an instance for each row."""
        mapper, names = self._mapper, self._names
        if issubclass(mapper.class_, EventColumns):
            events = [mapper.class_.__new__(mapper.class_) for _ in parsed]
            for event, row in zip(events, parsed, strict=True):
                vars(event).update(zip(names, row, strict=True))
            return events
        return [instance_of(mapper, dict(zip(names, row, strict=True))) for row in parsed]

    def column(self, parsed: Sequence[Any], name: str, /) -> list[Any]:
        """Return one attribute of all rows.

        Raises:
            ValueError: there is no such column.
        """
        if name not in self._names:
            msg = f"{self._mapper.class_.__name__} has no column {name}; it has {self._names}"
            raise ValueError(msg)
        place = self._names.index(name)
        return [row[place] for row in parsed]


def _column(table: Table, given: Any, what: str) -> Column[Any]:
    column = given.property.columns[0] if isinstance(given, InstrumentedAttribute) else given
    if not isinstance(column, Column) or column.table is not table:
        msg = f"the {what} of a stream is a column of {table.name}, not {given!r:.100}"
        raise ModelError(msg, model=table.name)
    return column


def _bucket_column(table: Table, given: Any) -> Column[Any]:
    column = _column(table, given, "bucket")
    if not isinstance(innermost(column.type), Integer):
        msg = f"{table.name}.{column.name} is no bucket: it is {column.type!r}, and not an Integer"
        raise ModelError(msg, model=table.name, column=column.name)
    return column


def _key_column(table: Table, given: Any) -> Column[Any]:
    column = _column(table, given, "key")
    problem = ""
    if column.nullable:
        problem = "it may be null, and a row without a key belongs to no shard: make it NOT NULL"
    elif not _may_be_key(column):
        problem = (
            f"it is {column.type!r}, and keys are texts, whole numbers, UUIDs, dates or times of"
            " UtcDateTime"
        )
    if problem:
        msg = f"{table.name}.{column.name} is no key of a stream: {problem}"
        raise ModelError(msg, model=table.name, column=column.name)
    return column


def _may_be_key(column: Column[Any]) -> bool:
    if keeps_time(column.type):
        return isinstance(column.type, UtcDateTime)
    try:
        kind = column.type.python_type
    except NotImplementedError:
        return False
    return issubclass(kind, str | int | UUID | date) and not issubclass(kind, bool)
