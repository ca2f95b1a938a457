"""Values of a row stay out of what is logged and stored."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    MetaData,
    String,
    Table,
    TypeDecorator,
    cast,
    literal,
    select,
)
from sqlalchemy.exc import DBAPIError, IntegrityError, PendingRollbackError, StatementError
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.dispatch.columns import detail_of
from rowlock.errors import describe
from rowlock.redaction import CHAINED_MAX, LOOKED_AT_MAX, text_of, without_values
from rowlock.testing import TemporaryDatabase

SECRET = "s3cr3t-value"


class Choosy(TypeDecorator[str]):
    """Refuses a value with its text, as enumerations and UUIDs do."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str:
        raise LookupError(f"{value!r} is not among the defined values")


TABLE = Table(
    "redacted",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("name", String(100), unique=True),
    Column("at", DateTime),
    Column("choice", Choosy),
)


@pytest.fixture
async def refusing(database: TemporaryDatabase) -> TemporaryDatabase:
    async with database.engine.begin() as connection:
        await connection.run_sync(TABLE.metadata.create_all)
        await connection.execute(TABLE.insert().values(name=SECRET))
    return database


async def refused(database: TemporaryDatabase, statement: Any) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the classes of two drivers
        async with database.engine.begin() as connection:
            await connection.execute(statement)
    return caught.value


REFUSED = {
    "unique": TABLE.insert().values(name=SECRET),
    "many": TABLE.insert().values([{"name": SECRET}, {"name": SECRET}]),
    "of no use as a time": TABLE.insert().values(at=SECRET),
    "refused by a type": TABLE.insert().values(choice=SECRET),
    "no such table": (
        select(literal(SECRET)).select_from(Table("nowhere", MetaData(), Column("id", Integer)))
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_statement_tells_no_values(refusing: TemporaryDatabase, name: str) -> None:
    """`last_error`, events, `health()` and the log are read by more people than the row."""
    error = await refused(refusing, REFUSED[name])
    assert "[SQL: " in str(error), "there is something to cut"
    assert SECRET not in describe(error)
    assert type(error).__name__ in describe(error)
    assert "SQL" not in describe(error).replace("SQLite", "")
    told = "".join(traceback.format_exception(without_values(error)))
    assert SECRET not in told
    assert "in refused" in told, "its place is told"
    assert f"sqlalchemy.exc.{type(error).__name__}: " in told
    assert SECRET not in detail_of(error)


async def test_what_is_wrong_is_told(refusing: TemporaryDatabase) -> None:
    """An operator would learn that a row failed, and not why."""
    told = describe(await refused(refusing, REFUSED["unique"]))
    assert "redacted.name" in told or 'unique constraint "redacted_name_key"' in told


async def test_values_that_cannot_be_converted_are_not_told(
    postgresql_database: TemporaryDatabase,
) -> None:
    """PostgreSQL ends such texts in the value, in the first line."""
    error = await refused(postgresql_database, select(cast(cast(SECRET, String), Integer)))
    assert describe(error).endswith("invalid input syntax for type integer")


async def test_errors_that_are_chained_tell_no_values(refusing: TemporaryDatabase) -> None:
    """A traceback prints the whole chain, with groups and what was being handled."""

    def raised(first: Exception) -> None:
        try:
            try:
                raise LookupError("the host's own") from first
            except LookupError as second:
                raise ExceptionGroup("several", [second, KeyError("another")]) from None
        finally:
            raise RuntimeError("while that was handled")  # chained to the group

    first = await refused(refusing, REFUSED["unique"])
    with pytest.raises(RuntimeError) as caught:
        raised(first)
    error = caught.value
    assert SECRET in "".join(traceback.format_exception(error))
    told = "".join(traceback.format_exception(without_values(error)))
    assert SECRET not in told
    for text in (
        "the host's own",
        "several (2 sub-exceptions)",
        "KeyError: 'another'",
        "while that was handled",
    ):
        assert text in told
    assert "IntegrityError" in told
    assert SECRET in "".join(traceback.format_exception(error)), "the error itself stays as it was"


async def test_a_copy_is_of_the_type_of_the_error(refusing: TemporaryDatabase) -> None:
    """Filters and error trackers of hosts go by the type, and would miss it."""
    error = await refused(refusing, REFUSED["unique"])
    copy = without_values(error)
    assert isinstance(copy, IntegrityError)
    assert (copy.statement, copy.params, copy.orig) == (None, None, None)
    assert copy.__traceback__ is error.__traceback__
    assert SECRET not in repr(copy)


async def test_a_session_that_was_spoilt_tells_no_values(refusing: TemporaryDatabase) -> None:
    """SQLAlchemy quotes the first error in the second one."""
    async with AsyncSession(refusing.engine) as session:
        with pytest.raises(PendingRollbackError) as caught:
            spoilt(session, await refused(refusing, REFUSED["unique"]))
    assert SECRET in str(caught.value)
    assert SECRET not in describe(caught.value)


def spoilt(_session: AsyncSession, error: Exception) -> None:
    raise PendingRollbackError(
        f"This Session's transaction has been rolled back. Original exception was: {error}"
    )


@pytest.mark.parametrize(
    "text",
    [
        f"\n[SQL: SELECT 1]\n[parameters: ('{SECRET}',)]",
        f"\nDETAIL:  Key (name)=({SECRET}) already exists.",
        f"\n[parameters: ('{SECRET}',)]",
    ],
)
def test_an_error_that_quotes_a_databases_is_cut(text: str) -> None:
    """``raise MyError(f"it failed: {error}")`` is how hosts wrap an error."""
    assert text_of(ValueError(f"it failed: refused{text}")) == "it failed: refused"


def test_errors_of_the_host_are_left_as_they_are() -> None:
    """What is no value of ours would be missed, and handlers could not ask the error itself."""
    error = ValueError("a text\nof two lines, with 'quotes': 17")
    error.__cause__ = OSError(2, "No such file", "a.txt")
    assert without_values(error) is error
    assert describe(error) == "ValueError: a text\nof two lines, with 'quotes': 17"


class Odd(Exception):
    """An error that cannot be made from its arguments."""

    def __init__(self, *, needed: int) -> None:
        super().__init__()
        self.needed = needed

    def __new__(cls, *, needed: int) -> Odd:
        return super().__new__(cls)

    def __str__(self) -> str:
        return f"odd: {self.needed}"


def test_errors_that_cannot_be_copied_are_told() -> None:
    """A host's class of errors would cost the traceback, or the values would stay in."""
    error = Odd(needed=3)
    error.__cause__ = dbapi_error()
    told = "".join(traceback.format_exception(without_values(error)))
    assert f"{__name__}.Odd: odd: 3" in told
    assert SECRET not in told


def test_long_chains_are_cut() -> None:
    """A loop that chains each error to the one before would have all of them copied at each
    failure.
    """
    error: Exception = dbapi_error()
    for n in range(10_000):
        following = ValueError(n)
        following.__context__, error = error, following
    told = traceback.format_exception(without_values(error))
    assert len([line for line in told if line.startswith("ValueError: ")]) == CHAINED_MAX


class Read(Exception):
    times = 0

    def __str__(self) -> str:
        type(self).times += 1
        return "read"


def test_an_error_is_looked_at_once() -> None:
    """Nested groups, whose members are also their context, would hold up the event loop for
    seconds at each failure.
    """
    error: Exception = Read()
    error.__cause__ = dbapi_error()
    for _ in range(12):
        group = ExceptionGroup("a task failed", [error])
        group.__context__, error = error, group
    Read.times = 0
    told = without_values(error)
    assert Read.times < 10
    assert SECRET not in "".join(traceback.format_exception(told))
    assert isinstance(told, ExceptionGroup)
    assert told.exceptions[0] is told.__context__


def test_crowded_groups_are_cut() -> None:
    """A group of all that failed in an outage would be copied whole at each failure."""
    Read.times = 0
    told = without_values(
        ExceptionGroup("all", [*(Read() for _ in range(20 * LOOKED_AT_MAX)), dbapi_error()])
    )
    assert isinstance(told, ExceptionGroup)
    assert len(told.exceptions) == LOOKED_AT_MAX - 1
    assert Read.times < 10 * LOOKED_AT_MAX
    assert SECRET not in "".join(traceback.format_exception(told))


def test_a_group_whose_members_are_left_out_tells_nothing_of_them() -> None:
    """What is too deep to be looked at would be told with its values."""
    error: Exception = ExceptionGroup("deep", [dbapi_error()])
    for n in range(CHAINED_MAX - 1):
        following = ValueError(n)
        following.__cause__, error = error, following
    told = "".join(traceback.format_exception(without_values(error)))
    assert SECRET not in told
    assert "ExceptionGroup: deep" in told


def test_an_error_that_is_chained_to_itself_is_told() -> None:
    """A circle of errors would be followed without end."""
    one, other = ValueError("one"), dbapi_error()
    one.__cause__, other.__cause__ = other, one
    told = "".join(traceback.format_exception(without_values(one)))
    assert "ValueError: one" in told
    assert SECRET not in told


def dbapi_error() -> DBAPIError:
    return DBAPIError(
        "SELECT 1", {"name": SECRET}, ValueError(f"refused\nDETAIL:  Key (name)=({SECRET})")
    )


def test_a_value_that_a_type_refuses_is_not_told() -> None:
    """SQLAlchemy puts the error of a type in front, and that of Python's says the value."""
    error = StatementError(
        f"(builtins.LookupError) '{SECRET}' is not among them", "SELECT 1", {}, LookupError(SECRET)
    )
    assert describe(error) == "StatementError: (builtins.LookupError)"
    plain = StatementError(
        "(builtins.TypeError) only dates are taken",
        "SELECT 1",
        {},
        TypeError("only dates are taken"),
    )
    assert describe(plain) == "StatementError: (builtins.TypeError) only dates are taken"
