"""Rows on SQLite: its clock, its types, its indexes, and many rows at once.

There is no time type: times are text in the shape in which SQLAlchemy writes them (``YYYY-MM-DD
HH:MM:SS.ffffff``), in UTC, so they compare as text; the clock has milliseconds.

Source: SQLite, "Date And Time Functions", "UPSERT" and "ALTER TABLE".
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from functools import cache
from types import NoneType
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Date,
    DateTime,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Table,
    Text,
    Uuid,
    bindparam,
    cast,
    func,
    make_url,
    select,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.types import TypeEngine

from rowlock.dialects.contract import RowDialect, TimeSql
from rowlock.rows.leased_table import innermost, is_ours

# ---------------------------------------------------------------- column kinds


# Of no engine: it resolves variants, for which the database's name is enough.
_DIALECT = make_url("sqlite+aiosqlite://").get_dialect()()
_PLAIN = (Boolean, Date, DateTime, Float, Integer, Numeric, String, Uuid)


def is_read_alike(type_: TypeEngine[Any]) -> bool:
    """Whether a value of the type is the same, in Python, whenever it is read."""
    return isinstance(resolved_type(type_), _PLAIN) and is_ours(type_, _DIALECT)


_SCALARS = frozenset({NoneType, bool, float, int, str})
_WHOLE_MAX = 2**63  # whole numbers below this are such numbers in SQLite, too


def as_json(types: Sequence[TypeEngine[Any]], columns: Sequence[Sequence[Any]]) -> str | None:
    """Return the rows of `columns` as one text, each value as a driver is given it; None if a value
    would be another one then: bytes, a text with a NUL, a whole number of more than 64 bits.
    """
    bound = []
    for type_, given in zip(types, columns, strict=True):
        bind = _binding(type_)
        values = given if bind is None else list(map(bind, given))
        kinds = set(map(type, values))
        is_beyond = int in kinds and any(
            isinstance(value, int) and not -_WHOLE_MAX <= value < _WHOLE_MAX for value in values
        )
        if is_beyond or not kinds <= _SCALARS:
            return None
        bound.append(values)
    try:
        # Half a letter stays what it is, and is refused by the driver as it would be by itself.
        written = json.dumps(list(zip(*bound, strict=True)), ensure_ascii=False, allow_nan=False)
    except ValueError:
        return None
    return None if "\\u0000" in written else written


@cache
def _binding(type_: TypeEngine[Any]) -> Callable[[Any], Any] | None:
    return type_.dialect_impl(_DIALECT).bind_processor(_DIALECT)


def resolved_type(type_: TypeEngine[Any]) -> TypeEngine[Any]:
    return innermost(type_, _DIALECT)


# ---------------------------------------------------------------- clock and indexes


_WRITTEN = "'%Y-%m-%d %H:%M:%f000'"
# SQLite takes a number for a day, and carries the 30th of February; Python does not. Times in the
# shape that is written here are compared once; claims ask for many.
_IS_NO_TIME = (
    "({0} IS NOT NULL AND datetime({0}) IS NOT substr({0}, 1, 19) AND (datetime({0}) IS NULL OR"
    " date(substr({0}, 1, 16)) IS NOT substr({0}, 1, 10)))"
)
_TIMES = TimeSql(
    now=f"strftime({_WRITTEN}, 'now')",
    instant=f"strftime({_WRITTEN}, 'now')",
    # A column that is added to an existing table has a constant for its default.
    due_at_once="'1970-01-01 00:00:00.000000'",
    time_after=f"strftime({_WRITTEN}, 'now', printf('%+.3f seconds', {{0}}))",
    epoch_seconds="CAST(strftime('%s', 'now') AS INTEGER)",
    # In one shape: other writers may have used another one for the same moment.
    is_same_time=f"(strftime({_WRITTEN}, {{0}}) IS strftime({_WRITTEN}, {{1}}))",
    readable_time=f"strftime({_WRITTEN}, {{0}})",
    is_no_time=_IS_NO_TIME,
    is_beyond_time=_IS_NO_TIME,
)


class SqliteRows(RowDialect):
    keeps_zones = False
    alters_defaults = False
    concurrently = None
    rows_max = 1_000
    empty_object = "'{}'"

    def times(self, driver: str) -> TimeSql:
        return _TIMES

    def insert(self, table: Table, names: Sequence[str]) -> Any:
        statement = insert(table).values({name: bindparam(f"bulk_{name}") for name in names})
        return statement.execution_options(preserve_rowcount=True)

    def insert_parameters(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
        slots = [f"bulk_{name}" for name in names]
        return [dict(zip(slots, row, strict=True)) for row in rows]

    def insert_unless_there(self, into: Any, columns: Sequence[Any], where: Any = None) -> Any:
        new = insert(into).on_conflict_do_nothing(index_elements=[*columns], index_where=where)
        return new.execution_options(preserve_rowcount=True)

    def is_among(self, column: Column[Any], parameter: str) -> ColumnElement[bool]:
        given = func.json_each(bindparam(parameter, type_=Text())).table_valued("value")
        return column.in_(select(given.c.value))

    def among_parameter(self, values: Sequence[Any]) -> Any:
        return json.dumps(list(values))

    def text_bytes(self, text: ColumnElement[Any]) -> ColumnElement[int]:
        return func.coalesce(func.length(cast(text, LargeBinary)), 0, type_=Integer())

    def gather(self, columns: Sequence[ColumnElement[Any]]) -> list[ColumnElement[Any]] | None:
        """A JSON array of each column, which has whole numbers and texts as they are."""
        if not all(type(column.type) in _AS_THEY_ARE for column in columns):
            return None
        return [func.json_group_array(column, type_=Text()) for column in columns]

    def gathered(self, value: Any) -> list[Any]:
        values: list[Any] = json.loads(value)
        return values

    def cannot_gather(self, error: Exception) -> bool:
        """Whether a text would be longer than the database was built for, or a column of texts has
        bytes.
        """
        raised = getattr(error, "orig", None)
        return isinstance(raised, sqlite3.DataError) or "JSON cannot hold" in str(raised)


_AS_THEY_ARE = frozenset({Integer, BigInteger, SmallInteger, String, Text})
