"""Rows on PostgreSQL: its clock, its types, its indexes, and many rows at once as array parameters.

``now()`` is the start of the transaction: an expiry computed from it can only be too early, which
is the safe side.

A type is judged as SQLAlchemy resolves it for this database: a statement that takes a variant for
the model's type is refused for every row. ``unnest`` makes rows of arrays, so that many are one
statement, one round trip, and one text that the driver prepares once.

Source: PostgreSQL, "Date/Time Functions and Operators", "CREATE INDEX" and "ALTER INDEX".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ARRAY,
    Boolean,
    Column,
    ColumnElement,
    Date,
    DateTime,
    Enum,
    Float,
    Integer,
    Numeric,
    String,
    Table,
    Text,
    Uuid,
    any_,
    bindparam,
    cast,
    column,
    func,
    make_url,
    select,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import TypeEngine

from rowlock.dialects.contract import RowDialect, TimeSql
from rowlock.execution import kept_statement
from rowlock.rows.assignments import Slot
from rowlock.rows.leased_table import innermost, is_ours

# ---------------------------------------------------------------- table names


def name_in_database(connection: AsyncConnection, table: Any) -> str:
    """Return the name of `table` in the schema where the connection's statements look for it."""
    sync, quote = connection.sync_connection, connection.dialect.identifier_preparer.quote
    assert sync is not None
    translated = sync.get_execution_options().get("schema_translate_map") or {}
    schema = translated.get(table.schema, table.schema)
    return quote(table.name) if schema is None else f"{quote(schema)}.{quote(table.name)}"


# ---------------------------------------------------------------- column kinds


# Of no engine: it resolves variants, for which its name is enough. It needs no driver.
_DIALECT = make_url("postgresql+asyncpg://").get_dialect()()
_PLAIN = (Boolean, Date, DateTime, Float, Integer, Numeric, String, Uuid)


def resolved_type(type_: TypeEngine[Any]) -> TypeEngine[Any]:
    return innermost(type_, _DIALECT)


def fits_array(type_: TypeEngine[Any]) -> bool:
    """Whether every driver knows arrays of the type."""
    there = resolved_type(type_)
    # A host's own type may say how it is bound, for each value or in SQL; no array does that.
    return isinstance(there, _PLAIN) and not isinstance(there, Enum) and is_ours(type_, _DIALECT)


def unbounded(type_: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type of an array's values: of texts, without their greatest length."""
    # An array is cast to its type, and an explicit cast to VARCHAR(5) cuts what is longer without a
    # word. What is no text here must stay what it is, or the server would have to compare it with a
    # text.
    there = type_.dialect_impl(_DIALECT)
    return String() if isinstance(there, String) and not isinstance(there, Enum) else type_


# ---------------------------------------------------------------- arrays


def unnested(slots: Sequence[Slot], *, name: str, prefix: str) -> TableValuedAlias:
    """Return lists, named by `prefix` and slot, as the rows of a table `name`."""
    arrays = [bindparam(f"{prefix}{slot}", type_=ARRAY(unbounded(type_))) for slot, type_ in slots]
    columns: list[Any] = [column(slot, type_) for slot, type_ in slots]
    return func.unnest(*arrays).table_valued(*columns).render_derived(name=name)


# ---------------------------------------------------------------- clock and indexes


_NO_MORE_TIME = "TIMESTAMP WITH TIME ZONE '10000-01-01 00:00:00+00'"
_IS_BEYOND = (
    f"{{0}} < TIMESTAMP WITH TIME ZONE '0001-01-01 00:00:00+00' OR {{0}} >= {_NO_MORE_TIME}"
)
_TIMES = TimeSql(
    now="now()",
    instant="clock_timestamp()",
    due_at_once="now()",
    time_after="(now() + make_interval(secs => {0}))",
    epoch_seconds="CAST(floor(extract(epoch FROM now())) AS bigint)",
    is_same_time="({0} IS NOT DISTINCT FROM {1})",
    readable_time="{0}",
    # The infinite ones are the first and the last of Python's for asyncpg.
    is_no_time=f"coalesce(({_IS_BEYOND}) AND isfinite({{0}}), false)",
    is_beyond_time=f"coalesce({{0}} >= {_NO_MORE_TIME}, false)",
)


_PREFIX = "bulk_"
_PROGRAM_LIMIT_EXCEEDED = "54000"


class PostgresqlRows(RowDialect):
    keeps_zones = True
    alters_defaults = True
    concurrently = {"postgresql_concurrently": True}  # noqa: RUF012 - read only
    rows_max = 5_000
    empty_object = "'{}'::json"

    def reads_utc(self, driver: str) -> bool:
        return driver == "asyncpg"

    def times(self, driver: str) -> TimeSql:
        if driver != "psycopg":
            return _TIMES
        # It raises for the infinite ones, too.
        return _TIMES._replace(is_no_time=f"coalesce({_IS_BEYOND}, false)")

    def type_of(self, column: Column[Any]) -> ColumnElement[str | None]:
        nothing = select(column).limit(0).scalar_subquery()
        return cast(func.pg_typeof(nothing), Text)

    def nulls_first(self, column: str) -> str:
        return f"{column} NULLS FIRST"

    def set_fillfactor(self, table: str, percent: int | None) -> str:
        setting = "RESET (fillfactor)" if percent is None else f"SET (fillfactor = {percent})"
        return f"ALTER TABLE {table} {setting}"

    def insert(self, table: Table, names: Sequence[str]) -> Any:
        return kept_statement(table, (self, *names), lambda: self._insert(table, names))

    def _insert(self, table: Table, names: Sequence[str]) -> Any:
        slots = [(name, table.c[name].type) for name in names]
        given = unnested(slots, name="bulk", prefix=_PREFIX)
        rows = select(*(given.c[name] for name in names))
        statement = insert(table).from_select(list(names), rows, include_defaults=False)
        # Otherwise SQLAlchemy asks for the number of an UPDATE and a DELETE only, and one driver
        # has forgotten it by then.
        return statement.execution_options(preserve_rowcount=True)

    def insert_parameters(self, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
        columns = zip(*rows, strict=True)
        return {_PREFIX + name: list(column) for name, column in zip(names, columns, strict=True)}

    def insert_unless_there(self, into: Any, columns: Sequence[Any], where: Any = None) -> Any:
        new = insert(into).on_conflict_do_nothing(index_elements=[*columns], index_where=where)
        return new.execution_options(preserve_rowcount=True)

    def is_among(self, column: Column[Any], parameter: str) -> ColumnElement[bool]:
        given = bindparam(parameter, type_=ARRAY(unbounded(column.type)))
        return column == any_(given)

    def among_parameter(self, values: Sequence[Any]) -> Any:
        return list(values)

    def text_bytes(self, text: ColumnElement[Any]) -> ColumnElement[int]:
        return func.coalesce(func.octet_length(text), 0, type_=Integer())

    def gather(self, columns: Sequence[ColumnElement[Any]]) -> list[ColumnElement[Any]] | None:
        if not all(fits_array(column.type) for column in columns):
            return None
        return [func.array_agg(column, type_=ARRAY(column.type)) for column in columns]

    def gathered(self, value: Any) -> list[Any]:
        return value or []  # the array of no rows is null

    def cannot_gather(self, error: Exception) -> bool:
        """Whether an array would have more than 1 GB."""
        raised = getattr(error, "orig", None)
        code = getattr(raised, "sqlstate", None) or getattr(raised, "pgcode", None)
        return str(code) == _PROGRAM_LIMIT_EXCEEDED
