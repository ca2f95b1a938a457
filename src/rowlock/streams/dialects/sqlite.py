"""Streams on SQLite: there is one writer, so what is visible was added in the order of its
positions, and nothing comes below it any more.

``AUTOINCREMENT`` is what makes a key a position: without it the key of the last row is given again
once that row is deleted.

Source: SQLite, "SQLite Autoincrement" and "The Schema Table".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Column,
    FromClause,
    Table,
    TableClause,
    column,
    func,
    select,
    table,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import NullType

from rowlock.database.bulk_dialect import BULK
from rowlock.errors import ModelError
from rowlock.streams.dialects.stream_dialect import NO_COLUMN, REFUSES, StreamDialect
from rowlock.streams.inputs.candidates import OpenWriter
from rowlock.streams.sliced_writes import write_rows

_NO_SQL = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`[^`]*`|\[[^\]]*\]", re.DOTALL
)
"""Comments, texts and quoted names, in which a word is no keyword."""
_KEYWORD = re.compile(r"\bAUTOINCREMENT\b", re.IGNORECASE)


class SqliteStreams(StreamDialect):
    """One writer, and a counter for each table with ``AUTOINCREMENT``."""

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
        """Return none: the one writer that there may be adds its rows above all that are
        visible.
        """
        return ()

    def event_guard(
        self, table: str, columns: Sequence[str], *, name: str, deletes: bool
    ) -> list[str]:
        """Make a trigger for each kind of statement."""
        kinds = {"update": f"UPDATE OF {', '.join(columns)}", "delete": "DELETE"}
        return [
            f'CREATE TRIGGER "{name}_{kind}" BEFORE {when} ON {table}'
            f" BEGIN SELECT RAISE(ABORT, '{REFUSES}'); END"
            for kind, when in kinds.items()
            if deletes or kind == "update"
        ]

    def no_event_guard(self, table: str, *, name: str) -> list[str]:
        """Drop the triggers."""
        return [f'DROP TRIGGER IF EXISTS "{name}_{kind}"' for kind in ("update", "delete")]

    async def append(
        self,
        connection: AsyncConnection,
        position: Column[Any],
        *,
        names: Sequence[str],
        rows: Sequence[Sequence[Any]],
        text: str,
    ) -> tuple[int, int]:
        """Insert row by row; there is no other writer, so the positions follow each other."""
        statement = BULK.of(connection).insert(position.table, names)
        await write_rows(connection, statement, names=names, rows=rows, text=text)
        last = int(await connection.scalar(select(func.max(position))) or 0)
        return last - len(rows) + 1, last


def _listed(name: str, beside: FromClause) -> TableClause:
    """Return a table of SQLite's own, of the file that has the table `beside`."""
    columns = [column(one, NullType()) for one in ("name", "seq", "sql", "type")]
    return table(name, *columns, schema=getattr(beside, "schema", None))
