"""Folds on SQLite: a row's mark is all that stands in it, as the database writes it out.

Keys are looked up as one JSON text, so that their number is no part of the statement; rows are
written one by one within the process.

Source: SQLite, "Built-In Scalar SQL Functions" (``quote``), "JSON Functions" (``json_each``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import reduce
from typing import Any, cast

from sqlalchemy import (
    Column,
    ColumnElement,
    CursorResult,
    Dialect,
    Table,
    Text,
    and_,
    bindparam,
    func,
    select,
    type_coerce,
    update,
)
from sqlalchemy import column as named_column
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.database.bulk_dialect import kept_statement
from rowlock.streams.dialects.fold_dialect import FoldDialect, KeyedTable


class SqliteFolds(FoldDialect):
    """One writer, to whom nothing is hidden."""

    async def read(
        self, connection: AsyncConnection, of: KeyedTable, keys: Sequence[tuple[Any, ...]]
    ) -> Sequence[Any]:
        """Join the table with the values of a JSON array."""
        found = kept_statement(of.table, (self, *of.names), lambda: _select(of))
        given = {"keys": _json(keys, of.keys, connection.dialect)}
        return (await connection.execute(found, given)).all()

    async def insert(
        self,
        connection: AsyncConnection,
        of: KeyedTable,
        *,
        names: Sequence[str],
        rows: Sequence[Sequence[Any]],
    ) -> int:
        """Insert each, unless it is there."""
        statement = insert(of.table).on_conflict_do_nothing(index_elements=[*of.keys])
        statement = statement.execution_options(preserve_rowcount=True)
        values = [dict(zip(names, row, strict=True)) for row in rows]
        return await _count(connection, statement, values)

    async def update(
        self,
        connection: AsyncConnection,
        of: KeyedTable,
        *,
        names: Sequence[str],
        rows: Sequence[Sequence[Any]],
        marked: bool,
    ) -> int:
        """Update each, if it is there under its mark."""
        key = (self, "update", marked, *names)
        statement = kept_statement(of.table, key, lambda: _update(of, names, marked=marked))
        parameters = [{_slot(n): value for n, value in enumerate(row)} for row in rows]
        return await _count(connection, statement, parameters)


def _select(of: KeyedTable) -> Any:
    asked = func.json_each(bindparam("keys", type_=Text())).table_valued(named_column("value"))
    is_asked = [
        key == type_coerce(func.json_extract(asked.c.value, f"$[{n}]"), key.type)
        for n, key in enumerate(of.keys)
    ]
    return select(*of.columns, _mark(of.table)).join_from(asked, of.table, and_(*is_asked))


def _update(of: KeyedTable, names: Sequence[str], *, marked: bool) -> Any:
    is_it: list[ColumnElement[bool]] = [
        key == bindparam(_slot(n), type_=key.type) for n, key in enumerate(of.keys)
    ]
    if marked:
        is_it.append(_mark(of.table) == bindparam(_slot(len(of.keys)), type_=Text()))
    first = len(of.keys) + marked
    columns = [of.table.c[name] for name in names]
    values: Any = {one: bindparam(_slot(n), type_=one.type) for n, one in enumerate(columns, first)}
    return update(of.table).values(values).where(*is_it)


def _slot(number: int) -> str:
    return f"folded_{number}"


def _mark(table: Table) -> ColumnElement[Any]:
    parts: list[ColumnElement[Any]] = [func.quote(one, type_=Text()) for one in table.columns]
    return reduce(lambda one, other: one.concat(",").concat(other), parts)


def _json(keys: Sequence[tuple[Any, ...]], columns: Sequence[Column[Any]], dialect: Dialect) -> str:
    """Return keys as the database has them."""
    bound = [one.type.dialect_impl(dialect).bind_processor(dialect) for one in columns]
    stored = [
        [value if bind is None else bind(value) for bind, value in zip(bound, key, strict=True)]
        for key in keys
    ]
    return json.dumps(stored)


async def _count(connection: AsyncConnection, statement: Any, parameters: Any) -> int:
    done = await connection.execute(statement, parameters)
    return cast("CursorResult[Any]", done).rowcount
