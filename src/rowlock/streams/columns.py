"""The columns that make a host's table a stream, as a mixin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Column, Identity, Integer, String, Table, Uuid, event
from sqlalchemy.orm import InstrumentedAttribute, Mapped, Mapper, mapped_column

from rowlock.errors import ModelError
from rowlock.rows.columns import for_type_checkers
from rowlock.rows.model_check import innermost, mapper_of
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.dialects.position_type import POSITION, keep_counting

UUID_CHARS = 36
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


@for_type_checkers
class EventColumns:
    """A table whose rows are only ever added, as a stream.

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

    position: Mapped[int] = _position()

    bucket: Mapped[int | None] = mapped_column(Integer, nullable=True, insert_default=_bucket_in)


@event.listens_for(EventColumns, "after_mapper_constructed", propagate=True)
def _note_key(mapper: Mapper[Any], model: type[EventColumns]) -> None:
    name, table = getattr(model, "__stream_key__", None), mapper.local_table
    if isinstance(name, str) and name in mapper.column_attrs and isinstance(table, Table):
        # Not in its `info`, which Alembic writes into migrations.
        vars(table)[_KEY] = mapper.column_attrs[name].columns[0].key


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
