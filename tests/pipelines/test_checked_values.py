"""Values that a column cannot keep, or that the model could not read back."""

from __future__ import annotations

import enum
import re
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    ARRAY,
    JSON,
    DateTime,
    Enum,
    Integer,
    LargeBinary,
    Numeric,
    PickleType,
    String,
    Text,
    TypeDecorator,
    Uuid,
    func,
    select,
)
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    NOW_PLACEHOLDER,
    Apply,
    LockColumns,
    Outcome,
    OutcomeError,
    Pipeline,
    PipelineItem,
    Retry,
    ScheduleColumns,
    UtcDateTime,
    request_update,
)
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import checked_values
from rowlock.testing import TemporaryDatabase, stepping

from .scenes import read_all

NAIVE, AWARE = datetime(2031, 5, 17, 12), datetime(2031, 5, 17, 12, tzinfo=UTC)  # noqa: DTZ001
SECRET = "a-secret-that-is-long"


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


class Other(enum.Enum):
    RED = "r"


class ColourText(TypeDecorator[Colour]):
    """The host's own enumeration over text: its values are written as they are."""

    impl = String(30)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return value.value if isinstance(value, Colour) else value

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return value and Colour(value)


class Initials(TypeDecorator[str]):
    impl = String(3)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return value and value[:3]


class Local(TypeDecorator[datetime]):
    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return value and value.replace(tzinfo=UTC)


class Lowered(TypeDecorator[str]):
    impl = String(5)
    cache_ok = True

    def bind_expression(self, bindparam: Any) -> Any:
        return func.lower(func.substr(bindparam, 1, 5))

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        assert value is None or value.islower()
        return value


class Papers(TypeDecorator[str]):
    """Takes documents or a title, and gives the title."""

    impl = JSON
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return {"title": value} if isinstance(value, str) else value

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return value and value["title"]


class Packed(TypeDecorator[str]):
    """Text as bytes; bytes are written as they are."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return value.encode() if isinstance(value, str) else value

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return value and value.decode()


class Torn(Exception):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(one)


class TriedBase(DeclarativeBase):
    """Tables of this file alone."""


class Tried(LockColumns, ScheduleColumns, TriedBase):
    __tablename__ = "tried"
    id: Mapped[int] = mapped_column(primary_key=True)
    phase: Mapped[str] = mapped_column(default="new")
    colour: Mapped[Any] = mapped_column(Enum(Colour, native_enum=False, length=30), nullable=True)
    native: Mapped[Any] = mapped_column(Enum(Colour, name="native_colour"), nullable=True)
    label: Mapped[Any] = mapped_column(
        Enum("red", "blue", native_enum=False, create_constraint=False, length=30), nullable=True
    )
    own: Mapped[Any] = mapped_column(ColourText, nullable=True)
    code: Mapped[Any] = mapped_column("short_code", String(5), nullable=True)
    initials: Mapped[Any] = mapped_column(Initials, nullable=True)
    zoned: Mapped[Any] = mapped_column(DateTime(timezone=True), nullable=True)
    utc: Mapped[Any] = mapped_column(UtcDateTime, nullable=True)
    local: Mapped[Any] = mapped_column(Local, nullable=True)
    lowered: Mapped[Any] = mapped_column(Lowered, nullable=True)
    papers: Mapped[Any] = mapped_column(Papers, nullable=True)
    packed: Mapped[Any] = mapped_column(Packed, nullable=True)
    uid: Mapped[Any] = mapped_column(Uuid(as_uuid=False), nullable=True)
    pickled: Mapped[Any] = mapped_column(PickleType, nullable=True)
    number: Mapped[Any] = mapped_column(Integer, nullable=True)
    price: Mapped[Any] = mapped_column(Numeric(10, 2), nullable=True)


class ArraysBase(DeclarativeBase):
    """Tables of PostgreSQL alone."""


class Tags(LockColumns, ArraysBase):
    __tablename__ = "tags"
    id: Mapped[int] = mapped_column(primary_key=True)
    colours: Mapped[Any] = mapped_column(ARRAY(Enum(Colour, native_enum=False)), nullable=True)
    natives: Mapped[Any] = mapped_column(ARRAY(Enum(Colour, name="native_colour")), nullable=True)


class TriedPipeline(Pipeline[Any]):
    model = Tried
    outcomes: Mapping[int, Any]

    def ready(self) -> Any:
        return Tried.phase == "new"

    async def process(self, item: PipelineItem[Any]) -> Outcome:
        """Return it; a map is that of a related row."""
        outcome = self.outcomes[item.id]
        if not isinstance(outcome, dict):
            return outcome  # type: ignore[no-any-return]
        [related] = await item.lock_related(Tried, Tried.id == item.id + 1000)
        return Apply({"phase": "done"}, related={related: outcome})


REFUSED: Sequence[tuple[str, Any, Any]] = [
    ("colour", "colour", "GREEN"),
    ("native", "native", "GREEN"),
    ("colour", "colour", "r"),
    ("colour", "colour", Other.RED),
    ("label", "label", "green"),
    ("label", "label", ["red"]),
    ("own", "own", "green"),
    ("own", "own", 7),
    ("own", "own", "green" * 6),
    ("papers", "papers", {"titel": SECRET * 50}),
    ("packed", "packed", b"\xff"),
    ("short_code", "code", SECRET),
    ("short_code", "short_code", "äöüäöü"),
    ("short_code", Tried.code, SECRET),
    ("zoned", "zoned", NAIVE),
    ("utc", "utc", NAIVE),
    ("zoned", "zoned", NAIVE.date()),
    ("pickled", "pickled", Torn("a", "b")),
    ("number", "number", "many"),
    ("number", "number", "1_000"),
    ("number", "number", b"12"),
    ("number", "number", AWARE),
    ("price", "price", SECRET),
]
"""Columns, what names them, and what they cannot keep."""
TAKEN: Sequence[dict[str, Any]] = [
    {"colour": Colour.RED, "native": "RED", "label": "red", "own": "r"},
    {"code": "äöüäö", "initials": "abcdef", "number": 5, "price": 1.5},
    {"lowered": "ABCDEFG", "papers": {"title": "t"}, "packed": memoryview(b"text")},
    {"papers": "t", "packed": "text", "uid": "9d0aee3e-39a8-4d5b-a0a0-51d7f7f8dc2a"},
    {"zoned": AWARE, "utc": NOW_PLACEHOLDER, "local": NAIVE},
    {"colour": None, "own": None, "zoned": None, "number": None, "pickled": None},
    {"pickled": {"a": [1]}},
    {"code": func.substr("abcdefgh", 1, 5), "number": Tried.id + 1},
]


async def _after(
    database: TemporaryDatabase, outcomes: Mapping[int, Any]
) -> tuple[Sequence[Any], dict[str, int]]:
    """Have a row processed for each outcome; return the rows and the counters."""
    await database.create_tables(TriedBase.metadata)
    async with database.session_factory.begin() as session:
        for number in outcomes:
            session.add_all([Tried(id=number), Tried(id=1000 + number, phase="related")])
    pipeline = TriedPipeline(workers_num=50)
    pipeline.outcomes = outcomes
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_all()
        counters = steps.run.statistics().counters
    async with database.session_factory() as session:
        # Whatever was written can be read, by the host's own queries.
        rows = await session.scalars(select(Tried).where(Tried.id < 1000).order_by(Tried.id))
        return rows.all(), counters


async def test_a_value_that_its_column_cannot_keep_is_refused(database: TemporaryDatabase) -> None:
    """Values are checked against the column's type before they are written: an `OutcomeError`
    names the column and the value's type, and never the value.
    """
    outcomes = {n: Apply({key: value}) for n, (_, key, value) in enumerate(REFUSED)}
    rows, counters = await _after(database, outcomes)
    assert (counters["applied"], counters["retried"]) == (0, len(REFUSED))
    for (column, _, value), row in zip(REFUSED, rows, strict=True):
        kind = type(value).__name__
        said = f"OutcomeError: Tried.{column} cannot be set to a value of type {kind}: "
        assert (row.last_error or "").startswith(said), (row.last_error, said)
        assert len(str(value)) == 1 or str(value) not in row.last_error
        assert (row.phase, row.lock_token) == ("new", None)


async def test_it_is_refused_wherever_it_is_written(database: TemporaryDatabase) -> None:
    """The values of a `Retry` and of a related row are checked as well, and those of a request."""
    outcomes = {1: Retry(values={"label": "green"}), 2: {"label": "green"}, 3: Apply()}
    rows, counters = await _after(database, outcomes)
    assert counters["retried"] == 2
    said = "Tried.label cannot be set to a value of type str"
    assert [said in (row.last_error or "") for row in rows] == [True, True, False]
    async with database.session_factory.begin() as session:
        with pytest.raises(OutcomeError, match=re.escape(said)):
            await request_update(session, Tried, 3, {"label": "green"})


async def test_text_that_is_no_uuid_is_refused(sqlite_database: TemporaryDatabase) -> None:
    """SQLite keeps any text, and a column of UUIDs as text could not be read from then on."""
    rows, _ = await _after(sqlite_database, {1: Apply({"uid": SECRET})})
    assert "Tried.uid cannot be set to a value of type str" in rows[0].last_error


async def test_a_typo_within_an_array_is_refused(postgresql_database: TemporaryDatabase) -> None:
    """Arrays of an enumeration hold what it has, native or not."""
    async with postgresql_database.engine.connect() as connection:
        dialect = connection.dialect
    leased = LeasedTable.of(Tags)
    for name in ("colours", "natives"):
        assert checked_values(leased, {name: ["RED", Colour.BLUE, None]}, dialect)
        with pytest.raises(OutcomeError, match=f"Tags.{name} cannot be set to a value of type li"):
            checked_values(leased, {name: ["GREEN"]}, dialect)


async def test_a_value_that_its_type_takes_is_written(database: TemporaryDatabase) -> None:
    """A value that the column's own type converts, null, SQL and the placeholder are left alone."""
    outcomes = {n: Apply({"phase": "done", **values}) for n, values in enumerate(TAKEN)}
    rows, counters = await _after(database, outcomes)
    assert [row.last_error for row in rows] == [None] * len(TAKEN)
    assert counters["applied"] == len(TAKEN)


class KindsBase(DeclarativeBase):
    """Tables of this file alone."""


class Kind(LockColumns, ScheduleColumns, KindsBase):
    """A column of each kind; those of the host stand behind one that is always written."""

    __tablename__ = "kinds"
    id: Mapped[int] = mapped_column(primary_key=True)
    phase: Mapped[str] = mapped_column(default="new")
    number: Mapped[Any] = mapped_column("how_many", type_=Numeric(4, 2), nullable=True)
    count: Mapped[int | None]
    note: Mapped[Any] = mapped_column(Text, nullable=True)
    day: Mapped[date | None]
    at: Mapped[datetime | None]
    is_open: Mapped[bool | None]
    code: Mapped[uuid.UUID | None]
    data: Mapped[Any] = mapped_column(LargeBinary, nullable=True)
    papers: Mapped[Any] = mapped_column(JSON, nullable=True)
    numbers: Mapped[Any] = mapped_column(
        ARRAY(Numeric(4, 2)).with_variant(JSON, "sqlite"), nullable=True
    )


class KindPipeline(Pipeline[Any]):
    """Writes the values of each row, or writes them to a related one."""

    model = Kind
    values: Mapping[int, Mapping[str, Any]]

    def ready(self) -> Any:
        return Kind.phase == "new"

    async def process(self, item: PipelineItem[Any]) -> Outcome:
        values = {"phase": "done", **self.values[item.id]}
        if item.id % 2:
            return Apply(values)
        [related] = await item.lock_related(Kind, Kind.id == 1000)
        return Apply({"phase": "done"}, related={related: values})


ON_POSTGRESQL: list[tuple[str, Any]] = [
    ("how_many", Decimal("123456.5")),
    ("count", 2**40),
    ("count", {"secret": 77}),
    ("note", "a-secret\x00"),
    ("numbers", ["a-secret"]),
]
"""Columns and what PostgreSQL refuses in them, or its drivers."""
EVERYWHERE: list[tuple[str, Any]] = [
    ("count", 2**70),
    ("note", "a-secret \ud800"),
    ("day", "a-secret"),
    ("at", "a-secret"),
    ("is_open", "a-secret"),
    ("code", "a-secret"),
    ("data", 77),
    ("papers", {"secret": {77}}),
]


@pytest.mark.parametrize("driver", ["usual", "psycopg"])
async def test_a_refused_value_is_named_by_its_column(
    database: TemporaryDatabase, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused value is mapped to `table.column` in `last_error` and in the log, with the value
    hidden: of the row and of a related one, whether the driver names it by a number or not at all.
    """
    engine = database.engine
    if driver == "psycopg":
        if database.dialect_name == "sqlite":
            pytest.skip("a driver of PostgreSQL")
        pytest.importorskip("psycopg")
        engine = create_async_engine(database.url.set(drivername="postgresql+psycopg"))
    await database.create_tables(KindsBase.metadata)
    cases = EVERYWHERE + (ON_POSTGRESQL if database.dialect_name == "postgresql" else [])
    async with database.session_factory.begin() as session:
        session.add(Kind(id=1000, phase="related"))
        session.add_all(Kind(id=number) for number in range(1, len(cases) + 1))
    pipeline = KindPipeline(workers_num=50)
    names = {column.name: attribute for attribute, column in pipeline.leased.attributes.items()}
    pipeline.values = {n: {names[column]: value} for n, (column, value) in enumerate(cases, 1)}
    async with stepping(async_sessionmaker(engine), pipeline) as steps:
        await steps.fetch_once()
        await steps.work_all()
    if engine is not database.engine:
        await engine.dispose()
    rows = {row.id: row for row in await read_all(database, Kind)}
    for number, (column, value) in enumerate(cases, 1):
        said = rows[number].last_error
        assert f"(of kinds.{column})" in (said or ""), (column, value, said)
        assert "secret" not in said
    # The log counts errors that come often, and shows the first of them.
    assert "(of kinds." in caplog.text
    assert "secret" not in caplog.text


async def test_a_constraint_names_no_other_column(database: TemporaryDatabase) -> None:
    """What is refused for a constraint, and not for a value, names no column that is not at
    fault.
    """
    await database.create_tables(KindsBase.metadata)
    async with database.session_factory.begin() as session:
        session.add(Kind(id=1))
    pipeline = KindPipeline()
    pipeline.values = {1: {"phase": None, "count": 5}}
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
    [row] = await read_all(database, Kind)
    assert "(of " not in (row.last_error or "(of ")
