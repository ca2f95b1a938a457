"""Tests of `UtcDateTime` and of the database's clock in SQL."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, Integer, MetaData, Table, Text, func, insert, select, type_coerce
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import StatementError

from rowlock import UtcDateTime, database_now
from rowlock.errors import UnsupportedDialectError
from rowlock.rows.database_time import database_instant, database_time_after
from rowlock.testing import TemporaryDatabase

metadata = MetaData()
moments = Table(
    "moments", metadata, Column("id", Integer, primary_key=True), Column("at", UtcDateTime)
)
noted = Table(
    "noted",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", UtcDateTime, server_default=database_now()),
)

NOON = datetime(2031, 5, 17, 12, 0, tzinfo=UTC)
INDIA = timezone(timedelta(hours=5, minutes=30))
ZONES = st.integers(min_value=-14 * 60, max_value=14 * 60).map(
    lambda minutes: timezone(timedelta(minutes=minutes))
)
TIMES = st.datetimes(
    min_value=datetime(1000, 1, 2),  # noqa: DTZ001 - zones are drawn apart
    max_value=datetime(9999, 12, 30),  # noqa: DTZ001
    timezones=ZONES,
)
DIALECTS = (postgresql.dialect(), sqlite.dialect())


class Undecided(tzinfo):
    """A zone that does not know its offset: such a time is naive in all but name."""

    def utcoffset(self, dt: datetime | None) -> None:
        """Return no offset."""


# ---------------------------------------------------------------- the column type


@pytest.mark.parametrize(
    "at",
    [
        NOON,
        NOON.astimezone(INDIA),
        NOON + timedelta(microseconds=1),
        datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=INDIA),
        None,
    ],
)
async def test_a_time_comes_back_as_the_same_moment_in_utc(
    database: TemporaryDatabase, at: datetime | None
) -> None:
    """A lease written by one replica would end at another moment for the next."""
    await database.create_tables(metadata)
    async with database.engine.begin() as connection:
        await connection.execute(insert(moments).values(at=at))
        read = await connection.scalar(select(moments.c.at))
    assert read == at
    assert read is None or read.tzinfo is UTC


@pytest.mark.parametrize("at", [NOON.replace(tzinfo=None), NOON.replace(tzinfo=Undecided())])
async def test_a_naive_time_is_refused(database: TemporaryDatabase, at: datetime) -> None:
    """A time without a zone would mean another moment on every replica."""
    await database.create_tables(metadata)
    async with database.engine.begin() as connection:
        with pytest.raises(
            StatementError, match="has no time zone; pass an aware datetime"
        ) as caught:
            await connection.execute(insert(moments).values(at=at))
    assert isinstance(caught.value.orig, ValueError)


@given(TIMES, st.sampled_from(DIALECTS))
def test_what_is_bound_reads_back(at: datetime, dialect: Dialect) -> None:
    """Some zone or some century would come back as another moment."""
    column_type = UtcDateTime()
    read = column_type.process_result_value(column_type.process_bind_param(at, dialect), dialect)
    assert read == at
    assert read is not None
    assert read.tzinfo is UTC


def test_a_migration_that_names_the_class_still_runs() -> None:
    """Revisions that Alembic wrote before it wrote ``sa.DateTime`` would end in a TypeError."""
    assert repr(UtcDateTime(timezone=True)) == repr(UtcDateTime())


def test_what_a_driver_reads_in_another_zone_becomes_utc() -> None:
    """Times would be equal and print differently, depending on the server's setting."""
    read = UtcDateTime().process_result_value(NOON.astimezone(INDIA), postgresql.dialect())
    assert (read, read and read.tzinfo) == (NOON, UTC)


@given(TIMES, TIMES)
def test_order_of_the_text_is_order_of_time_on_sqlite(one: datetime, other: datetime) -> None:
    """SQLite would find leases expired that are not, since it compares text."""
    column_type, dialect = UtcDateTime(), sqlite.dialect()
    write = column_type.dialect_impl(dialect).bind_processor(dialect)
    assert write is not None
    assert (write(one) < write(other)) == (one < other)
    assert (write(one) == write(other)) == (one == other)


# ---------------------------------------------------------------- the clock


async def test_the_database_is_asked(database_with_clock: TemporaryDatabase) -> None:
    """Leases would be judged by the replica's clock."""
    for _ in range(2):
        async with database_with_clock.engine.connect() as connection:
            now, instant = (
                await connection.execute(select(database_now(), database_instant()))
            ).one()
        assert now == instant == database_with_clock.clock.now
        assert now.tzinfo is UTC
        database_with_clock.clock.advance(timedelta(days=400, milliseconds=7))


@pytest.mark.parametrize(
    "delay",
    [
        timedelta(0),
        timedelta(seconds=30),
        timedelta(seconds=-30),
        timedelta(milliseconds=1),
        timedelta(milliseconds=-1500),
        timedelta(days=400, milliseconds=250),
        timedelta(days=-400),
    ],
)
async def test_the_time_after_a_delay(
    database_with_clock: TemporaryDatabase, delay: timedelta
) -> None:
    """A lease would be shorter or longer than the setting says."""
    async with database_with_clock.engine.connect() as connection:
        later = await connection.scalar(select(database_time_after(delay)))
    assert later == database_with_clock.clock.now + delay


async def test_two_delays_in_one_statement(database_with_clock: TemporaryDatabase) -> None:
    """The second would take the first one's parameter."""
    now, minute, hour = database_with_clock.clock.now, timedelta(minutes=1), timedelta(hours=1)
    async with database_with_clock.engine.connect() as connection:
        for one, other in ((minute, hour), (hour, minute)):
            statement = select(
                database_time_after(one).label("one"), database_time_after(other).label("other")
            )
            assert tuple((await connection.execute(statement)).one()) == (now + one, now + other)


async def test_now_is_the_start_of_the_transaction_on_postgresql(
    postgresql_database: TemporaryDatabase,
) -> None:
    """One transaction would stamp its rows with several times; and the instant would be as old
    as the transaction.
    """
    async with postgresql_database.engine.begin() as connection:
        first = await connection.scalar(select(database_now()))
        await connection.execute(select(func.pg_sleep(0.002)))
        second, instant = (
            await connection.execute(select(database_now(), database_instant()))
        ).one()
    assert first == second < instant


async def test_now_in_sql_is_spelt_as_bound_times_are(sqlite_database: TemporaryDatabase) -> None:
    """The same moment, written by SQL and by Python, would compare as different text."""
    await sqlite_database.create_tables(metadata)
    as_text = type_coerce(moments.c.at, Text)
    async with sqlite_database.engine.begin() as connection:
        for written in (
            database_now(),
            database_instant(),
            database_time_after(timedelta(seconds=5)),
            NOON,
        ):
            await connection.execute(moments.delete())
            await connection.execute(insert(moments).values(at=written))
            by_sql = await connection.scalar(select(as_text))
            read = await connection.scalar(select(moments.c.at))
            await connection.execute(moments.update().values(at=read))
            assert await connection.scalar(select(as_text)) == by_sql


async def test_now_as_a_default_of_the_server(database_with_clock: TemporaryDatabase) -> None:
    """A row inserted by hand would not be due."""
    await database_with_clock.create_tables(metadata)
    async with database_with_clock.engine.begin() as connection:
        await connection.exec_driver_sql("INSERT INTO noted (id) VALUES (1)")
        assert await connection.scalar(select(noted.c.at)) == database_with_clock.clock.now


@pytest.mark.parametrize(
    "element", [database_now(), database_instant(), database_time_after(timedelta(seconds=1))]
)
def test_other_databases_are_refused(element: database_now) -> None:
    """An unknown database would get some other clock's idea of now, or an error that says
    nothing.
    """
    with pytest.raises(
        UnsupportedDialectError, match="postgresql and sqlite, not on 'mysql'"
    ) as caught:
        select(element).compile(dialect=mysql.dialect())
    assert caught.value.dialect_name == "mysql"


@pytest.mark.parametrize(
    "element", [database_now(), database_instant(), database_time_after(timedelta(seconds=1))]
)
def test_statements_can_be_printed(element: database_now) -> None:
    """Who prints a statement, or has it in a traceback, would get an error in its place."""
    assert "now" in str(select(element)) or "clock" in str(select(element))


def test_percent_signs_survive_every_way_of_binding() -> None:
    """A driver that formats statements would take the format of the time for its own
    placeholders.
    """
    for element in (database_now(), database_time_after(timedelta(seconds=1))):
        by_format = str(select(element).compile(dialect=sqlite.dialect(paramstyle="format")))
        by_mark = str(select(element).compile(dialect=sqlite.dialect(paramstyle="qmark")))
        assert "'%%Y-%%m-%%d %%H:%%M:%%f000'" in by_format
        assert "'%Y-%m-%d %H:%M:%f000'" in by_mark
    assert "'%%+.3f seconds'" in by_format
    assert "'%+.3f seconds'" in by_mark
