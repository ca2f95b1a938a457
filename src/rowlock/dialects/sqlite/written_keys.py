"""Keys as SQLite gives them: which row can be found by its key, and which are left alone because
they cannot.

The one idea: a row whose key is no value of its column, or is written in a shape in which nobody
looks for it, can be neither leased nor written. It is told once, remembered by what is written
there, and no claim reads it again; all others go on.

Not here: the other columns of a claim, where anything else may be read instead (``leases.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Dialect, Select, Text, and_, bindparam, select, type_coerce
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.logs import get_logger
from rowlock.rows.leased_table import LeasedTable

SPOILT_KEYS_MAX = 500
"""Most rows of a table that a pipeline leaves alone because of their keys, in rows. Further ones
take places of each claim.
"""

SPOILT: Any = object()
"""Stands for a key that does not find its row."""

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WrittenKeys:
    """Reads keys one by one.

    Attributes:
        leased: the table.
        read: what the key's type makes of what is written; None if it takes it as it is.
        write: the other way round.
    """

    leased: LeasedTable
    read: Callable[[Any], Any] | None
    write: Callable[[Any], Any] | None

    @classmethod
    def of(cls, leased: LeasedTable, dialect: Dialect) -> WrittenKeys:
        """Return the reader for the keys of a table."""
        type_ = leased.key.type.dialect_impl(dialect)
        return cls(leased, type_.result_processor(dialect, None), type_.bind_processor(dialect))

    async def keys_of(self, connection: AsyncConnection, written: Sequence[Any]) -> list[Any]:
        """Return a key for each value that is `written`, or `SPOILT`; joins the caller's
        transaction.
        """
        keys = []
        for value in written:
            key, sought = self._read(value)
            # The same value may be written in two ways (a collation, a number as text); the
            # database knows.
            if sought != value and not await self._finds(connection, key, value):
                key = SPOILT
            keys.append(key)
        return keys

    def _read(self, written: Any) -> tuple[Any, Any]:
        """Return the key, and what a statement looks for that is given the key."""
        try:
            key = written if self.read is None else self.read(written)
            sought = key if self.write is None else self.write(key)
        except Exception:  # noqa: BLE001 - a type may be the host's
            return SPOILT, written
        # SQLite has keys that are null, where the table allows it; nothing equals them.
        return (SPOILT if written is None else key), sought

    async def _finds(self, connection: AsyncConnection, key: object, written: object) -> bool:
        finding = self.leased.prepared(_finding, lambda: _finding(self.leased))
        parameters = {"rowlock_key": key, "rowlock_written_key": written}
        return await connection.scalar(finding, parameters) is not None

    def leave_alone(self, written: object, *, owner: str) -> None:
        """Keep a row out of all further claims, and say so once."""
        spoilt = self.leased.spoilt_keys
        if written in spoilt or len(spoilt) >= SPOILT_KEYS_MAX:
            return
        spoilt.add(written)
        extra = {"pipeline": owner}
        shown = (owner, self.leased.name, written)
        logger.error(
            "%s: skipping a row of %s: its key %.100r cannot be read back", *shown, extra=extra
        )
        if len(spoilt) == SPOILT_KEYS_MAX:
            logger.error(
                "%s: skipping %d rows; no more of them are told",
                owner,
                SPOILT_KEYS_MAX,
                extra=extra,
            )


def _finding(leased: LeasedTable) -> Select[Any]:
    key = bindparam("rowlock_key", type_=leased.key.type)
    return select(leased.key.is_not(None)).where(
        leased.key == key, written_key(leased) == bindparam("rowlock_written_key", type_=Text)
    )


def written_key(leased: LeasedTable) -> ColumnElement[Any]:
    """Return the key column, read and compared as it is written."""
    return type_coerce(leased.key, Text)


def is_not_spoilt(leased: LeasedTable) -> ColumnElement[bool]:
    """Return the condition that a row was not left alone before."""
    spoilt = bindparam("rowlock_spoilt_keys", expanding=True, type_=Text)
    return and_(leased.key.is_not(None), written_key(leased).not_in(spoilt))


def spoilt_parameters(leased: LeasedTable) -> dict[str, Any]:
    """Return the parameters of `is_not_spoilt`."""
    return {"rowlock_spoilt_keys": [key for key in leased.spoilt_keys if key is not None]}
