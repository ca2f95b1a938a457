"""Transactions on SQLite: one writes at a time, so it takes the write lock first; each connection
has a thread, to which a statement is one hop.

aiosqlite queues what a cursor does (be made, execute, fetch, close) for its connection's thread
piece by piece, and each piece wakes that thread and then the event loop. While a transaction of
ours runs, its connection gives SQLAlchemy cursors that do all of it in one function, and its BEGIN
goes along with the first statement. The engine stays the host's: its events and its types run on
the loop as before, and see each statement. Only aiosqlite's own connection is hastened, and only
where it is as it is known here (`_is_known`).

A transaction that is out of time on a loop that turns is rolled back before it is cancelled:
cancelled within a statement, its connection would be closed with a cursor still open somewhere in a
traceback, and SQLite keeps the lock until that is collected.

Source: aiosqlite 0.22 ``core.py``, ``cursor.py``; SQLAlchemy 2.0 and 2.1 ``connectors/asyncio.py``,
`sqlalchemy.dialects.sqlite.aiosqlite`; SQLite, "Result and Error Codes".
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from typing import Any, NoReturn

import aiosqlite
from sqlalchemy import Engine, Pool, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.dialects.contract import (
    Connect,
    ErrorVerdict,
    TransactionDialect,
)
from rowlock.errors import ConfigurationError

# ---------------------------------------------------------------- hops


BEGIN = "BEGIN IMMEDIATE"
_HOPS = "rowlock_hops"


def _is_known(driver: object) -> bool:
    if type(driver) is not aiosqlite.Connection or not hasattr(driver, "_execute"):
        return False
    if getattr(vars(driver).get("rollback"), "func", None) is _roll_back_what_is_open:
        # Of a pool that resets nothing.
        del driver.rollback
    # What a host has put in the place of its methods is to be called.
    is_as_made = vars(driver).keys().isdisjoint({"cursor", "interrupt", "rollback"})
    return is_as_made and isinstance(getattr(driver, "_connection", None), sqlite3.Connection)


class Hops:
    """The way of one transaction to the thread of its `aiosqlite.Connection`."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._waits_ms: tuple[int, int] | None = None
        self._begin: Callable[[sqlite3.Connection], None] | None = None
        self._is_stopped = False
        self._interrupt: Callable[[], Awaitable[None]] = driver.interrupt

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take what the connection is asked for in the block."""
        driver = self._driver
        driver.cursor, driver.interrupt = partial(HopsCursor, self), self._stop
        try:
            yield
        finally:
            del driver.cursor, driver.interrupt
        # The hop of the pool's rollback is spared. Not after an error: then a statement may still
        # be on its way, and a rollback has to come behind it.
        driver.rollback = partial(_roll_back_what_is_open, driver, driver.rollback)

    def expect_begin(self, *, wait_ms: int, usual_ms: int) -> None:
        """Have the BEGIN that is executed next wait for the statement behind it, and both be one
        hop. Its errors are raised there; while it fails, it is sent along with the next statement
        again, so that none of them is executed outside of a transaction.
        """
        self._waits_ms = wait_ms, usual_ms

    def takes(self, sql: str) -> bool:
        """Whether `sql` is a BEGIN to be sent along, with a comment of a host's listener."""
        if self._waits_ms is None or BEGIN not in sql:
            return False
        wait_ms, usual_ms = self._waits_ms
        self._begin = partial(_begin_in_thread, sql=sql, wait_ms=wait_ms, usual_ms=usual_ms)
        self._waits_ms = None
        return True

    async def run(self, function: Callable[[sqlite3.Connection], None]) -> None:
        """Run `function` in the thread, behind the BEGIN; one hop."""
        try:
            await self._driver._execute(self._run, function)
        except asyncio.CancelledError:
            # What still waits for the file is not wanted any more.
            self._is_stopped = True
            raise

    def _run(self, function: Callable[[sqlite3.Connection], None]) -> None:
        connection = self._driver._conn
        if self._begin is not None:
            self._begin(connection)
            self._begin = None
            # The trap: SQLite's interrupt stops no wait for the file, and the statement behind that
            # would run to its end.
            if self._is_stopped:
                error = sqlite3.OperationalError("interrupted")
                error.sqlite_errorcode = sqlite3.SQLITE_INTERRUPT
                error.sqlite_errorname = "SQLITE_INTERRUPT"
                raise error
        function(connection)

    async def _stop(self) -> None:
        self._is_stopped = True
        await self._interrupt()


def _begin_in_thread(
    connection: sqlite3.Connection, *, sql: str, wait_ms: int, usual_ms: int
) -> None:
    if wait_ms != usual_ms:
        connection.execute(f"PRAGMA busy_timeout = {wait_ms}").close()
    try:
        connection.execute(sql).close()
    finally:
        if wait_ms != usual_ms:
            connection.execute(f"PRAGMA busy_timeout = {usual_ms}").close()


async def _roll_back_what_is_open(driver: Any, roll_back: Callable[[], Awaitable[None]]) -> None:
    vars(driver).pop("rollback", None)
    if driver.in_transaction:
        await roll_back()


class HopsCursor:
    """Stands in for `aiosqlite.Cursor`, as far as SQLAlchemy uses it; reads with `execute`."""

    def __init__(self, hops: Hops) -> None:
        self._hops = hops
        self._rows: deque[Any] = deque()
        self.description: tuple[tuple[Any, ...], ...] | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    def __await__(self) -> Generator[Any, None, HopsCursor]:
        """Be what aiosqlite's connection gives: something to await, or to enter."""
        return self.__aenter__().__await__()

    async def __aenter__(self) -> HopsCursor:
        return self

    async def __aiter__(self) -> AsyncIterator[Any]:
        while self._rows:
            yield self._rows.popleft()

    async def execute(self, sql: str, parameters: Any = ()) -> HopsCursor:
        if not self._hops.takes(sql):
            run = partial(self._read, run=lambda cursor: cursor.execute(sql, parameters))
            await self._hops.run(run)
        return self

    async def executemany(self, sql: str, parameters: Iterable[Any]) -> HopsCursor:
        run = partial(self._read, run=lambda cursor: cursor.executemany(sql, parameters))
        await self._hops.run(run)
        return self

    async def fetchone(self) -> object:
        return self._rows.popleft() if self._rows else None

    async def fetchmany(self, size: int | None = None) -> list[Any]:
        wanted = min(self.arraysize if size is None else size, len(self._rows))
        return [self._rows.popleft() for _ in range(wanted)]

    async def fetchall(self) -> list[Any]:
        rows, self._rows = list(self._rows), deque()
        return rows

    async def close(self) -> None:
        self._rows.clear()

    def _read(
        self, connection: sqlite3.Connection, run: Callable[[sqlite3.Cursor], object]
    ) -> None:
        # All rows at once: a cursor that stays open would keep the file locked.
        with closing(connection.cursor()) as cursor:
            run(cursor)
            self.description, self.lastrowid = cursor.description, cursor.lastrowid
            self._rows = deque(cursor.fetchall() if cursor.description else ())
            self.rowcount = cursor.rowcount


# ---------------------------------------------------------------- begin


async def usual_wait_ms(connection: AsyncConnection) -> int:
    """Return the host's busy timeout, asked once for each connection, in milliseconds."""
    info = (await connection.get_raw_connection()).info
    if "rowlock_busy_ms" not in info:
        busy = await connection.exec_driver_sql("PRAGMA busy_timeout")
        info["rowlock_busy_ms"] = busy.scalar_one()
    usual_ms: int = info["rowlock_busy_ms"]
    return usual_ms


async def begin_immediate(connection: AsyncConnection, *, wait_ms: int, usual_ms: int) -> None:
    """Take the write lock, and wait for the file for `wait_ms` at most, in milliseconds."""
    if wait_ms != usual_ms:
        await connection.exec_driver_sql(f"PRAGMA busy_timeout = {wait_ms}")
    try:
        await connection.exec_driver_sql(BEGIN)
    finally:
        # Not of one that was cancelled: it is never used again.
        if wait_ms != usual_ms and not connection.invalidated:
            await connection.exec_driver_sql(f"PRAGMA busy_timeout = {usual_ms}")


# ---------------------------------------------------------------- faults


_FINAL_SQLITE_CODES = frozenset(
    {
        sqlite3.SQLITE_ERROR,  # the statement, or a value that a function cannot read
        sqlite3.SQLITE_TOOBIG,  # a value
        sqlite3.SQLITE_CONSTRAINT,  # the values
        sqlite3.SQLITE_MISMATCH,  # a value
        sqlite3.SQLITE_RANGE,  # a parameter that the statement does not have
    }
)
_SQLITE_CODES_OF_ROWS = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_INTERNAL})
"""Codes that pass, and that may come of the page on which one row stands."""
_SQLITE_CODES_OF_FILES = frozenset(
    {
        sqlite3.SQLITE_READONLY,  # moved or replaced, or not writable when it was opened
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,  # another file may stand in its place
        sqlite3.SQLITE_CANTOPEN,  # its journal
        sqlite3.SQLITE_NOTADB,
    }
)
"""Codes that speak of the file as the connection has it open."""


# ---------------------------------------------------------------- transactions


STATEMENT_S_MAX = 0.1
"""How long a statement may run on whose transaction is given up, in seconds."""


class SqliteTransactions(TransactionDialect):
    commits_single_statements = False
    claims_at_once = 1

    @contextmanager
    def hastened(self, connection: AsyncConnection) -> Iterator[None]:
        assert connection.sync_connection is not None
        pooled = connection.sync_connection.connection
        driver, info = pooled.driver_connection, pooled.info
        if not _is_known(driver):
            # Of a transaction that host code has ended in the middle of its work, and that still is
            # about to let go.
            info.pop(_HOPS, None)
            yield
            return
        hops = info[_HOPS] = Hops(driver)
        try:
            with hops.taken():
                yield
        finally:
            info.pop(_HOPS, None)

    async def begin_writing(self, connection: AsyncConnection, *, wait_s: float) -> None:
        """Take the write lock at once, or with the first statement where that saves a hop; switch
        the file to WAL the first time.

        `wait_s` bounds the wait for the file, also where the host's busy timeout is longer: it
        happens in the driver's thread, where neither a cancellation nor SQLite's interrupt ends it,
        so that the event loop could not end.
        """
        raw = await connection.get_raw_connection()
        driver: Any = raw.driver_connection
        if driver.in_transaction:
            # The host's engine begins them itself, and has read nothing yet.
            await connection.exec_driver_sql("ROLLBACK")
        if "rowlock_wal" not in raw.info:
            # While another connection writes, the switch fails at once, without the busy timeout; a
            # later transaction makes it then.
            try:
                await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
                raw.info["rowlock_wal"] = True
            except OperationalError as error:
                if error.connection_invalidated:
                    raise
        usual_ms = await usual_wait_ms(connection)
        wait_ms = min(usual_ms, round(wait_s * 1000))
        if _HOPS in raw.info:
            raw.info[_HOPS].expect_begin(wait_ms=wait_ms, usual_ms=usual_ms)
            await connection.exec_driver_sql(BEGIN)
        else:
            await begin_immediate(connection, wait_ms=wait_ms, usual_ms=usual_ms)

    def bound_waits(self, pool: Pool, wait: timedelta) -> None:
        def wait_less(connection: DBAPIConnection, _record: object) -> None:
            cursor = connection.cursor()
            cursor.execute(f"PRAGMA busy_timeout = {round(wait.total_seconds() * 1000)}")
            cursor.close()

        event.listen(pool, "connect", wait_less)

    def roll_back_before_cancel(self, driver: Any) -> asyncio.Task[bool] | None:
        """Behind the statement that runs, unless that has to be stopped.

        The trap this closes: a cancelled `close` of aiosqlite stops the thread in its ``finally``.
        SQLAlchemy stops it, too, when the wait for that very `close` is cancelled, as
        ``asyncio.run`` does in its end. The thread ends at the first of the two, and the second is
        awaited for ever. Checked with aiosqlite 0.22 and SQLAlchemy 2.1; older ones have no `stop`.
        """
        if hasattr(driver, "stop"):
            driver.stop = cache(driver.stop)
        return asyncio.create_task(
            _roll_back(driver), name="rowlock: roll back what is out of time"
        )

    async def end_stalled(
        self, engine: Engine, driver: Any, connect: Connect, *, older_than_s: float
    ) -> bool | None:
        """In the thread of the connection, which serves any loop."""
        is_rolled_back = await _roll_back(driver)
        with suppress(Exception):
            await driver.close()
        return is_rolled_back

    def fault_of(self, raised: BaseException | None) -> ErrorVerdict | None:
        extended: int | None = getattr(raised, "sqlite_errorcode", None)
        if extended is None:
            return None
        code = extended & 0xFF
        return ErrorVerdict(
            passes=code not in _FINAL_SQLITE_CODES,
            concerns_every_row=code not in _SQLITE_CODES_OF_ROWS,
            is_of_the_server=code in _SQLITE_CODES_OF_FILES,
            # There is one code for all that is wrong with a statement, values that a function
            # cannot read among it.
            is_of_the_schema=code == sqlite3.SQLITE_ERROR and "no such " in str(raised),
            is_of_the_values=code in {sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH},
        )

    def channel_of(self, driver: str) -> NoReturn:
        raise ConfigurationError(
            "notify needs PostgreSQL; sqlite cannot tell other processes anything. Leave it out"
            " there, where rows are found by polling: notify=engine.dialect.name == 'postgresql'"
        )


async def _roll_back(driver: Any) -> bool:
    """Return whether that could be done."""
    # Queued first, and only then is a statement stopped that keeps it waiting: SQLite would stop a
    # rollback that comes later, too. Both may find that the connection is gone.
    rolling_back = asyncio.ensure_future(driver.rollback())
    with suppress(Exception):
        _, pending = await asyncio.wait({rolling_back}, timeout=STATEMENT_S_MAX)
        if pending:
            await driver.interrupt()
        await rolling_back
        return True
    return False
