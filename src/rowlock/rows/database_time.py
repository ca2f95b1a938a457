"""The database's clock, in SQL, and the column type that keeps its times aware.

The one idea: leases are judged by one clock, the database's, whatever the replicas' own clocks say. So "now" is an SQL
expression here, never a Python value that travels to the server.

PostgreSQL's ``now()`` is the start of the transaction: an expiry computed from it can only be too early, which is the safe side.
SQLite has no time type: times are text in the shape in which SQLAlchemy writes them (``YYYY-MM-DD HH:MM:SS.ffffff``), in UTC, so
they compare as text; its clock has milliseconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, Boolean, ColumnElement, DateTime, Dialect, Float, bindparam, literal
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from rowlock.errors import UnsupportedDialectError

SUPPORTED_DIALECTS = ("postgresql", "sqlite")


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time on both databases: ``timestamptz`` on PostgreSQL, text on SQLite.

    Any aware datetime may be bound and is converted; what is read is always aware and in UTC.

    Raises:
        ValueError: a naive datetime was bound (SQLAlchemy wraps it in its ``StatementError``).
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return `value` in UTC, without the zone where the database keeps none."""
        if value is None:
            return None
        if value.tzinfo is None or value.utcoffset() is None:
            # The value stands last: what comes before it is kept where values are cut.
            raise ValueError(
                f"a time has no time zone; pass an aware datetime, such as datetime.now(UTC), not {value!r}"
            )
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return `value` as an aware UTC time."""
        if value is None:
            return None
        if value.tzinfo is UTC:
            return value
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:  # noqa: ANN401 - SQLAlchemy keeps its name to itself
        """Return what reads a value, by the shortest way where the driver gives aware UTC times already, as asyncpg does."""
        return _as_asyncpg_reads if dialect.driver == "asyncpg" else super().result_processor(dialect, coltype)


def _as_asyncpg_reads(value: datetime | None) -> datetime | None:
    # The infinite ones are naive.
    return value if value is None or value.tzinfo is UTC else value.replace(tzinfo=UTC)


class database_now(FunctionElement[datetime]):  # noqa: N801 - reads like a function of SQL, as in SQLAlchemy's own func.now
    """The database's current time as an SQL expression, for defaults and comparisons."""

    name = "database_now"
    type = UtcDateTime()
    inherit_cache = True


class due_at_once(FunctionElement[datetime]):  # noqa: N801
    """A time that is over, as the default of a column: the database's current one, and on SQLite the first of the epoch.

    SQLite adds no column to a table that is there unless its default is a constant. A row that is inserted past the model is due at
    once on both; on SQLite it is also the first in the order of claims.
    """

    name = "due_at_once"
    type = UtcDateTime()
    inherit_cache = True


class database_instant(FunctionElement[datetime]):  # noqa: N801
    """The database's time at this very moment, also where a transaction has been open for long.

    For the question whether a lease has ended: the start of the transaction would answer it for an earlier moment.
    """

    name = "database_instant"
    type = UtcDateTime()
    inherit_cache = True


class _DatabaseTimeAfter(FunctionElement[datetime]):
    name = "database_time_after"
    type = UtcDateTime()
    inherit_cache = True


class same_time(FunctionElement[bool]):  # noqa: N801
    """Whether two times are the same, nulls being equal: ``same_time(column, value)``.

    On SQLite times are text, and what others wrote may be the same moment in another shape.
    """

    name = "same_time"
    type = Boolean()
    inherit_cache = True


class readable_time(FunctionElement[datetime]):  # noqa: N801
    """The time in a column, in the shape in which it is read: ``readable_time(column)``. Null on SQLite if it is none."""

    name = "readable_time"
    type = UtcDateTime()
    inherit_cache = True


class is_no_time(FunctionElement[bool]):  # noqa: N801
    """Whether something is written in a column of times that Python cannot read: ``is_no_time(column)``.

    On PostgreSQL a time before the year 1 or after the year 9999, and not the infinite ones, which drivers read as the first
    and the last that Python has. On SQLite whatever is no time there.
    """

    name = "is_no_time"
    type = Boolean()
    inherit_cache = True


class is_beyond_time(FunctionElement[bool]):  # noqa: N801
    """Whether what is written in a column of times lies behind all times that Python reads, or is none."""

    name = "is_beyond_time"
    type = Boolean()
    inherit_cache = True


def database_time_after(delay: timedelta) -> FunctionElement[datetime]:
    """Return the SQL expression for the database's time plus `delay`, which may be negative."""
    return _DatabaseTimeAfter(bindparam(None, delay.total_seconds(), type_=Float, unique=True))


class _DatabaseSeconds(FunctionElement[int]):
    name = "database_seconds"
    type = BigInteger()
    inherit_cache = True


def is_in_window(period: timedelta, window: timedelta) -> ColumnElement[bool]:
    """Return whether the database's time is within the last `window` of a `period`, counted from the epoch in whole seconds."""
    period_s, window_s = (max(1, round(delay.total_seconds())) for delay in (period, window))
    return _DatabaseSeconds() % literal(period_s, BigInteger) >= literal(max(0, period_s - window_s), BigInteger)


_FIRST_TIME = "TIMESTAMP WITH TIME ZONE '0001-01-01 00:00:00+00'"
_NO_MORE_TIME = "TIMESTAMP WITH TIME ZONE '10000-01-01 00:00:00+00'"
_SQLITE_FORMAT = "'%Y-%m-%d %H:%M:%f000'"


@compiles(database_now)
@compiles(due_at_once)
@compiles(database_instant)
@compiles(_DatabaseTimeAfter)
@compiles(_DatabaseSeconds)
def _refuse_other_dialects(element: object, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401 - the compiler's own
    name = compiler.dialect.name
    raise UnsupportedDialectError(
        f"rowlock knows the clock of {' and '.join(SUPPORTED_DIALECTS)}, not of {name!r}", dialect_name=name
    )


@compiles(database_now, "postgresql")
@compiles(due_at_once, "postgresql")
def _now_on_postgresql(element: FunctionElement[datetime], compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    return "now()"


@compiles(database_instant, "postgresql")
def _instant_on_postgresql(element: database_instant, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    return "clock_timestamp()"


@compiles(database_now, "sqlite")
@compiles(database_instant, "sqlite")
def _now_on_sqlite(element: FunctionElement[datetime], compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    return f"strftime({_literal_format(compiler)}, 'now')"


@compiles(due_at_once, "sqlite")
def _epoch_on_sqlite(element: due_at_once, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    return "'1970-01-01 00:00:00.000000'"


@compiles(_DatabaseTimeAfter, "postgresql")
def _after_on_postgresql(element: _DatabaseTimeAfter, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    return f"(now() + make_interval(secs => {compiler.process(element.clauses, **kw)}))"


@compiles(_DatabaseTimeAfter, "sqlite")
def _after_on_sqlite(element: _DatabaseTimeAfter, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    seconds = compiler.process(element.clauses, **kw)
    plus = "'%+.3f seconds'"
    if compiler.preparer._double_percents:
        plus = plus.replace("%", "%%")
    return f"strftime({_literal_format(compiler)}, 'now', printf({plus}, {seconds}))"


@compiles(_DatabaseSeconds, "postgresql")
def _seconds_on_postgresql(element: _DatabaseSeconds, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    return "CAST(floor(extract(epoch FROM now())) AS bigint)"


@compiles(_DatabaseSeconds, "sqlite")
def _seconds_on_sqlite(element: _DatabaseSeconds, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    shape = "'%%s'" if compiler.preparer._double_percents else "'%s'"
    return f"CAST(strftime({shape}, 'now') AS INTEGER)"


@compiles(same_time)
def _same(element: same_time, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    one, other = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"({one} IS NOT DISTINCT FROM {other})"


@compiles(same_time, "sqlite")
def _same_on_sqlite(element: same_time, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    one, other = (compiler.process(clause, **kw) for clause in element.clauses)
    shape = _literal_format(compiler)
    return f"(strftime({shape}, {one}) IS strftime({shape}, {other}))"


@compiles(readable_time)
def _readable(element: readable_time, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    [written] = (compiler.process(clause, **kw) for clause in element.clauses)
    return written


@compiles(readable_time, "sqlite")
def _readable_on_sqlite(element: readable_time, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    [written] = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"strftime({_literal_format(compiler)}, {written})"


@compiles(is_no_time)
def _is_no_time(element: is_no_time, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    [written] = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"coalesce(({written} < {_FIRST_TIME} OR {written} >= {_NO_MORE_TIME}) AND isfinite({written}), false)"


@compiles(is_beyond_time)
def _is_beyond_time(element: is_beyond_time, compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    [written] = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"coalesce({written} >= {_NO_MORE_TIME}, false)"


@compiles(is_no_time, "sqlite")
@compiles(is_beyond_time, "sqlite")
def _is_no_time_on_sqlite(element: FunctionElement[bool], compiler: SQLCompiler, **kw: Any) -> str:  # noqa: ANN401
    [written] = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"({written} IS NOT NULL AND strftime({_literal_format(compiler)}, {written}) IS NULL)"


def _literal_format(compiler: SQLCompiler) -> str:
    # Some drivers read a percent sign as a placeholder; the compiler knows whether it has to be written twice.
    return _SQLITE_FORMAT.replace("%", "%%") if compiler.preparer._double_percents else _SQLITE_FORMAT
