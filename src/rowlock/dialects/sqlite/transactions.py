"""Transactions on SQLite: one writes at a time, so it takes the write lock first; each connection
has a thread, to which a statement is one hop.

aiosqlite queues what a cursor does (be made, execute, fetch, close) for its connection's thread
piece by piece, and each piece wakes that thread and then the event loop. While a transaction of
ours runs, its connection gives SQLAlchemy cursors that do all of it in one function, and its BEGIN
goes along with the first statement. The engine stays the host's: its events and its types run on
the loop as before, and see each statement. Only aiosqlite's own connection is hastened, and only
where it is as it is known here (`_is_known`); others keep their cursors. The COMMIT is not: what
the work returns is looked at first, so it is unknown which statement is the last.

A transaction that is out of time on a loop that turns is rolled back before it is cancelled:
cancelled within a statement, its connection would be closed with a cursor still open somewhere in a
traceback, and SQLite keeps the lock until that is collected.

Also what SQLite's error codes say, and that it has no notifications.

Source: aiosqlite 0.22 ``core.py``, ``cursor.py``; SQLAlchemy 2.0 and 2.1 ``connectors/asyncio.py``,
`sqlalchemy.dialects.sqlite.aiosqlite`; SQLite, "Result and Error Codes".
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import timedelta
from functools import cache, partial
from inspect import iscoroutinefunction
from typing import Any, NamedTuple, NoReturn

import aiosqlite
from sqlalchemy import Connection, Pool, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.dialects.contract import (
    ChannelDialect,
    Connects,
    ErrorVerdict,
    FaultDialect,
    TransactionDialect,
)
from rowlock.errors import ConfigurationError

# ---------------------------------------------------------------- hops


_HOPS = "rowlock_hops"


@contextmanager
def in_one_hop_each(connection: AsyncConnection) -> Iterator[None]:
    """Let the statements of `connection` take one hop each in the block."""
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


def hops_of(connection: AsyncConnection) -> Hops | None:
    """Return the hops of a connection that is hastened."""
    assert connection.sync_connection is not None
    hops: Hops | None = connection.sync_connection.connection.info.get(_HOPS)
    return hops


def _is_known(driver: object) -> bool:
    if type(driver) is not aiosqlite.Connection or not iscoroutinefunction(
        getattr(driver, "_execute", None)
    ):
        return False
    if isinstance(vars(driver).get("rollback"), _SkippedRollback):
        # Of a pool that resets nothing.
        del driver.rollback
    # What a host has put in the place of its methods is to be called.
    is_as_made = vars(driver).keys().isdisjoint({"cursor", "interrupt", "rollback"})
    return is_as_made and isinstance(getattr(driver, "_connection", None), sqlite3.Connection)


class _Begin(NamedTuple):
    """A BEGIN that is yet to be sent, its busy timeout and the usual one, in milliseconds."""

    sql: str
    wait_ms: int
    usual_ms: int

    def run(self, connection: sqlite3.Connection) -> None:
        if self.wait_ms != self.usual_ms:
            connection.execute(f"PRAGMA busy_timeout = {self.wait_ms}").close()
        try:
            connection.execute(self.sql).close()
        finally:
            if self.wait_ms != self.usual_ms:
                connection.execute(f"PRAGMA busy_timeout = {self.usual_ms}").close()


class Hops:
    """The way of one transaction to the thread of its `aiosqlite.Connection`."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._begin: _Begin | None = None
        self._expected: _Begin | None = None
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
        # Not after an error: then a statement may still be on its way, and a rollback has to come
        # behind it.
        driver.rollback = _SkippedRollback(driver)

    @contextmanager
    def sending_along(self, sql: str, *, wait_ms: int, usual_ms: int) -> Iterator[None]:
        """Have `sql`, a BEGIN that is executed in the block, wait for the next statement, and both
        be one hop.

        Its errors are raised there. While it fails, it is sent along with the next statement again,
        so that none of them is executed outside of a transaction. The wait for the file is
        `wait_ms` at most, in milliseconds; then `usual_ms` is set again.
        """
        self._expected = _Begin(sql, wait_ms, usual_ms)
        try:
            yield
        finally:
            self._expected = None

    def takes(self, sql: str) -> bool:
        """Whether `sql` is a BEGIN to be sent along, with a comment of a host's listener."""
        if self._expected is None or self._expected.sql not in sql:
            return False
        self._begin = self._expected._replace(sql=sql)
        return True

    async def run(self, function: Callable[[], None]) -> None:
        """Run `function` in the thread, behind the BEGIN; one hop."""
        try:
            await self._driver._execute(self._run, function)
        except asyncio.CancelledError:
            # What still waits for the file is not wanted any more.
            self._is_stopped = True
            raise

    def new_cursor(self) -> sqlite3.Cursor:
        """Called in the thread."""
        cursor: sqlite3.Cursor = self._driver._conn.cursor()
        return cursor

    def _run(self, function: Callable[[], None]) -> None:
        if self._begin is not None:
            self._begin.run(self._driver._conn)
            self._begin = None
            # The trap: SQLite's interrupt stops no wait for the file, and the statement behind that
            # would run to its end.
            if self._is_stopped:
                error = sqlite3.OperationalError("interrupted")
                error.sqlite_errorcode = sqlite3.SQLITE_INTERRUPT
                error.sqlite_errorname = "SQLITE_INTERRUPT"
                raise error
        function()

    async def _stop(self) -> None:
        self._is_stopped = True
        await self._interrupt()


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

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while self._rows:
            yield self._rows.popleft()

    async def execute(self, sql: str, parameters: Iterable[Any] | None = None) -> HopsCursor:
        if not self._hops.takes(sql):
            given: Any = () if parameters is None else parameters
            await self._hops.run(partial(self._execute, lambda cursor: cursor.execute(sql, given)))
        return self

    async def executemany(self, sql: str, parameters: Iterable[Any]) -> HopsCursor:
        await self._hops.run(
            partial(self._execute, lambda cursor: cursor.executemany(sql, parameters))
        )
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

    def _execute(self, run: Callable[[sqlite3.Cursor], object]) -> None:
        # All rows at once: a cursor that stays open would keep the file locked.
        with closing(self._hops.new_cursor()) as cursor:
            run(cursor)
            self.description, self.lastrowid = cursor.description, cursor.lastrowid
            self._rows = deque(cursor.fetchall() if cursor.description else ())
            self.rowcount = cursor.rowcount


class _SkippedRollback:
    """Skips the hop of a pool's `rollback` if nothing is under way. Counts once."""

    def __init__(self, driver: Any) -> None:
        self._driver, self._roll_back = driver, driver.rollback

    async def __call__(self) -> None:
        vars(self._driver).pop("rollback", None)
        if self._driver.in_transaction:
            await self._roll_back()


# ---------------------------------------------------------------- begin


BEGIN = "BEGIN IMMEDIATE"


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


# ---------------------------------------------------------------- transactions


STATEMENT_S_MAX = 0.1
"""How long a statement may run on whose transaction is given up, in seconds."""


class SqliteTransactions(TransactionDialect):
    commits_single_statements = False
    claims_at_once = 1
    is_ended_by_server = False

    def hastened(self, connection: AsyncConnection) -> AbstractContextManager[None]:
        return in_one_hop_each(connection)

    async def begin_writing(self, connection: AsyncConnection, *, wait_s: float) -> None:
        """Take the write lock at once, or with the first statement where that saves a hop; switch
        the file to WAL the first time.

        A connection that is in a transaction already (the host's engine begins them itself) has
        read nothing yet: it starts over.

        The wait for the file happens in the driver's thread, where nothing can end it: neither a
        cancellation nor SQLite's own interrupt. A transaction that is out of time would stay
        there, and its event loop could not end. So `wait_s` bounds the wait, also where the host's
        busy timeout is longer.
        """
        raw = await connection.get_raw_connection()
        driver_connection: Any = raw.driver_connection
        if driver_connection.in_transaction:
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
        if (hops := hops_of(connection)) is not None:
            with hops.sending_along(BEGIN, wait_ms=wait_ms, usual_ms=usual_ms):
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
        """Behind the statement that runs, unless that has to be stopped."""
        _stop_once(driver)
        return asyncio.create_task(
            _roll_back(driver), name="rowlock: roll back what is out of time"
        )

    async def end_stalled(
        self, connection: Connection, driver: Any, separate_pool: Connects, *, older_than_s: float
    ) -> bool:
        """In the thread of the connection, which serves any loop."""
        return await _roll_back(driver)

    async def close_stalled(self, driver: Any) -> None:
        await driver.close()


def _stop_once(driver: Any) -> None:
    """Let the driver's thread be stopped by the first that asks, and later ones wait for the same
    end.

    The trap this closes: a cancelled `close` of aiosqlite stops the thread in its ``finally``.
    SQLAlchemy stops it, too, when the wait for that very `close` is cancelled, as ``asyncio.run``
    does in its end. The thread ends at the first of the two, and the second is awaited for ever.
    Checked with aiosqlite 0.22 and SQLAlchemy 2.1; older ones have no `stop`.
    """
    stop = getattr(driver, "stop", None)
    if stop is not None:
        driver.stop = cache(stop)


async def _roll_back(driver: Any) -> bool:
    """Roll back what is under way, and return whether that could be done."""
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


class SqliteFaults(FaultDialect):
    def fault_of(self, raised: BaseException | None) -> ErrorVerdict | None:
        """Return what the low byte of the extended code says; the rest says more about it."""
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


# ---------------------------------------------------------------- channels


class SqliteChannels(ChannelDialect):
    """SQLite has no notifications: a file notifies no process that it was written."""

    def channel_of(self, driver: str) -> NoReturn:
        raise ConfigurationError(
            "notify needs PostgreSQL; sqlite cannot tell other processes anything. Leave it out"
            " there, where rows are found by polling: notify=engine.dialect.name == 'postgresql'"
        )
