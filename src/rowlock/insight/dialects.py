"""Questions and checks on each database.

On PostgreSQL a row that a transaction has locked or written, and not committed, carries the number
of that transaction as its ``xmax``. Where several share a lock it is the number of a group, whose
members the server tells. Both numbers stay in the row behind the end of the transaction and may be
given again, so who is named must have a lock on the table, too. A transaction that was prepared is
of no backend: its locks have no pid, and the lock of its own number leads from them to its name.
Checks plan as if all tables were large, and mend by operations that let reads and writes go on.

On SQLite a transaction that only reads delays no other, and the single writer leaves no trace in a
row; the schema is text, and columns are altered by copying the table.

Source: PostgreSQL, "System Columns", "The Cumulative Statistics System" (`pg_stat_activity`),
`pg_locks`, `pg_prepared_xacts`, "Transaction ID and Snapshot Information Functions"
(`pg_get_multixact_members`), "pg_index", "pg_class", "Planner Method Configuration" and "REINDEX";
SQLite, "The Schema Table", "EXPLAIN QUERY PLAN" and "The INDEXED BY Clause".
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Connection,
    String,
    Table,
    bindparam,
    cast,
    func,
    literal_column,
    select,
    text,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.dialects.contract import locks_of
from rowlock.insight.asking import ask_first
from rowlock.insight.insight_dialect import InsightDialect, StorageSeen
from rowlock.insight.verdicts import Refused, TableLock, TouchingTransaction
from rowlock.spi import LeasedTable, Query, plan_of

_STORAGE = text(
    "SELECT c.reltuples, (SELECT option_value FROM pg_options_to_table(c.reloptions)"
    " WHERE option_name = 'fillfactor') FROM pg_class c WHERE c.oid = to_regclass(:name)"
)
_AS_IF_LARGE = text(
    "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true),"
    " set_config('enable_bitmapscan', 'off', true)"
)
_FULL: Final = 100  # default fillfactor, in percent

LOCK_TIMEOUT: Final = timedelta(milliseconds=250)
"""How long a question waits for a table that another transaction has locked."""
LEFT_AFTER: Final = timedelta(minutes=1)
"""A transaction that was prepared so long ago was left behind: its coordinator is gone."""
LEFT_MAX: Final = 3  # most of these that are told of one table
_BEGIN = text(
    "SELECT set_config('transaction_read_only', 'on', true),"
    " set_config('statement_timeout', :timeout, true),"
    " set_config('lock_timeout', :lock_timeout, true),"
    " set_config('plan_cache_mode', 'force_custom_plan', true)"
)
"""The last: a statement that the driver keeps is planned for any values after five uses, and a page
that begins behind a place would then be read from the beginning.
"""
_BEGIN_READING = text("SELECT set_config('transaction_read_only', 'on', true)")
_READ_FROM_NOW_ON = text("SELECT set_config('default_transaction_read_only', 'on', false)")
_IDLE = "idle"
_SECONDS = "extract(epoch FROM clock_timestamp() - coalesce(a.state_change, a.xact_start))::float"
_IN_TABLE = (
    "EXISTS (SELECT 1 FROM pg_catalog.pg_locks l WHERE l.pid = a.pid AND l.locktype = 'relation'"
    " AND l.granted AND l.relation = to_regclass(:table))"
)
_OF_PREPARED = (
    "pg_catalog.pg_locks t ON t.pid IS NULL AND t.locktype = 'transactionid'"
    " AND t.virtualtransaction = l.virtualtransaction"
)
_HAS_ROWS = (
    f"EXISTS (SELECT 1 FROM pg_catalog.pg_locks l JOIN {_OF_PREPARED}"  # noqa: S608 - constants of ours
    " WHERE l.pid IS NULL AND t.transactionid = p.transaction AND l.locktype = 'relation'"
    " AND l.mode <> 'AccessShareLock' AND l.relation = to_regclass(:table))"
)
_PREPARED_S = "extract(epoch FROM clock_timestamp() - p.prepared)::float"
_BACKEND = f"SELECT a.pid, a.state, {_SECONDS}, '', '' FROM pg_catalog.pg_stat_activity a"  # noqa: S608 - constants of ours
_PREPARED = (
    f"SELECT NULL, NULL, {_PREPARED_S}, p.gid, p.owner::text"  # noqa: S608 - constants of ours
    " FROM pg_catalog.pg_prepared_xacts p"
)
_MEMBERS = (
    "(SELECT m.xid::text"
    " FROM pg_catalog.pg_get_multixact_members(CAST(CAST(:xmax AS text) AS xid)) m)"
)
_BY_NUMBER = text(
    f"{_BACKEND} WHERE a.backend_xid::text = :xmax AND {_IN_TABLE}"
    f" UNION ALL {_PREPARED} WHERE p.transaction::text = :xmax AND {_HAS_ROWS} LIMIT 1"
)
_IN_GROUP = text(
    f"{_BACKEND} WHERE a.backend_xid::text IN {_MEMBERS} AND {_IN_TABLE}"
    f" UNION ALL {_PREPARED} WHERE p.transaction::text IN {_MEMBERS} AND {_HAS_ROWS}"
    " ORDER BY 3 DESC LIMIT 1"
)
_ANY_PREPARED: ColumnElement[bool] = literal_column(
    "EXISTS (SELECT 1 FROM pg_catalog.pg_prepared_xacts p WHERE p.database = current_database())",
    Boolean,
)
_LEFT = text(
    f"{_PREPARED} WHERE p.database = current_database() AND {_PREPARED_S} >= :seconds"
    f" AND {_HAS_ROWS} ORDER BY 3 DESC LIMIT {LEFT_MAX}"
)
_TABLE_LOCK = text(
    "SELECT c.relname, l.granted, l.pid, a.state,"  # noqa: S608 - constants of ours
    f" coalesce({_SECONDS}, {_PREPARED_S}), coalesce(p.gid, ''), coalesce(p.owner::text, '')"
    " FROM pg_catalog.pg_locks l"
    " JOIN pg_catalog.pg_class c ON c.oid = l.relation"
    " LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid"
    f" LEFT JOIN {_OF_PREPARED} AND l.pid IS NULL"
    " LEFT JOIN pg_catalog.pg_prepared_xacts p ON p.transaction = t.transactionid"
    " WHERE l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock'"
    " AND (l.pid IS NOT NULL OR p.gid IS NOT NULL)"
    " AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())"
    " AND l.relation IN (SELECT to_regclass(name) FROM unnest(CAST(:tables AS text[])) name)"
    " ORDER BY l.granted DESC, 5 DESC LIMIT 1"
)


class PostgresqlInsight(InsightDialect):
    async def storage(self, connection: AsyncConnection, table: Table) -> StorageSeen:
        """Read the catalogue; its number of rows is that of the last ANALYZE."""
        row = (await connection.execute(_STORAGE, {"name": _name_of(connection, table)})).first()
        if row is None:
            return StorageSeen(None, None)
        return StorageSeen(
            _FULL if row[1] is None else int(row[1]), int(row[0]) if row[0] >= 0 else None
        )

    def plan(self, connection: Connection, query: Query) -> tuple[str, ...]:
        connection.execute(_AS_IF_LARGE)
        rows = plan_of(connection, query, prefix="EXPLAIN (COSTS OFF) ")
        return tuple(str(row[0]) for row in rows)

    async def begin_reading(
        self, connection: AsyncConnection, *, statement_timeout: timedelta
    ) -> None:
        timeouts = {"timeout": statement_timeout, "lock_timeout": LOCK_TIMEOUT}
        await connection.execute(
            _BEGIN,
            {
                name: str(max(1, round(value.total_seconds() * 1000)))
                for name, value in timeouts.items()
            },
        )

    async def open_transaction(
        self, connection: AsyncConnection, leased: LeasedTable, key: Any
    ) -> TouchingTransaction | None:
        """Look for the backend whose transaction the row names, alone or in a group."""
        xmax = await connection.scalar(
            select(cast(literal_column("xmax"), String))
            .select_from(leased.table)
            .where(leased.key == bindparam("key", key, type_=leased.key.type))
        )
        if xmax in (None, "0"):
            return None
        named = {"xmax": xmax, "table": _name_of(connection, leased.table)}
        row = (await connection.execute(_BY_NUMBER, named)).first()
        if row is None:
            # The number of a transaction that has ended is that of no group, or of an old one.
            found = await ask_first(connection, _IN_GROUP.bindparams(**named), apart=True)
            row = None if isinstance(found, Refused) else found
        return None if row is None else _transaction(row)

    async def table_lock(
        self, connection: AsyncConnection, tables: Sequence[Table]
    ) -> TableLock | None:
        names = [_name_of(connection, table) for table in tables]
        row = (await connection.execute(_TABLE_LOCK, {"tables": names})).first()
        return None if row is None else TableLock(row[0], _transaction(row[2:]), row[1])

    async def left_prepared(
        self, connection: AsyncConnection, table: Table
    ) -> tuple[TouchingTransaction, ...]:
        if not await connection.scalar(select(_ANY_PREPARED)):
            return ()
        named = {"seconds": LEFT_AFTER.total_seconds(), "table": _name_of(connection, table)}
        return tuple(_transaction(row) for row in (await connection.execute(_LEFT, named)).all())

    def is_any_prepared(self) -> ColumnElement[bool]:
        return _ANY_PREPARED

    async def try_hold_name(self, connection: AsyncConnection, name: str) -> bool:
        return await locks_of(connection).hold_name(connection, name, 0.0)

    def is_locked_out(self, raised: BaseException | None) -> bool:
        return False

    def begin_without_writing(self, connection: Connection) -> None:
        """Set it by a query: behind one, the server lets nobody take that back.

        And for this transaction alone, if it is one: behind a pooler such as pgbouncer the
        connection of the server belongs to another client after the COMMIT.
        """
        raw: Any = connection.connection.dbapi_connection
        connection.execute(_READ_FROM_NOW_ON if raw.autocommit else _BEGIN_READING)


def _name_of(connection: AsyncConnection, table: Table) -> str:
    return connection.dialect.identifier_preparer.format_table(table)


def _transaction(columns: Sequence[Any]) -> TouchingTransaction:
    pid, state, seconds, gid, owner = columns
    # The state of another user's transaction is shown to members of pg_read_all_stats alone.
    told = _IDLE if state is not None and state.startswith(_IDLE) else state
    return TouchingTransaction(pid, told, max(0.0, seconds or 0.0), gid, owner)


SIZED_ROWS: Final = 10
"""So many rows are asked for their size: to know the length of a text SQLite reads it."""
_PRIMARY: Final = 0xFF


class SqliteInsight(InsightDialect):
    async def storage(self, connection: AsyncConnection, table: Table) -> StorageSeen:
        """Return the size of the newest rows; nothing else is known."""
        sizes_of: list[Any] = [func.coalesce(func.length(column), 0) for column in table.columns]
        newest = [column.desc() for column in table.primary_key]
        size: Any = sum(sizes_of)
        statement = select(size).select_from(table).order_by(*newest).limit(SIZED_ROWS)
        try:
            sizes = (await connection.scalars(statement)).all()
        except OperationalError:
            # A column is missing, which is a finding of its own.
            sizes = ()
        return StorageSeen(None, None, max(sizes, default=0))

    def plan(self, connection: Connection, query: Query) -> tuple[str, ...]:
        from rowlock.dialects.sqlite.leases import explaining  # noqa: PLC0415 - where it is used

        rows = plan_of(connection, query, prefix=explaining(connection))
        return tuple(str(row[-1]) for row in rows)

    async def begin_reading(
        self, connection: AsyncConnection, *, statement_timeout: timedelta
    ) -> None:
        """Set nothing: a setting of a connection would outlive its transaction."""

    # A writer has the whole file, and no transaction outlives its connection; so none keeps a row,
    # or a table, from others.

    async def open_transaction(
        self, connection: AsyncConnection, leased: LeasedTable, key: Any
    ) -> TouchingTransaction | None:
        return None

    async def table_lock(
        self, connection: AsyncConnection, tables: Sequence[Table]
    ) -> TableLock | None:
        return None

    async def left_prepared(
        self, connection: AsyncConnection, table: Table
    ) -> tuple[TouchingTransaction, ...]:
        return ()

    def is_any_prepared(self) -> None: ...

    async def try_hold_name(self, connection: AsyncConnection, name: str) -> bool:
        return True

    def is_locked_out(self, raised: BaseException | None) -> bool:
        code: int = getattr(raised, "sqlite_errorcode", None) or 0
        return code & _PRIMARY in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

    def begin_without_writing(self, connection: Connection) -> None:
        """Set it on the connection, each time: it may have been taken back."""
        connection.exec_driver_sql("PRAGMA query_only = ON")
