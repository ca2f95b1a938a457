"""The columns that make a host's table a stream, as a mixin."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Identity, Integer, Table, event
from sqlalchemy.orm import InstrumentedAttribute, Mapped, Mapper, mapped_column

from rowlock.errors import ModelError
from rowlock.rows.columns import for_type_checkers
from rowlock.rows.model_check import mapper_of
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.dialects.position_type import POSITION, keep_counting

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
        ValueError: its key is none.
        TypeError: likewise.
    """
    name = context.compiled.statement.table.info.get(_KEY)
    key = context.get_current_parameters(isolate_multiinsert_groups=False).get(name)
    return None if key is None else bucket_of(key)


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
        table.info[_KEY] = mapper.column_attrs[name].columns[0].key


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
