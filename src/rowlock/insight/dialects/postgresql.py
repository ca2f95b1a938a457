"""Questions on PostgreSQL.

A row that a transaction has locked or written, and not committed, carries the number of that
transaction as its ``xmax``. Where several share a lock it is the number of a group, which belongs
to no backend: then nothing is found.

A table that a migration has to itself is not even looked at: whoever asks for it waits. Its lock is
found beside it, in ``pg_locks``.

Source: PostgreSQL, "System Columns", "pg_locks", "pg_index" and "The Cumulative Statistics System"
(`pg_stat_activity`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import (
    Connection,
    DateTime,
    Integer,
    String,
    Table,
    column,
    extract,
    func,
    literal_column,
    select,
    table,
    text,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.checking.seen import IndexSeen, StorageSeen, TableLock
from rowlock.insight.dialects.insight_dialect import InsightDialect
from rowlock.insight.verdicts import TouchingTransaction
from rowlock.rows.leased_table import LeasedTable

_BEGIN = text(
    "SELECT set_config('transaction_read_only', 'on', true),"
    " set_config('statement_timeout', :timeout, true)"
)
_IDLE = "idle"
_LOCK = text(
    "SELECT l.pid, coalesce(a.state, ''),"
    " coalesce(extract(epoch FROM clock_timestamp() - a.state_change), 0), coalesce(a.query, '')"
    " FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a USING (pid)"
    " WHERE l.granted AND l.mode = 'AccessExclusiveLock' AND l.pid <> pg_backend_pid()"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND l.relation = to_regclass(:name) LIMIT 1"
)
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


class PostgresqlInsight(InsightDialect):
    """The server refuses writes, and ends what takes too long."""

    knows_transactions = True

    async def begin_reading(
        self, connection: AsyncConnection, *, statement_timeout: timedelta
    ) -> None:
        """Set both for this transaction."""
        milliseconds = max(1, round(statement_timeout.total_seconds() * 1000))
        await connection.execute(_BEGIN, {"timeout": str(milliseconds)})

    async def open_transaction(
        self, connection: AsyncConnection, leased: LeasedTable, key: Any
    ) -> TouchingTransaction | None:
        """Look for the backend whose transaction the row names."""
        activity = table(
            "pg_stat_activity",
            column("pid", Integer),
            column("state", String),
            column("backend_xid"),
            column("state_change", DateTime(timezone=True)),
            schema="pg_catalog",
        )
        seconds = extract("epoch", func.clock_timestamp() - activity.c.state_change)
        statement = (
            select(activity.c.pid, activity.c.state, seconds)
            .select_from(leased.table)
            .join(activity, activity.c.backend_xid == literal_column("xmax"))
            .where(leased.key == key)
        )
        row = (await connection.execute(statement)).first()
        if row is None:
            return None
        state = _IDLE if str(row[1]).startswith(_IDLE) else str(row[1])
        return TouchingTransaction(row[0], state, float(row[2] or 0.0))

    async def table_lock(self, connection: AsyncConnection, table: Table) -> TableLock | None:
        """Look among the locks that are held."""
        row = (await connection.execute(_LOCK, _named(connection, table))).first()
        return None if row is None else TableLock(row[0], str(row[1]), float(row[2]), str(row[3]))

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

    async def plan(self, connection: AsyncConnection, query: str) -> tuple[str, ...]:
        """Have no plan read the whole table or sort it, if there is another one."""
        await connection.execute(_AS_IF_LARGE)
        rows = await connection.exec_driver_sql(f"EXPLAIN (COSTS OFF) {query}")
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
