"""Folds on PostgreSQL: a row's mark is the transaction that wrote it, which the server keeps with
every version of a row.

Rows are found and written by arrays, one for each column. Columns whose type fits no array are
written row by row, in one batch of the driver, once the rows are locked under their marks.

Source: PostgreSQL, "System Columns" (``xmin``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import (
    Column,
    CursorResult,
    Table,
    Text,
    and_,
    bindparam,
    column,
    insert,
    select,
    type_coerce,
    update,
)
from sqlalchemy import cast as cast_to
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import TableValuedAlias

from rowlock.database.bulk_dialect import BULK, kept_statement
from rowlock.dialects.postgresql.arrays import unnested
from rowlock.dialects.postgresql.column_kinds import fits_array
from rowlock.rows.assignments import Slot
from rowlock.streams.dialects.fold_dialect import FoldDialect, KeyedTable

_PREFIX = "fold_"


class PostgresqlFolds(FoldDialect):
    """Arrays of keys, marks and values."""

    async def read(
        self, connection: AsyncConnection, of: KeyedTable, keys: Sequence[tuple[Any, ...]]
    ) -> Sequence[Any]:
        """Join the table with arrays of keys."""
        found = kept_statement(of.table, (self, *of.names), lambda: _select(of))
        return (await connection.execute(found, _arrays(keys))).all()

    async def insert(
        self,
        connection: AsyncConnection,
        of: KeyedTable,
        *,
        names: Sequence[str],
        rows: Sequence[Sequence[Any]],
    ) -> int:
        """Insert all in one statement, unless a column needs what SQLAlchemy does row by row: then
        a key that is there is an error.
        """
        table = of.table
        if not (_fit(table, names) and _has_no_default(table, besides=names)):
            values = [dict(zip(names, row, strict=True)) for row in rows]
            await connection.execute(insert(table), values)
            return len(rows)
        bulk = BULK.of(connection)
        statement = bulk.insert(table, names).on_conflict_do_nothing(index_elements=[*of.keys])
        return await _count(connection, statement, bulk.insert_parameters(names, rows))

    async def update(
        self,
        connection: AsyncConnection,
        of: KeyedTable,
        *,
        names: Sequence[str],
        rows: Sequence[Sequence[Any]],
        marked: bool,
    ) -> int:
        """Update all in one statement, or lock them and then update each."""
        columns = [of.table.c[name] for name in names]
        if _fit(of.table, names):
            key = (self, "update", marked, *names)
            statement = kept_statement(of.table, key, lambda: _update(of, columns, marked=marked))
            return await _count(connection, statement, _arrays(rows))
        count = await _lock(connection, of, rows, marked=marked)
        if count == len(rows):
            await _update_each(connection, of, columns, rows=rows, marked=marked)
        return count


def _select(of: KeyedTable) -> Any:
    given = _given(_slots(of, []))
    is_asked = _is_same(of, given, marked=False)
    return select(*of.columns, _mark(of.table)).join_from(of.table, given, is_asked)


def _update(of: KeyedTable, columns: Sequence[Column[Any]], *, marked: bool) -> Any:
    given = _given(_slots(of, columns, marked=marked))
    first = len(of.keys) + marked
    values: Any = {one: given.c[_slot(n)] for n, one in enumerate(columns, first)}
    return update(of.table).values(values).where(_is_same(of, given, marked=marked))


async def _lock(
    connection: AsyncConnection, of: KeyedTable, rows: Sequence[Sequence[Any]], *, marked: bool
) -> int:
    """Lock the rows that are there under their marks; return how many they are."""
    slots = _slots(of, [], marked=marked)
    given = _given(slots)
    is_it = _is_same(of, given, marked=marked)
    locked = (
        select(of.keys[0])
        .join_from(of.table, given, is_it)
        .with_for_update(of=of.table, key_share=True)
    )
    heads = [row[: len(slots)] for row in rows]
    return len((await connection.execute(locked, _arrays(heads))).all())


async def _update_each(
    connection: AsyncConnection,
    of: KeyedTable,
    columns: Sequence[Column[Any]],
    *,
    rows: Sequence[Sequence[Any]],
    marked: bool,
) -> None:
    first = len(of.keys) + marked
    values: Any = {one: bindparam(_slot(n), type_=one.type) for n, one in enumerate(columns, first)}
    is_it = [key == bindparam(_slot(n), type_=key.type) for n, key in enumerate(of.keys)]
    used = [*range(len(of.keys)), *range(first, first + len(columns))]
    parameters = [{_slot(n): row[n] for n in used} for row in rows]
    await connection.execute(update(of.table).values(values).where(*is_it), parameters)


def _slot(number: int) -> str:
    return f"folded_{number}"


def _slots(of: KeyedTable, columns: Sequence[Column[Any]], *, marked: bool = False) -> list[Slot]:
    """Return a slot for each value of a row that is written: keys, mark, and new values."""
    types = [key.type for key in of.keys]
    types += [Text()] if marked else []
    types += [one.type for one in columns]
    return [(_slot(number), type_) for number, type_ in enumerate(types)]


def _given(slots: Sequence[Slot]) -> TableValuedAlias:
    return unnested(slots, name="folded", prefix=_PREFIX)


def _arrays(rows: Sequence[Sequence[Any]]) -> dict[str, list[Any]]:
    columns = zip(*rows, strict=True)
    return {f"{_PREFIX}{_slot(n)}": list(values) for n, values in enumerate(columns)}


def _is_same(of: KeyedTable, given: TableValuedAlias, *, marked: bool) -> Any:
    is_it = [key == given.c[_slot(n)] for n, key in enumerate(of.keys)]
    if marked:
        is_it.append(_mark(of.table) == given.c[_slot(len(of.keys))])
    return and_(*is_it)


def _mark(table: Table) -> Any:
    written_by: Any = column("xmin")
    written_by.table = table
    return type_coerce(cast_to(written_by, Text), Text)


def _fit(table: Table, names: Sequence[str]) -> bool:
    return all(fits_array(table.c[name].type) for name in names)


def _has_no_default(table: Table, *, besides: Sequence[str]) -> bool:
    given = frozenset(besides)
    return all(one.default is None for one in table.columns if one.key not in given)


async def _count(connection: AsyncConnection, statement: Any, parameters: Any) -> int:
    done = await connection.execute(statement, parameters)
    return cast("CursorResult[Any]", done).rowcount
