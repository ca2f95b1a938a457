"""Databases whose making takes little of a test's time: those of PostgreSQL serve one test after
the other, and statements that one test has compiled are kept for the next; and one for tests that
have the URL of a server, and no fixture.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, Final

import asyncpg
from sqlalchemy import URL, Dialect, MetaData, Table
from sqlalchemy.engine.mock import MockConnection
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util import LRUCache

from rowlock.testing import DatabaseClock, TemporaryDatabase
from rowlock.testing.databases import (
    Administration,
    create_postgresql_database,
    drop_postgresql_database,
)

EMPTY = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT nspname FROM pg_namespace
        WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'test_clock')
    LOOP EXECUTE format('DROP SCHEMA %I CASCADE', name); END LOOP;
    EXECUTE format(
        'ALTER DATABASE %I RESET default_transaction_read_only', current_database());
END $$;
CREATE SCHEMA public AUTHORIZATION pg_database_owner;
GRANT USAGE ON SCHEMA public TO PUBLIC;
"""
"""Leaves of a database what it has when it is made, and the clock."""


class KeptStatements:
    """What statements were compiled to, for all engines of one kind: SQLAlchemy keeps that by the
    dialect, of which each engine has one of its own.
    """

    kept: Final = LRUCache[Any, Any](2000)

    def __init__(self, kind: object) -> None:
        self._kind = kind

    def get(self, key: tuple[Any, ...]) -> Any:
        return self.kept.get((self._kind, *key[1:]))

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        self.kept[self._kind, *key[1:]] = compiled


ALIKE: Final = {"pool_size", "max_overflow", "poolclass", "connect_args"}
"""Options of engines that change nothing in a statement."""
_create_engine = TemporaryDatabase.create_engine
_create_tables = TemporaryDatabase.create_tables


def create_engine(self: TemporaryDatabase, **options: Any) -> AsyncEngine:
    if options.keys() <= ALIKE:
        kept = KeptStatements((self.url.drivername, self._make_engine.__qualname__))
        options["execution_options"] = {"compiled_cache": kept}
    return _create_engine(self, **options)


class Written(MockConnection):
    """Keeps the texts of statements in place of executing them."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect, lambda ddl, *_, **__: self.exec_driver_sql(self._text_of(ddl)))
        self.texts: list[str] = []

    def exec_driver_sql(self, text: str) -> None:
        self.texts.append(text)

    def _text_of(self, ddl: Any) -> str:
        return str(ddl.compile(dialect=self.dialect))


@cache
def creation(metadata: MetaData, _parts: frozenset[object], dialect: Dialect) -> tuple[str, ...]:
    """Return the statements that create all tables of a metadata while it has these parts."""
    written = Written(dialect)
    metadata.create_all(written, checkfirst=False)  # type: ignore[arg-type]
    return tuple(written.texts)


_dialects: dict[str, Dialect] = {}
TABLES = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')",
    "postgresql": "SELECT relname FROM pg_class WHERE pg_table_is_visible(oid)"
    " AND relkind IN ('r', 'p', 'v', 'm', 'f')",
}


async def create_tables(self: TemporaryDatabase, metadata: MetaData) -> None:
    """Create tables without asking for each one, and compiling it, again in each test."""
    tables: list[Table] = list(getattr(metadata, "tables", {}).values())
    if not tables or any(table.schema for table in tables):
        await _create_tables(self, metadata)
        return
    dialect = _dialects.setdefault(self.dialect_name, self.engine.dialect)
    async with self.engine.begin() as connection:
        found = await connection.exec_driver_sql(TABLES[self.dialect_name])
        there = {table.name for table in tables} & set(found.scalars())
        if not there:
            parts = frozenset(part for table in tables for part in (*table.c, *table.indexes))
            for statement in creation(metadata, parts, dialect):
                await connection.exec_driver_sql(statement)
        elif len(there) < len(tables):
            await connection.run_sync(metadata.create_all)


def keep_statements() -> None:
    """Have all databases of tests keep what was compiled for another."""
    TemporaryDatabase.create_engine = create_engine  # type: ignore[method-assign]
    TemporaryDatabase.create_tables = create_tables  # type: ignore[method-assign]


class KeptDatabases(Administration):
    """Empties databases and gives them to the next test: to make one copies 300 files, and each
    first connection to it fills the caches of the server.
    """

    def __init__(self, server: URL) -> None:
        super().__init__(server)
        self._free: dict[bool, list[URL]] = {True: [], False: []}
        self._connections: dict[URL, asyncpg.Connection[Any]] = {}

    def __exit__(self, *_: object) -> None:
        for url, connection in self._connections.items():
            self._loop.run(connection.close)
            super().drop(TemporaryDatabase(url))
        super().__exit__()

    def create(self, clock: DatabaseClock | None = None) -> TemporaryDatabase:
        has_clock = clock is not None
        free = self._free[has_clock]
        url = free.pop() if free else super().create(DatabaseClock() if has_clock else None).url
        if clock is not None:
            clock.add_follower(partial(self._move, url))
        return TemporaryDatabase(url, clock=clock)

    def drop(self, database: TemporaryDatabase) -> None:
        self._execute(database.url, EMPTY)
        self._free[database.clock is not None].append(database.url)

    def _move(self, url: URL, now: datetime) -> None:
        microseconds = (now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        self._execute(url, f"SELECT setval('test_clock.microseconds', {microseconds})")

    def _execute(self, url: URL, statements: str) -> None:
        async def execute() -> None:
            connection = self._connections.get(url)
            if connection is None or connection.is_closed():  # a test may have cut it
                # What a test has set for the database is no setting of this connection.
                connection = self._connections[url] = await asyncpg.connect(
                    url.set(drivername="postgresql").render_as_string(hide_password=False),
                    server_settings={"default_transaction_read_only": "off", "lock_timeout": "30s"},
                )
            await connection.execute(statements)

        self._loop.run(execute)


@asynccontextmanager
async def postgresql_database(server: URL) -> AsyncIterator[TemporaryDatabase]:
    """Yield a new database on a server, and drop it afterwards, cutting connections."""
    database = await create_postgresql_database(server)
    try:
        async with aclosing(database):
            yield database
    finally:
        await drop_postgresql_database(server, database)
