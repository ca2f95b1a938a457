"""A table of the host as a stream: the mixin with its columns, and its rows as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Column, Connection, Identity, Integer, String, Table, Uuid, event, inspect
from sqlalchemy.orm import InstanceState, Mapped, Mapper, ORMExecuteState, Session, mapped_column

from rowlock import UtcDateTime
from rowlock.errors import ConfigurationError, ModelError
from rowlock.rows.leased_table import add_state
from rowlock.spi import (
    for_type_checkers,
    innermost,
    instance_of,
    keeps_time,
    mapper_of,
    single_table,
)
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.dialects.stream_dialect import POSITION, keep_counting, python_type
from rowlock.streams.inputs.high_water import column_of, position_column
from rowlock.streams.inputs.source import RowColumns, RowSource

UUID_CHARS = 36
_READ = "rowlock_stream_columns"
"""Where a table names its columns that flows read."""
_KEY = "rowlock_stream_key"
"""Where a table says which of its columns is the key."""


def _position() -> Any:
    made = mapped_column(POSITION, Identity(always=True), primary_key=True, sort_order=-1)
    event.listen(
        made.column,
        "after_parent_attach",
        lambda _column, table: keep_counting(table),
        propagate=True,
    )
    return made


def _bucket_in(context: Any) -> int | None:
    """Return the bucket of a row that is inserted; None if its key is not known here."""
    table = context.compiled.statement.table
    given = context.get_current_parameters(isolate_multiinsert_groups=False)
    _check_position_is_free(table, given)
    key = given.get(vars(table).get(_KEY))
    return None if key is None else bucket_of(key)


def _check_position_is_free(table: Table, given: Mapping[str, Any]) -> None:
    name = table.c.position.key
    # The second name is that of the first row of several in one VALUES.
    position = next((given[one] for one in (name, f"{name}_m0") if one in given), None)
    if position is None:
        return
    raise ModelError(
        f"{table.name}.{name} is given as {position!r:.40}: the database assigns positions, and no"
        " flow would ever read a row that comes below what is cut; leave it out",
        model=table.name,
        column=name,
    )


class _StateWhenAsked:
    """What SQLAlchemy knows of an instance, made when it is first asked for: events are read, and
    it takes most of the time in which an event is made.
    """

    def __get__(self, event: Any, model: type[Any]) -> InstanceState[Any]:
        if event is None or "position" not in vars(event):
            # SQLAlchemy is about to set it.
            raise AttributeError("_sa_instance_state")
        return add_state(mapper_of(model), event)


@for_type_checkers
class EventColumns:
    """A table whose rows are only ever added, as a stream.

    A flush, and an UPDATE or DELETE of a session, that would change or delete a row is refused with
    `ModelError`, unless the row was added in the same transaction: flows that have counted it would
    never see the difference. Add a row that corrects it. Of what is read by no flow, which is the
    bucket and columns that are `deferred`, all may change. Where a change is meant, such as the
    deletion of rows that all flows have done, the statement says so:
    ``execution_options(rowlock_changes_events=True)``.

        class Payment(EventColumns, Base):
            __tablename__ = "payments"
            __stream_key__ = "account"
            account: Mapped[str]
            cents: Mapped[int]

    Attributes:
        __stream_key__: the name of the attribute that is the key of a row.
        position: the order of the rows, and their primary key; the database assigns it.
        bucket: where the key falls, from 0 to 65,535, so that a shard reads its own rows only; null
            in rows that were added by other means than SQLAlchemy, which every replica reads.
    """

    __stream_key__: str

    _sa_instance_state = _StateWhenAsked()

    position: Mapped[int] = _position()

    bucket: Mapped[int | None] = mapped_column(Integer, nullable=True, insert_default=_bucket_in)


@event.listens_for(EventColumns, "after_mapper_constructed", propagate=True)
def _note_key(mapper: Mapper[Any], model: type[EventColumns]) -> None:
    name, table = getattr(model, "__stream_key__", None), mapper.local_table
    if isinstance(table, Table):
        read = [each for each in mapper.column_attrs if not each.deferred and each.key != "bucket"]
        vars(table)[_READ] = {name for each in read for name in (each.key, each.columns[0].key)}
    if isinstance(name, str) and name in mapper.column_attrs and isinstance(table, Table):
        # Not in its `info`, which Alembic writes into migrations.
        vars(table)[_KEY] = mapper.column_attrs[name].columns[0].key


_added: WeakKeyDictionary[object, object] = WeakKeyDictionary()
"""The transaction that has added a row, by the state of the row."""


@event.listens_for(EventColumns, "after_insert", propagate=True)
def _note_added(mapper: Mapper[Any], joined: Connection, row: object) -> None:
    transaction = joined.get_transaction()
    if transaction is not None:
        _added[inspect(row)] = ref(transaction)


@event.listens_for(EventColumns, "before_update", propagate=True)
def _refuse_change(mapper: Mapper[Any], joined: Connection, row: object) -> None:
    state: InstanceState[Any] = inspect(row)
    read = vars(mapper.local_table).get(_READ, ())
    changed = [one.key for one in state.attrs if one.key in read and one.history.has_changes()]
    if changed and not _is_new(joined, state):
        raise _is_event(mapper.local_table, changed[0])


@event.listens_for(EventColumns, "before_delete", propagate=True)
def _refuse_deletion(mapper: Mapper[Any], joined: Connection, row: object) -> None:
    if not _is_new(joined, inspect(row)):
        raise _is_event(mapper.local_table, None)


def _is_new(joined: Connection, state: object) -> bool:
    """Whether a row was added in this transaction, so that no flow has read it yet."""
    added: Any = _added.get(state)
    return added is not None and added() is joined.get_transaction()


@event.listens_for(Session, "do_orm_execute")
def _refuse_statement(execution: ORMExecuteState) -> None:
    if not (execution.is_update or execution.is_delete):
        return
    statement: Any = execution.statement
    # What is returned may be read as rows of a model: `select(...).from_statement(...)`.
    statement = getattr(statement, "element", statement)
    read = vars(statement.table).get(_READ)
    if read is None or execution.execution_options.get("rowlock_changes_events"):
        return
    if execution.is_delete:
        raise _is_event(statement.table, None)
    assigned = (dict(getattr(statement, one, None) or {}) for one in ("_values", "_ordered_values"))
    names = [getattr(one, "key", one) for values in assigned for one in values]
    given = execution.parameters or ()
    names += [name for one in ([given] if isinstance(given, Mapping) else given) for name in one]
    key = {column.key for column in statement.table.primary_key}
    if changed := [name for name in names if name in read and name not in key]:
        raise _is_event(statement.table, changed[0])


def _is_event(table: Any, column: str | None) -> ModelError:
    what = "is deleted" if column is None else f"changes its {column}"
    return ModelError(
        f"an event of {table.name} {what}: flows that have counted it go on with what it was; add"
        " an event that corrects it, or say that it is meant, in a statement with"
        " execution_options(rowlock_changes_events=True)",
        model=table.name,
        column=column,
    )


def key_chars_max(column: Column[Any]) -> int | None:
    """Return the longest text of a key that a column takes, None if it does not say."""
    kept = innermost(column.type)
    if isinstance(kept, Uuid):
        return UUID_CHARS
    return kept.length if isinstance(kept, String) else None


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
        columns = RowColumns(
            table.name if name is None else name,
            position_column(table, position),
            _key_column(table, key),
            None if bucket is None else _bucket_column(table, bucket),
            decoder.columns,
            lambda *columns: list(zip(*columns, strict=True)),
            decoder,
            are_foreign=bucket is not None,
        )
        super().__init__(columns, topic=model.__name__)
        self.key_chars_max = key_chars_max(columns.key)
        self._mapper = mapper

    def position_of(self, added: object) -> int | None:
        """Return the position of a row, also of one that is detached and expired, as rows are
        behind a commit.

        Raises:
            ConfigurationError: it was not written, or its position is not loaded any more.
        """
        mapper, column = self._mapper, self._columns.position
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
        position, key = self._columns.position, self._columns.key
        return f"{self.name} = table {position.table.fullname} by {position.name}, {key.name}"


def event_table(model: type[E]) -> TableSource[E]:
    """Return a class with `EventColumns` as a source."""
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
    name = getattr(model, "__stream_key__", None)
    if not isinstance(name, str) or name not in mapper.column_attrs:
        raise ModelError(
            f'{model.__name__}.__stream_key__ must name a column attribute ("account"), not'
            f" {name!r:.100}",
            model=model.__name__,
        )
    return TableSource(
        model, position=model.position, key=getattr(model, name), bucket=model.bucket
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
        return raw

    def texts(self, raw: Sequence[Any], /) -> list[str]:
        names = self._names
        return [json.dumps(dict(zip(names, row, strict=True)), default=str) for row in raw]

    def build(self, parsed: Sequence[Any], /) -> list[Any]:
        mapper, names = self._mapper, self._names
        if issubclass(mapper.class_, EventColumns):
            events = [mapper.class_.__new__(mapper.class_) for _ in parsed]
            for event, row in zip(events, parsed, strict=True):
                vars(event).update(zip(names, row, strict=True))
            return events
        return [instance_of(mapper, dict(zip(names, row, strict=True))) for row in parsed]

    def column(self, parsed: Sequence[Any], name: str, /) -> list[Any]:
        if name not in self._names:
            msg = f"{self._mapper.class_.__name__} has no column {name}; it has {self._names}"
            raise ValueError(msg)
        place = self._names.index(name)
        return [row[place] for row in parsed]


def _bucket_column(table: Table, given: Any) -> Column[Any]:
    column = column_of(table, given, "bucket")
    if not isinstance(innermost(column.type), Integer):
        msg = f"{table.name}.{column.name} is no bucket: it is {column.type!r}, and not an Integer"
        raise ModelError(msg, model=table.name, column=column.name)
    return column


def _key_column(table: Table, given: Any) -> Column[Any]:
    column = column_of(table, given, "key")
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
    kind = python_type(column.type)
    return issubclass(kind, str | int | UUID | date) and not issubclass(kind, bool)
