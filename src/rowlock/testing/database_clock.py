"""The time of the database, moved by the test.

The one idea: rowlock asks the time in SQL, so a test that moves the database's clock moves the
leases, due times and expiries of every replica at once, whatever the replicas' own clocks say. On
SQLite the date functions of each connection are overridden; on PostgreSQL `now()` and its sisters
are found in a schema of ours before ``pg_catalog``.

Not here: the time of the event loop (`virtual_time`); `DatabaseClock(source=virtual_time_now)` ties
the two together. What does not follow: on PostgreSQL the keyword ``CURRENT_TIMESTAMP`` and any
``pg_catalog.now()`` written out. A moved time is seen at once, also in the middle of a transaction:
the clock stands still unless it is moved.

Source: SQLite "Date And Time Functions" and `sqlite3_create_function`; PostgreSQL "The Schema
Search Path" (5.10.3).
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import event

from rowlock.testing.virtual_time import run_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import URL
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.ext.asyncio import AsyncEngine

DEFAULT_START: Final = datetime(2031, 5, 17, 12, 0, tzinfo=UTC)
"""Years from any host's own time, so that code which asks the host is found out."""

POSTGRESQL_TIMEOUT_S: Final = 10.0  # longest time to set the clock of a PostgreSQL database

_SQLITE_FUNCTIONS: Final = {
    name: name for name in ("strftime", "datetime", "date", "time", "julianday", "unixepoch")
} | {"current_timestamp": "datetime", "current_date": "date", "current_time": "time"}
_ROWLOCK_FORMAT: Final = "%Y-%m-%d %H:%M:%f000"
_SECONDS: Final = re.compile(r"([+-]?\d+(?:\.\d+)?) seconds?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

# A sequence, not a table: it is outside transactions, so a moved time is seen by all, also inside
# older snapshots, and reading it can neither wait for a lock nor fail a serializable transaction.
_POSTGRESQL_SETUP: Final = (
    "CREATE SCHEMA test_clock",
    "CREATE SEQUENCE test_clock.microseconds MINVALUE -9223372036854775807",
    *(
        f"CREATE FUNCTION test_clock.{name}() RETURNS timestamptz LANGUAGE sql STABLE AS $$ SELECT"
        " timestamptz 'epoch' + last_value * interval '1 microsecond' FROM"
        " test_clock.microseconds $$"
        for name in ("now", "transaction_timestamp", "statement_timestamp", "clock_timestamp")
    ),
    # `public` stays first, so that tables are created there. For new connections only: no engine
    # may be open yet.
    (
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, test_clock,"
        " pg_catalog', current_database()); END $$"
    ),
)


class DatabaseClock:
    """A clock that one or several databases follow.

    It stands still unless it is moved, or runs with `source`. All times are cut to whole
    milliseconds, the precision of SQLite, so that `now` is exactly what the database says.

    Attributes:
        source: Returns seconds, for example `virtual_time_now`; the clock runs with it. Not with
            PostgreSQL.
    """

    def __init__(
        self, start: datetime = DEFAULT_START, *, source: Callable[[], float] | None = None
    ) -> None:
        """Start the clock; raises ValueError if `start` is naive."""
        self.source = source
        self._source_start_s = source() if source else 0.0
        self._base = _checked(start)
        self._followers: list[Callable[[datetime], None]] = []

    def __repr__(self) -> str:
        """Show the time."""
        return f"DatabaseClock({self.now.isoformat()})"

    @property
    def now(self) -> datetime:
        """The time, aware and in UTC."""
        elapsed_s = self.source() - self._source_start_s if self.source else 0.0
        return _shown(self._base, elapsed_s)

    def advance(self, delta: float | timedelta) -> None:
        """Move the clock by so many seconds; a negative number moves it back."""
        self._base += delta if isinstance(delta, timedelta) else timedelta(seconds=delta)
        self._tell_followers()

    def set(self, now: datetime) -> None:
        """Move the clock to a time; raises ValueError if that is naive."""
        self._base += _checked(now) - self.now
        self._tell_followers()

    def add_follower(self, follower: Callable[[datetime], None]) -> None:
        """Have `follower` called with the time, now and after each move."""
        follower(self.now)
        self._followers.append(follower)

    def _tell_followers(self) -> None:
        for follower in self._followers:
            follower(self.now)


def follow_on_sqlite(clock: DatabaseClock, engine: AsyncEngine) -> None:
    """Make the SQLite connections that `engine` opens from now on follow the clock."""

    @event.listens_for(engine.sync_engine, "connect")
    def override(connection: DBAPIConnection, _record: object) -> None:
        follow_on_connection(connection, clock)


def follow_on_connection(connection: Any, clock: DatabaseClock) -> None:
    # deterministic: SQLite then asks once per statement, as it does for its own 'now'.
    for name, function in _SQLITE_FUNCTIONS.items():
        count = 0 if name.startswith("current_") else -1
        timed = partial(_sqlite_time, clock, function)
        connection.create_function(name, count, timed, deterministic=True)


async def follow_on_postgresql(clock: DatabaseClock, url: URL) -> None:
    """Make a PostgreSQL database follow the clock, for all connections opened from now on."""
    if clock.source is not None:
        raise ValueError(
            "a PostgreSQL server cannot follow a clock with a source; use DatabaseClock() and"
            " advance() it"
        )
    dsn = url.set(drivername="postgresql").render_as_string(hide_password=False)
    await _execute(dsn, *_POSTGRESQL_SETUP)

    def follow(now: datetime) -> None:
        microseconds = round((now - _EPOCH) / timedelta(microseconds=1))
        moved = f"SELECT setval('test_clock.microseconds', {microseconds})"
        # Apart: the caller may be in a loop, and must see it done.
        run_in_thread(partial(_execute, dsn, moved))

    clock.add_follower(follow)


def _sqlite_time(clock: DatabaseClock, function: str, *arguments: object) -> object:
    formats, values = (arguments[:1], arguments[1:]) if function == "strftime" else ((), arguments)
    if not values or str(values[0]).lower() == "now":
        values = (_sqlite_text(clock.now), *values[1:])
        # asked for every row of a scan: worth a short cut
        if formats == (_ROWLOCK_FORMAT,) and (text := _moved_text(clock.now, values[1:])):
            return text
    places = ", ".join("?" * len(formats + values))
    with closing(sqlite3.connect(":memory:")) as plain:  # one without our override
        return plain.execute(f"SELECT {function}({places})", formats + values).fetchone()[0]


@lru_cache(maxsize=64)
def _moved_text(now: datetime, modifiers: tuple[object, ...]) -> str | None:
    matches = [_SECONDS.fullmatch(str(value)) for value in modifiers]
    if not all(matches):
        return None
    moved_s = sum(float(match[1]) for match in matches if match)
    return _sqlite_text(now + timedelta(seconds=moved_s)) + "000"


@lru_cache(maxsize=16)
def _shown(base: datetime, elapsed_s: float) -> datetime:
    time = (base - _EPOCH + timedelta(seconds=elapsed_s)) / _MILLISECOND
    return _EPOCH + _MILLISECOND * round(time)


def _sqlite_text(time: datetime) -> str:
    return time.replace(tzinfo=None).isoformat(" ", "milliseconds")


async def _execute(dsn: str, *statements: str) -> None:
    # An extra of rowlock, needed for this one database.
    import asyncpg  # type: ignore[import-untyped]  # noqa: PLC0415

    async with asyncio.timeout(POSTGRESQL_TIMEOUT_S):
        connection = await asyncpg.connect(dsn)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()


def _checked(time: datetime) -> datetime:
    if time.tzinfo is None:
        raise ValueError(
            f"the database's time must be aware, not {time!r}; give it tzinfo=datetime.UTC"
        )
    return time.astimezone(UTC)
