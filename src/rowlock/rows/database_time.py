"""The database's clock, in SQL, the column type that keeps its times aware, and the stamp of an
outcome.

The one idea: leases are judged by one clock, the database's, whatever the replicas' own clocks say.
So "now" is an SQL expression here, never a Python value that travels to the server.

A stamp, what is written as a row's `last_processed_at`, does not go back when that clock did, and
no two outcomes of a row have the same one: after a COMMIT whose answer was lost it tells what was
committed.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    DateTime,
    Dialect,
    Float,
    bindparam,
    literal,
)
from sqlalchemy.engine.default import StrCompileDialect
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from rowlock.dialects import known_dialects
from rowlock.dialects.contract import ROWS, RowDialect


def rows_of(compiler: SQLCompiler) -> RowDialect:
    """Return the dialect of the compiler's database; `UnsupportedDialectError` if unknown."""
    dialect = compiler.dialect
    # What `str(statement)` shows has no database; it looks as for the first one.
    is_shown = isinstance(dialect, StrCompileDialect)
    return ROWS.on(known_dialects()[0].name if is_shown else dialect.name)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time on both databases: ``timestamptz`` on PostgreSQL, text on SQLite.

    Any aware datetime may be bound and is converted, a naive one is a ``ValueError`` (which
    SQLAlchemy wraps in its ``StatementError``); what is read is always aware and in UTC.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def __init__(self, *, timezone: bool = True) -> None:  # as migrations of 0.1.0 have it
        super().__init__(timezone=timezone)
        # Alembic writes a type as `__module__` of the instance, a dot and its `repr`. With the name
        # of this module a migration would need an import that Alembic does not write.
        self.__module__ = "sa"

    def __repr__(self) -> str:
        return "DateTime(timezone=True)"

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return `value` in UTC, without the zone where the database keeps none."""
        if value is None:
            return None
        if value.tzinfo is None or value.utcoffset() is None:
            # The value stands last: what comes before it is kept where values are cut.
            raise ValueError(
                "a time has no time zone; pass an aware datetime, such as datetime.now(UTC), not"
                f" {value!r}"
            )
        utc = value.astimezone(UTC)
        return utc if ROWS.on(dialect.name).keeps_zones else utc.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return `value` as an aware UTC time."""
        if value is None or value.tzinfo is UTC:
            return value
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        """Return what reads a value: the shortest way where the driver gives UTC times already."""
        if ROWS.on(dialect.name).reads_utc(dialect.driver):
            return _as_utc
        return super().result_processor(dialect, coltype)


def _as_utc(value: datetime | None) -> datetime | None:
    # The infinite ones are naive.
    return value if value is None or value.tzinfo is UTC else value.replace(tzinfo=UTC)


class _DialectFunction(FunctionElement[Any]):
    """SQL that differs by database: the template of `TimeSql` with this `name`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Asked by SQLAlchemy of each class itself.
        cls.inherit_cache = True


@compiles(_DialectFunction)
def _rendered(element: _DialectFunction, compiler: SQLCompiler, **kw: Any) -> str:
    operands = (compiler.process(clause, **kw) for clause in element.clauses)
    times = rows_of(compiler).times(getattr(compiler.dialect, "driver", ""))
    template: str = getattr(times, element.name)
    # Some drivers read a percent sign as a placeholder; the compiler knows whether it has to be
    # written twice.
    if compiler.preparer._double_percents:
        template = template.replace("%", "%%")
    return template.format(*operands)


class _DialectTime(_DialectFunction, FunctionElement[datetime]):
    type = UtcDateTime()


class _DialectCondition(_DialectFunction, FunctionElement[bool]):
    type = Boolean()


# These read like functions of SQL, as in SQLAlchemy's own func.now.
class database_now(_DialectTime):  # noqa: N801
    """The database's current time as an SQL expression, for defaults and comparisons."""

    name = "now"


class due_at_once(_DialectTime):  # noqa: N801
    """A time that is over, as the default of a column: the database's current one, and on SQLite,
    which adds columns with constant defaults alone, the first of the epoch.
    """

    name = "due_at_once"


class database_instant(_DialectTime):  # noqa: N801
    """The database's time at this moment, also in a long transaction: has a lease ended?"""

    name = "instant"


class _DatabaseTimeAfter(_DialectTime):
    name = "time_after"


class same_time(_DialectCondition):  # noqa: N801
    """Whether two times are the same, nulls being equal, in whatever shape they were written."""

    name = "is_same_time"


class readable_time(_DialectTime):  # noqa: N801
    """The time in a column as it is read: ``readable_time(column)``. Null if it is none."""

    name = "readable_time"


class is_no_time(_DialectCondition):  # noqa: N801
    """Whether a column of times holds a value that the driver cannot read. On PostgreSQL: a time
    before the year 1 or after 9999, and with psycopg an infinite one. On SQLite: any value that is
    no time there.
    """

    name = "is_no_time"


class is_beyond_time(_DialectCondition):  # noqa: N801
    """Whether a column of times holds one that lies behind all times that Python reads, or none."""

    name = "is_beyond_time"


def database_time_after(delay: timedelta) -> FunctionElement[datetime]:
    """`delay` may be negative."""
    return _DatabaseTimeAfter(bindparam(None, delay.total_seconds(), type_=Float, unique=True))


class _DatabaseSeconds(_DialectFunction):
    name = "epoch_seconds"
    type = BigInteger()


def is_in_window(period: timedelta, window: timedelta) -> ColumnElement[bool]:
    """Whether the database's time is within the last `window` of a `period`, in whole seconds."""
    period_s, window_s = (max(1, round(delay.total_seconds())) for delay in (period, window))
    begins_s = literal(max(0, period_s - window_s), BigInteger)
    return _DatabaseSeconds() % literal(period_s, BigInteger) >= begins_s


STAMP_STEP = timedelta(milliseconds=1)
"""Least step of a stamp beyond one ahead of the clock: the precision of SQLite's clock."""
STAMP_SPREAD = timedelta(milliseconds=100)
"""By less than so much more it does, in whole microseconds; by how much depends on the attempt."""
STAMP_AHEAD_MAX = timedelta(hours=1)
"""A stamp further ahead of the clock was written by no outcome; it is written anew."""


def stamp_after(now: datetime, ahead: datetime | None, token: Any) -> datetime:
    """Return the stamp of an outcome that is written `now` to a row whose last stamp is `ahead` of
    that, if it is; the same for each try of the attempt that `token` identifies.
    """
    if ahead is None:
        return now
    digest = blake2b(str(token).encode(), digest_size=8).digest()
    spread = int.from_bytes(digest) % (STAMP_SPREAD // timedelta(microseconds=1))
    return ahead + STAMP_STEP + timedelta(microseconds=spread)
