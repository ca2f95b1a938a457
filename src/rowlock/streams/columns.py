"""The columns that make a host's table a stream, as a mixin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref

from sqlalchemy import (
    Column,
    Connection,
    Identity,
    Integer,
    String,
    Table,
    Uuid,
    event,
    inspect,
)
from sqlalchemy.orm import (
    InstanceState,
    InstrumentedAttribute,
    Mapped,
    Mapper,
    ORMExecuteState,
    Session,
    mapped_column,
)

from rowlock.errors import ModelError
from rowlock.rows.columns import for_type_checkers
from rowlock.rows.instances import add_state
from rowlock.rows.model_check import innermost, mapper_of
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.dialects.position_type import POSITION, keep_counting

UUID_CHARS = 36
_READ = "rowlock_stream_columns"
"""Where a table names its columns that flows read."""
_KEY = "rowlock_stream_key"
"""Where a table says which of its columns is the key."""


def _position() -> Any:
    made = mapped_column(
        POSITION,
        Identity(always=True),
        primary_key=True,
        sort_order=-1,
    )
    event.listen(
        made.column,
        "after_parent_attach",
        lambda _column, table: keep_counting(table),
        propagate=True,
    )
    return made


def _bucket_in(context: Any) -> int | None:
    """Return the bucket of a row that is being inserted; None if its key is an expression, or if
    one VALUES has several rows, which a default cannot tell apart.

    Raises:
        ModelError: its position is given.
        ValueError: its key is none.
        TypeError: likewise.
    """
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


def stream_key_of(model: type[EventColumns]) -> InstrumentedAttribute[Any]:
    """Return the attribute of the keys.

    Raises:
        ModelError: the model does not say, or has no such column.
    """
    name = getattr(model, "__stream_key__", None)
    columns = mapper_of(model).column_attrs
    if not isinstance(name, str) or name not in columns:
        raise ModelError(
            f'{model.__name__}.__stream_key__ must name a column attribute ("account"), not'
            f" {name!r:.100}",
            model=model.__name__,
        )
    attribute: InstrumentedAttribute[Any] = getattr(model, name)
    return attribute


def key_chars_max(column: Column[Any]) -> int | None:
    """Return the longest text of a key that a column takes, None if it does not say."""
    kept = innermost(column.type)
    if isinstance(kept, Uuid):
        return UUID_CHARS
    return kept.length if isinstance(kept, String) else None
