"""SQLite for virtual time: aiosqlite's connection without its thread.

The one idea: aiosqlite is a queue of functions and a thread that runs them one after the other.
Here the same queue is worked off by callbacks of the event loop. Other tasks get their turn before
and after each statement, a cancelled caller does not stop a statement that is queued, and nothing
depends on the operating system's scheduler any more. It plugs into an unmodified SQLAlchemy as
`create_async_engine("sqlite+aiosqlite://...", async_creator=...)`.

Not here: in-memory databases (two connections would see two), and aiosqlite's own conveniences. One
difference: where SQLite refuses at once since waiting would be a deadlock (a reader wants to write
while another waits to commit), this one waits out the busy timeout and then fails with the same
error.

Source: aiosqlite `core.py`, `cursor.py`; SQLAlchemy `sqlalchemy.dialects.sqlite.aiosqlite`; SQLite
"Result and Error Codes".
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from sqlalchemy import URL
from sqlalchemy.ext.asyncio import create_async_engine

from rowlock.testing.database_clock import follow_on_sqlite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike

    from sqlalchemy.ext.asyncio import AsyncEngine

    from rowlock.testing.database_clock import DatabaseClock

BUSY_TIMEOUT_S: Final = 5.0
"""How long a statement waits for the lock of the file, by `loop.time()`; the default of sqlite3.
**Unit** seconds.
"""

BUSY_RETRY_S: Final = 0.01  # rest between two tries

# Not SQLITE_BUSY_SNAPSHOT: waiting does not help there, and SQLite does not wait either.
_WORTH_WAITING: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY)
_SET_BUSY_TIMEOUT: Final = re.compile(
    r"\s*PRAGMA\s+busy_timeout\s*(?:=|\()\s*(\d+)\s*\)?\s*;?\s*", re.IGNORECASE
)


class _BusyError(Exception):
    """Wraps SQLite's answer if the same call may be made again."""


class _LoopQueue:
    """In place of aiosqlite's thread and queue: runs one function in each turn of the loop."""

    def __init__(self) -> None:
        self.busy_timeout_s = BUSY_TIMEOUT_S
        self._jobs: deque[tuple[asyncio.Future[Any] | None, Callable[[], Any]]] = deque()
        self._deadline: float | None = None

    @property
    def is_idle(self) -> bool:
        return not self._jobs

    def put_nowait(self, job: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        self._jobs.append(job)
        if len(self._jobs) == 1:
            asyncio.get_running_loop().call_soon(self._run_first)

    def _run_first(self) -> None:
        future, function = self._jobs[0]
        try:
            result = function()
        except _BusyError as busy:
            if self._wait_for_lock():
                return
            _settle(future, error=busy.__cause__)
        # It is the caller's; asyncio would swallow a test's time-out.
        except BaseException as error:  # noqa: BLE001
            _settle(future, error=error)
        else:
            _settle(future, result=result)
        self._deadline = None
        self._jobs.popleft()
        if self._jobs:
            asyncio.get_running_loop().call_soon(self._run_first)

    def _wait_for_lock(self) -> bool:
        loop = asyncio.get_running_loop()
        if self._deadline is None:
            self._deadline = loop.time() + self.busy_timeout_s
        if loop.time() >= self._deadline:
            return False
        loop.call_at(min(loop.time() + BUSY_RETRY_S, self._deadline), self._run_first)
        return True


class InlineConnection:
    """Stands in for `aiosqlite.Connection`, as far as SQLAlchemy uses it."""

    def __init__(
        self, path: str | PathLike[str], *, busy_timeout_s: float = BUSY_TIMEOUT_S
    ) -> None:
        self.path = path
        self._tx = _LoopQueue()  # SQLAlchemy puts into it to set the isolation level
        self._tx.busy_timeout_s = busy_timeout_s
        # timeout=0: SQLite's own waiting would stop the one thread in which the lock could be
        # freed.
        self._connection: sqlite3.Connection | None = sqlite3.connect(path, timeout=0)

    @property
    def sqlite3_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            # As aiosqlite does; SQLAlchemy knows it by this text.
            raise ValueError("no active connection")
        return self._connection

    _conn = sqlite3_connection  # SQLAlchemy asks for it by this name

    @property
    def in_transaction(self) -> bool:
        return self.sqlite3_connection.in_transaction

    @property
    def isolation_level(self) -> str | None:
        """None leaves `BEGIN` to the caller."""
        return self.sqlite3_connection.isolation_level

    @isolation_level.setter
    def isolation_level(self, value: Literal["DEFERRED", "IMMEDIATE", "EXCLUSIVE"] | None) -> None:
        self.sqlite3_connection.isolation_level = value

    def cursor(self) -> InlineCursor:
        return InlineCursor(self)

    async def commit(self) -> None:
        await self.call(self.sqlite3_connection.commit, commits=True)

    async def interrupt(self) -> None:
        """Do nothing: a statement is one step of the loop, so none runs while somebody asks."""

    async def rollback(self) -> None:
        await self.run(self.sqlite3_connection.rollback)

    async def create_function(
        self, name: str, num_params: int, func: Callable[..., Any], *, deterministic: bool = False
    ) -> None:
        create = self.sqlite3_connection.create_function
        await self.run(partial(create, name, num_params, func, deterministic=deterministic))

    async def close(self) -> None:
        """Run what is queued, then close. Closing twice does no harm."""
        if self._connection is None:
            return
        try:
            await self.run(partial(_end, self._connection))
        finally:
            self._connection = None

    def stop(self) -> None:
        """Close without waiting; for SQLAlchemy when it cannot wait."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            self._tx.put_nowait((None, partial(_end, connection)))
        except RuntimeError:  # no running loop: garbage collection
            _end(connection)

    async def call(self, function: Callable[[], Any], *, commits: bool = False) -> Any:
        """Run a statement, or a COMMIT, and wait while the file is locked; faults override it."""
        return await self.run(_waiting(function))

    async def in_memory(self, function: Callable[[], Any]) -> Any:
        """Call what needs no database: at once, if nothing is queued before it."""
        if self._tx.is_idle and self._connection is not None:
            return function()
        return await self.run(function)

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        """Queue a function; it runs even if its caller waits no more."""
        if self._connection is None:
            raise ValueError("Connection closed")
        future = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((future, function))
        return future


class InlineCursor:
    """Stands in for `aiosqlite.Cursor`, as far as SQLAlchemy uses it."""

    _cursor: sqlite3.Cursor

    def __init__(self, connection: InlineConnection) -> None:
        self._connection = connection

    async def __aenter__(self) -> InlineCursor:
        self._cursor = await self._connection.in_memory(self._connection.sqlite3_connection.cursor)
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        await self.close()

    @property
    def description(self) -> tuple[tuple[object, ...], ...] | None:
        return self._cursor.description

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    @property
    def lastrowid(self) -> int | None:
        return self._cursor.lastrowid

    async def execute(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> InlineCursor:
        # the trap: SQLite would then wait itself, for ever
        if match := _SET_BUSY_TIMEOUT.fullmatch(sql):
            self._connection._tx.busy_timeout_s = int(match[1]) / 1000
            return self
        await self._connection.call(partial(self._cursor.execute, sql, parameters))
        return self

    async def executemany(self, sql: str, parameters: Sequence[Any]) -> InlineCursor:
        await self._connection.call(partial(self._cursor.executemany, sql, parameters))
        return self

    async def fetchone(self) -> Any:
        return await self._connection.in_memory(self._cursor.fetchone)

    async def fetchmany(self, size: int) -> Any:
        return await self._connection.in_memory(partial(self._cursor.fetchmany, size))

    async def fetchall(self) -> Any:
        return await self._connection.in_memory(self._cursor.fetchall)

    async def close(self) -> None:
        """Close the cursor, which also ends a statement that has rows left."""
        await self._connection.in_memory(self._cursor.close)


def inline_sqlite_engine(
    path: str | PathLike[str],
    *,
    clock: DatabaseClock | None = None,
    busy_timeout_s: float = BUSY_TIMEOUT_S,
    **engine_options: object,
) -> AsyncEngine:
    """Return an engine on a SQLite file whose statements run in the event loop.

    Args:
        path: The database file; not `:memory:`.
        clock: What the connections shall take for the database's time; the true one if None.
        busy_timeout_s: How long a statement waits for the file's lock, by `loop.time()`. **Unit**
            seconds.
        engine_options: Handed on to `create_async_engine`.

    Raises:
        ValueError: The path names no file.
    """
    if str(path) in {"", ":memory:"}:
        raise ValueError(
            "an inline engine needs a file, since each connection to :memory: is a database of"
            " its own"
        )

    async def connect() -> InlineConnection:
        await asyncio.sleep(0)
        return InlineConnection(path, busy_timeout_s=busy_timeout_s)

    url = URL.create("sqlite+aiosqlite", database=str(path))
    engine = create_async_engine(url, async_creator=connect, **engine_options)
    if clock is not None:
        follow_on_sqlite(clock, engine)
    return engine


def _end(file: sqlite3.Connection) -> None:
    # Rolled back first, as by a server whose client is gone: a cursor that is alive somewhere would
    # keep the file locked.
    with suppress(sqlite3.Error):
        file.rollback()
    file.close()


def _waiting(function: Callable[[], Any]) -> Callable[[], Any]:
    """Mark a call that may be made again: no fetch, since an error ends its rows."""

    def call() -> object:
        try:
            return function()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode in _WORTH_WAITING:
                raise _BusyError from error
            raise

    return call


def _settle(
    future: asyncio.Future[Any] | None, *, result: object = None, error: BaseException | None = None
) -> None:
    # done: its caller was cancelled, the statement was run all the same
    if future is None or future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
