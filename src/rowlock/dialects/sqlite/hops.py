"""One hop to aiosqlite's thread for a statement, in transactions of ours.

The one idea: aiosqlite queues what a cursor does (be made, execute, fetch, close) for its
connection's thread piece by piece, and each piece wakes that thread and then the event loop. While
a transaction of ours runs, its connection gives SQLAlchemy cursors that do all of it in one
function, and its BEGIN goes along with the first statement. The engine stays the host's: its events
and its types run on the loop as before, and see each statement.

Only aiosqlite's own connection is hastened, and only where it is as it is known here (`_is_known`);
others keep their cursors.

Not here: the COMMIT. What the work returns is looked at first, so nobody knows which statement is
the last. Nor transactions of the host's: what is replaced belongs to one connection, for as long as
a transaction of ours has it.

Source: aiosqlite 0.22 ``core.py``, ``cursor.py``; SQLAlchemy 2.0 and 2.1 ``connectors/asyncio.py``,
`sqlalchemy.dialects.sqlite.aiosqlite`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

import aiosqlite
from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = ["Hops", "HopsCursor", "hops_of", "in_one_hop_each"]

ROWS_MAX = 1000
"""How many rows a hop brings. A cursor with more rows stays open, so that what is streamed is
never in memory as a whole.
"""

_HOPS = "rowlock_hops"


@contextmanager
def in_one_hop_each(connection: AsyncConnection) -> Iterator[None]:
    """Let the statements of `connection` take one hop each in the block, which is the work of a
    transaction of ours.
    """
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
    # Whoever has put something in the place of its methods wants it to be called.
    is_as_made = vars(driver).keys().isdisjoint({"cursor", "interrupt", "rollback"})
    return is_as_made and isinstance(getattr(driver, "_connection", None), sqlite3.Connection)


class _Begin(NamedTuple):
    """A BEGIN that is yet to be sent, and the busy timeout that it is to have, if that is not
    the usual one.
    """

    sql: str
    wait_ms: int | None
    usual_ms: int

    def run(self, connection: sqlite3.Connection) -> None:
        if self.wait_ms is not None:
            connection.execute(f"PRAGMA busy_timeout = {self.wait_ms}").close()
        try:
            connection.execute(self.sql).close()
        finally:
            if self.wait_ms is not None:
                connection.execute(f"PRAGMA busy_timeout = {self.usual_ms}").close()


class Hops:
    """The way of one transaction to the thread of its connection.

    Args:
        driver: an `aiosqlite.Connection`.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._begin: _Begin | None = None
        self._expected: _Begin | None = None
        self._is_stopped = False
        self._interrupt: Callable[[], Awaitable[None]] = driver.interrupt

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Be taken by what the connection is asked for in the block."""
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
    def sending_along(self, sql: str, *, wait_ms: int | None, usual_ms: int) -> Iterator[None]:
        """Have `sql`, a BEGIN that is executed in the block, wait for the next statement, and both
        be one hop.

        Its errors are raised there. While it fails, it is sent along with the next statement again,
        so that none of them is executed outside of a transaction.

        Args:
            sql: what is executed; a listener of the host's may write a comment beside it.
            wait_ms: longest wait for the file, in milliseconds; None for the usual one.
            usual_ms: the connection's own busy timeout, which is set again.
        """
        self._expected = _Begin(sql, wait_ms, usual_ms)
        try:
            yield
        finally:
            self._expected = None

    def takes(self, sql: str) -> bool:
        """Whether `sql` is a BEGIN that will be sent along."""
        if self._expected is None or self._expected.sql not in sql:
            return False
        self._begin = self._expected._replace(sql=sql)
        return True

    async def run(self, function: Callable[[], None]) -> None:
        """Run `function` in the thread, behind the BEGIN; one hop."""
        try:
            await self._driver._execute(self._run, function)
        except asyncio.CancelledError:
            # Nobody wants what still waits for the file.
            self._is_stopped = True
            raise

    def new_cursor(self) -> sqlite3.Cursor:
        """Return a cursor of the driver's driver; called in the thread."""
        cursor: sqlite3.Cursor = self._driver._conn.cursor()
        return cursor

    def _run(self, function: Callable[[], None]) -> None:
        if self._begin is not None:
            self._begin.run(self._driver._conn)
            self._begin = None
            # The trap: SQLite's interrupt stops no wait for the file, and the statement behind that
            # would run to its end.
            if self._is_stopped:
                raise _interrupted()
        function()

    async def _stop(self) -> None:
        self._is_stopped = True
        await self._interrupt()


def _interrupted() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("interrupted")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_INTERRUPT, "SQLITE_INTERRUPT"
    return error


class HopsCursor:
    """Stands in for `aiosqlite.Cursor`, as far as SQLAlchemy uses it; what it has to say comes
    with `execute`.
    """

    def __init__(self, hops: Hops) -> None:
        self._hops = hops
        self._rest: sqlite3.Cursor | None = None
        self._rows: deque[Any] = deque()
        self.description: tuple[tuple[Any, ...], ...] | None = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    def __await__(self) -> Generator[Any, None, HopsCursor]:
        """Be what aiosqlite's connection gives: something to await, or to enter."""
        return self.__aenter__().__await__()

    async def __aenter__(self) -> HopsCursor:
        """Return itself."""
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        """Close it."""
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Any]:
        """Yield the rows that are left."""
        while rows := await self.fetchmany(ROWS_MAX):
            for row in rows:
                yield row

    async def execute(self, sql: str, parameters: Iterable[Any] | None = None) -> HopsCursor:
        """Run a statement and fetch its rows."""
        if not self._hops.takes(sql):
            await self.close()
            given: Any = () if parameters is None else parameters
            await self._hops.run(partial(self._execute, lambda cursor: cursor.execute(sql, given)))
        return self

    async def executemany(self, sql: str, parameters: Iterable[Any]) -> HopsCursor:
        """Run a statement once for each set of parameters."""
        await self.close()
        await self._hops.run(
            partial(self._execute, lambda cursor: cursor.executemany(sql, parameters))
        )
        return self

    async def fetchone(self) -> object:
        """Return the next row, or None."""
        rows = await self.fetchmany(1)
        return rows[0] if rows else None

    async def fetchmany(self, size: int | None = None) -> list[Any]:
        """Return the next rows."""
        wanted = self.arraysize if size is None else size
        while self._rest is not None and len(self._rows) < wanted:
            await self._hops.run(self._bring)
        return [self._rows.popleft() for _ in range(min(wanted, len(self._rows)))]

    async def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        while self._rest is not None:
            await self._hops.run(self._bring)
        rows, self._rows = list(self._rows), deque()
        return rows

    async def close(self) -> None:
        """Close what is open; most often nothing is."""
        self._rows.clear()
        if self._rest is not None:
            await self._hops.run(self._close)

    def _execute(self, run: Callable[[sqlite3.Cursor], object]) -> None:
        self._rest = self._hops.new_cursor()
        try:
            run(self._rest)
            self.description, self.lastrowid = self._rest.description, self._rest.lastrowid
            self._bring()
        except BaseException:
            self._close()
            raise

    def _bring(self) -> None:
        assert self._rest is not None
        rows = self._rest.fetchmany(ROWS_MAX) if self.description else []
        self._rows.extend(rows)
        self.rowcount = self._rest.rowcount
        if len(rows) < ROWS_MAX:
            self._close()

    def _close(self) -> None:
        rest, self._rest = self._rest, None
        if rest is not None:
            rest.close()


class _SkippedRollback:
    """The `rollback` of a connection that goes back to its pool: worth a hop if something is
    under way. Counts once.
    """

    def __init__(self, driver: Any) -> None:
        self._driver, self._roll_back = driver, driver.rollback

    async def __call__(self) -> None:
        vars(self._driver).pop("rollback", None)
        if self._driver.in_transaction:
            await self._roll_back()
