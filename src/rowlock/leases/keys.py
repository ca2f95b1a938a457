"""Keys that find their rows, and rows that are left alone because theirs do not.

A row whose key the column's type cannot read, or is written in a shape in which no statement looks
for it, can be neither worked on nor written. It is logged once, remembered by what is written
there, and no claim reads it again; all others go on.

And a type of the host's may read keys as objects of which each is equal to itself alone. No row
that is read again would be one that is held: its outcomes would be changed, and its related rows
lost, at every attempt. Such a key is refused.

Not here: the other columns of a claim, where anything else may be read instead
(``leases/claim.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Dialect, and_, bindparam, select, type_coerce
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine

from rowlock.errors import ModelError
from rowlock.logs import get_logger
from rowlock.rows.leased_table import LeasedTable

SPOILT_KEYS_MAX = 500
"""Most rows that a pipeline leaves alone for their keys; others take places of claims."""

_UNREAD: Any = object()

logger = get_logger(__name__)


class WrittenKey(NamedTuple):
    """A key that is read otherwise than it is written, or not at all."""

    written: Any
    key: Any = _UNREAD


class _KeyAsRead(TypeDecorator[Any]):
    """Gives a `WrittenKey` where the key's own type raises, or would look for something else."""

    impl = NullType
    cache_ok = True

    def __init__(self, key_type: TypeEngine[Any]) -> None:
        super().__init__()
        self.key_type = key_type

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return self.key_type.dialect_impl(dialect)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        read = super().result_processor(dialect, coltype)
        bind = super().bind_processor(dialect)
        if read is None and bind is None:
            return None

        def read_key(written: Any) -> Any:
            if written is None:
                return None
            try:
                key = written if read is None else read(written)
                sought = key if bind is None else bind(key)
            except Exception:  # noqa: BLE001 - a type may be the host's
                return WrittenKey(written)
            return key if sought == written else WrittenKey(written, key)

        return read_key


async def checked_keys(
    connection: AsyncConnection, leased: LeasedTable, keys: Iterable[Any], *, owner: str
) -> list[Any]:
    """Return the key for each `key_as_read`; those that do not find their rows, which are left
    alone from now on, as a `WrittenKey`. Joins the caller's transaction.
    """
    checked = []
    for key in keys:
        # SQLite has keys that are null, where the table allows it; nothing equals them.
        one = WrittenKey(None) if key is None else key
        if isinstance(one, WrittenKey):
            # The same value may be written in two ways (a collation, a number as text); the
            # database knows.
            if one.key is not _UNREAD and await _finds(connection, leased, one):
                one = one.key
            else:
                _leave_alone(leased, one.written, owner=owner)
        checked.append(one)
    return checked


async def _finds(connection: AsyncConnection, leased: LeasedTable, one: WrittenKey) -> bool:
    written = bindparam("rowlock_written_key", one.written, type_=NullType())
    is_it = and_(leased.key == one.key, written_key(leased) == written)
    return await connection.scalar(select(leased.key.is_not(None)).where(is_it)) is not None


def _leave_alone(leased: LeasedTable, written: object, *, owner: str) -> None:
    spoilt = leased.spoilt_keys
    if written in spoilt or len(spoilt) >= SPOILT_KEYS_MAX:
        return
    spoilt.add(written)
    text = "%(pipeline)s: skipping a row of %(model)s: its key %(key)s cannot be read back"
    logger.error(text, {"pipeline": owner, "model": leased.name, "key": f"{written!r:.100}"})
    if len(spoilt) == SPOILT_KEYS_MAX:
        text = "%(pipeline)s: skipping %(rows)d rows by now; further ones are not logged"
        logger.error(text, {"pipeline": owner, "rows": SPOILT_KEYS_MAX})


def key_as_read(leased: LeasedTable) -> ColumnElement[Any]:
    """Return the key column, of which no value fails the statement; for `checked_keys`."""
    return type_coerce(leased.key, _KeyAsRead(leased.key.type))


def written_key(leased: LeasedTable) -> ColumnElement[Any]:
    return type_coerce(leased.key, NullType())


def is_spoilt(leased: LeasedTable) -> ColumnElement[bool]:
    """The row has one of the keys in `spoilt_parameters`."""
    return written_key(leased).in_(_spoilt())


def is_not_spoilt(leased: LeasedTable) -> ColumnElement[bool]:
    """The row has a key, and none of those in `spoilt_parameters`."""
    return and_(leased.key.is_not(None), written_key(leased).not_in(_spoilt()))


def _spoilt() -> Any:
    return bindparam("rowlock_spoilt_keys", expanding=True, type_=NullType())


def spoilt_parameters(written: Iterable[Any]) -> dict[str, Any]:
    return {"rowlock_spoilt_keys": [key for key in written if key is not None]}


def check_keys(leased: LeasedTable, keys: Iterable[Any]) -> None:
    """Refuse, by `ModelError`, keys that are unequal to what is read again."""
    for class_ in set(map(type, keys)):
        # There is one of each member of an enumeration.
        equality: Any = class_.__eq__
        if equality is object.__eq__ and not issubclass(class_, Enum):
            raise ModelError(
                f"{leased.name}.{leased.key_name} is read as objects of {class_.__name__}, and two"
                " that are read of one row are not equal: give that class __eq__ and __hash__, or"
                " read the key as a plain value",
                model=leased.name,
                column=leased.key_name,
            )
