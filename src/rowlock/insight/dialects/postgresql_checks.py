"""Checks on PostgreSQL: the catalogue, plans as if all tables were large, and operations that let
reads and writes go on.

Source: PostgreSQL, "pg_index", "pg_class", "Planner Method Configuration" and "REINDEX".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, Table, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.checking.seen import IndexSeen, StorageSeen
from rowlock.insight.dialects.check_dialect import CheckDialect
from rowlock.leases.indexes.plans import Query, plan_of

_INDEXES = text(
    "SELECT i.relname, pg_get_indexdef(x.indexrelid), x.indisvalid,"
    " EXISTS (SELECT 1 FROM pg_constraint k WHERE k.conindid = x.indexrelid),"
    " EXISTS (SELECT 1 FROM pg_stat_progress_create_index p WHERE p.index_relid = x.indexrelid)"
    " FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid"
    " WHERE x.indrelid = to_regclass(:name) AND NOT x.indisprimary ORDER BY i.relname LIMIT 200"
)
_STORAGE = text(
    "SELECT c.reltuples, (SELECT option_value FROM pg_options_to_table(c.reloptions)"
    " WHERE option_name = 'fillfactor') FROM pg_class c WHERE c.oid = to_regclass(:name)"
)
_AS_IF_LARGE = text(
    "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true),"
    " set_config('enable_bitmapscan', 'off', true)"
)
_FULL: Final = 100
"""How far pages are filled if nobody says otherwise, in percent."""


class PostgresqlChecks(CheckDialect):
    """The catalogue tells all, and the planner is told what it may not do."""

    async def indexes(self, connection: AsyncConnection, table: Table) -> tuple[IndexSeen, ...]:
        """Look into the catalogue."""
        rows = (await connection.execute(_INDEXES, _named(connection, table))).all()
        return tuple(
            IndexSeen(
                str(row[0]),
                str(row[1]),
                str(row[1]).partition(" USING ")[2],
                is_valid=bool(row[2]),
                is_constraint=bool(row[3]),
                is_being_built=bool(row[4]),
            )
            for row in rows
        )

    async def storage(self, connection: AsyncConnection, table: Table) -> StorageSeen:
        """Look into the catalogue; the last ANALYZE has counted."""
        row = (await connection.execute(_STORAGE, _named(connection, table))).first()
        if row is None:
            return StorageSeen(None, None)
        return StorageSeen(
            _FULL if row[1] is None else int(row[1]), int(row[0]) if row[0] >= 0 else None
        )

    async def plan(self, connection: AsyncConnection, query: Query) -> tuple[str, ...]:
        """Have no plan read the whole table or sort it, if there is another one."""
        await connection.execute(_AS_IF_LARGE)
        rows = await plan_of(connection, query, prefix="EXPLAIN (COSTS OFF) ")
        return tuple(str(row[0]) for row in rows.all())

    def reads_whole_table(self, lines: Sequence[str]) -> bool:
        """Look for nodes that do so, though they were switched off."""
        nodes = [line.strip().removeprefix("->").strip() for line in lines]
        return any(node == "Sort" or node.startswith("Seq Scan") for node in nodes)

    def serves(self, connection: Connection, table: Table, *, query: str, index: str) -> bool:
        """Have the plan made without reading the whole table, and without sorting."""
        with connection.begin_nested() as savepoint:
            connection.execute(_AS_IF_LARGE)
            rows = connection.exec_driver_sql(f"EXPLAIN (COSTS OFF) {query}").all()
            savepoint.rollback()  # with the settings
        return not self.reads_whole_table([str(row[0]) for row in rows])

    def alter_column(
        self, table: Table, column: str, options: Mapping[str, str], *, types: tuple[str, str]
    ) -> tuple[str, ...]:
        """Alter it in place; values of another type are cast, and times without a zone were UTC."""
        quote = _PREPARER.quote
        using = ""
        if any(types):
            are_times = all("TIMESTAMP" in type_ for type_ in types)
            cast = " AT TIME ZONE 'UTC'" if are_times else f"::{types[1]}"
            using = f", postgresql_using={quote(column) + cast!r}"
        schema = "" if table.schema is None else f", schema={table.schema!r}"
        told = "".join(f", {name}={value}" for name, value in options.items())
        return (f"op.alter_column({table.name!r}, {column!r}{told}{using}{schema})",)

    def repaired(self, table: Table, index: str) -> str:
        """Reindex it."""
        schema = "" if table.schema is None else f"{_PREPARER.quote(table.schema)}."
        return f"REINDEX INDEX CONCURRENTLY {schema}{_PREPARER.quote(index)}"


_PREPARER: Final = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]


def _named(connection: AsyncConnection, table: Table) -> dict[str, str]:
    return {"name": connection.dialect.identifier_preparer.format_table(table)}
