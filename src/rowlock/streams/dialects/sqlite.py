"""Streams and folds on SQLite: there is one writer, so what is visible was added in the order of
its positions, and nothing comes below it any more.

``AUTOINCREMENT`` is what makes a key a position: without it the key of the last row is given again
once that row is deleted.

The mark of a fold's row is all that stands in it, as the database writes it out. Keys are looked up
as one JSON text, so that their number is no part of the statement; rows are written one by one
within the process.

Source: SQLite, "SQLite Autoincrement" and "The Schema Table"; "Built-In Scalar SQL Functions"
(``quote``) and "JSON Functions" (``json_each``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import reduce
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Dialect,
    FromClause,
    Table,
    TableClause,
    Text,
    and_,
    bindparam,
    column,
    func,
    select,
    table,
    type_coerce,
    update,
)
from sqlalchemy import column as named_column
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import NullType

from rowlock.errors import ModelError
from rowlock.spi import ROWS, kept_statement
from rowlock.streams.dialects.stream_dialect import (
    LOGGED,
    NO_COLUMN,
    REFUSES,
    FoldDialect,
    KeyedTable,
    Rows,
    StreamDialect,
    slot,
    write_rows,
)
from rowlock.streams.inputs.candidates import OpenWriter

_NO_SQL = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]", re.DOTALL
)
"""Comments, texts and quoted names, in which a word is no keyword."""
_KEYWORD = re.compile(r"\bAUTOINCREMENT\b", re.IGNORECASE)


class SqliteStreams(StreamDialect):
    async def check_position(self, connection: AsyncConnection, column: Column[Any]) -> str:
        """Read how the table was created; the counter has the table's name."""
        listed = _listed("sqlite_master", column.table)
        found = select(listed.c.name, listed.c.sql).where(
            listed.c.type == "table", func.lower(listed.c.name) == column.table.name.lower()
        )
        created = (await connection.execute(found)).first()
        if created is None:
            raise ModelError(
                f"there is no table {column.table.name} in the database: a stream is a table",
                model=column.table.name,
            )
        # Only the one column that is the whole key can have it.
        if not (
            list(column.table.primary_key) == [column]
            and _KEYWORD.search(_NO_SQL.sub(" ", created.sql))
        ):
            raise ModelError(
                f"{column.table.name}.{column.name} was not created with AUTOINCREMENT, so"
                " positions of deleted rows would be given again: create the table with"
                " sqlite_autoincrement=True in __table_args__, or copy it into one that was",
                model=column.table.name,
                column=column.name,
            )
        return str(created.name)

    async def problem_with_number(self, connection: AsyncConnection, column: Column[Any]) -> str:
        """Ask for the declared type, which is a whole number's if that has INT in it."""
        listed = func.pragma_table_info(column.table.name, getattr(column.table, "schema", None))
        info = listed.table_valued("name", "type")
        found = select(info.c.type).where(func.lower(info.c.name) == column.name.lower())
        kept = await connection.scalar(found)
        if kept is None:
            return NO_COLUMN
        return "" if "INT" in kept.upper() else f"it is {kept or 'of no type'} in the database"

    async def last_assigned(
        self, connection: AsyncConnection, column: Column[Any], counter: str
    ) -> int:
        """Read the counter; rows that are there count, too, as they do when the next is given."""
        counters = _listed("sqlite_sequence", column.table)
        counted = await connection.scalar(select(counters.c.seq).where(counters.c.name == counter))
        newest = await connection.scalar(select(func.max(column)))
        return max(counted or 0, newest or 0)

    async def open_writers(
        self, connection: AsyncConnection, table: Table
    ) -> tuple[OpenWriter, ...]:
        """Return none: the one writer that there may be adds its rows above all visible ones."""
        return ()

    def event_guard(
        self, table: str, columns: Sequence[str], *, name: str, deletes: bool
    ) -> list[str]:
        kinds = {"update": f"UPDATE OF {', '.join(columns)}", "delete": "DELETE"}
        return [
            f'CREATE TRIGGER "{name}_{kind}" BEFORE {when} ON {table}'
            f" BEGIN SELECT RAISE(ABORT, '{REFUSES}'); END"
            for kind, when in kinds.items()
            if deletes or kind == "update"
        ]

    def no_event_guard(self, table: str, *, name: str) -> list[str]:
        return [f'DROP TRIGGER IF EXISTS "{name}_{kind}"' for kind in ("update", "delete")]

    async def append(self, connection: AsyncConnection, log: Table, rows: Rows) -> tuple[int, int]:
        """Insert row by row; there is no other writer, so the positions follow each other."""
        statement = ROWS.of(connection).insert(log, LOGGED)
        await write_rows(connection, statement, names=LOGGED, rows=rows, text=LOGGED[-1])
        last = int(await connection.scalar(select(func.max(log.c.position))) or 0)
        return last - len(rows) + 1, last


def _listed(name: str, beside: FromClause) -> TableClause:
    """Return a table of SQLite's own, of the file that has the table `beside`."""
    columns = [column(one, NullType()) for one in ("name", "seq", "sql", "type")]
    return table(name, *columns, schema=getattr(beside, "schema", None))


class SqliteFolds(FoldDialect):
    async def read(
        self, connection: AsyncConnection, of: KeyedTable, keys: Sequence[tuple[Any, ...]]
    ) -> Sequence[Any]:
        found = kept_statement(of.table, (self, *of.names), lambda: _select(of))
        given = {"keys": _json(keys, of.keys, connection.dialect)}
        return (await connection.execute(found, given)).all()

    async def insert(
        self, connection: AsyncConnection, of: KeyedTable, *, names: Sequence[str], rows: Rows
    ) -> int:
        statement = ROWS.of(connection).insert_unless_there(of.table, of.keys)
        values = [dict(zip(names, row, strict=True)) for row in rows]
        return (await connection.execute(statement, values)).rowcount

    async def update(
        self, connection: AsyncConnection, of: KeyedTable, *, names: Sequence[str], rows: Rows
    ) -> int:
        key = (self, "update", of.is_marked, *names)
        statement = kept_statement(of.table, key, lambda: _update(of, names))
        parameters = [{slot(n): value for n, value in enumerate(row)} for row in rows]
        return (await connection.execute(statement, parameters)).rowcount


def _select(of: KeyedTable) -> Any:
    asked = func.json_each(bindparam("keys", type_=Text())).table_valued(named_column("value"))
    is_asked = [
        key == type_coerce(func.json_extract(asked.c.value, f"$[{n}]"), key.type)
        for n, key in enumerate(of.keys)
    ]
    return select(*of.columns, _mark(of.table)).join_from(asked, of.table, and_(*is_asked))


def _update(of: KeyedTable, names: Sequence[str]) -> Any:
    is_it: list[ColumnElement[bool]] = [
        key == bindparam(slot(n), type_=key.type) for n, key in enumerate(of.keys)
    ]
    if of.is_marked:
        is_it.append(_mark(of.table) == bindparam(slot(len(of.keys)), type_=Text()))
    first = len(of.keys) + of.is_marked
    columns = [of.table.c[name] for name in names]
    values: Any = {one: bindparam(slot(n), type_=one.type) for n, one in enumerate(columns, first)}
    return update(of.table).values(values).where(*is_it)


def _mark(table: Table) -> ColumnElement[Any]:
    parts: list[ColumnElement[Any]] = [func.quote(one, type_=Text()) for one in table.columns]
    return reduce(lambda one, other: one.concat(",").concat(other), parts)


def _json(keys: Sequence[tuple[Any, ...]], columns: Sequence[Column[Any]], dialect: Dialect) -> str:
    bound = [one.type.dialect_impl(dialect).bind_processor(dialect) for one in columns]
    stored = [
        [value if bind is None else bind(value) for bind, value in zip(bound, key, strict=True)]
        for key in keys
    ]
    return json.dumps(stored)
