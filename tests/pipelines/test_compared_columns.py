"""Columns of any type that services own: an unchanged row is written, a changed one is not."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from sqlalchemy import (
    CHAR,
    JSON,
    Column,
    ColumnElement,
    Date,
    DateTime,
    Double,
    Enum,
    Interval,
    LargeBinary,
    Numeric,
    PickleType,
    Text,
    Time,
    TypeDecorator,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, INET, INT4RANGE, JSONB, TSVECTOR
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import NullType, UserDefinedType

from rowlock import Apply, LockColumns, ModelError, Outcome, Pipeline, PipelineItem
from rowlock.testing import TemporaryDatabase, stepping

from .scenes import counted


class Named(UserDefinedType[Any]):
    """A type of the server's that SQLAlchemy has no class for."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **_: Any) -> str:
        return self.name


class Settings(TypeDecorator[Any]):
    impl = JSON
    cache_ok = True


VARIANTS: dict[Any, Any] = {
    kind: Text().with_variant(kind(), "postgresql", "sqlite")
    for kind in (JSON, TSVECTOR, Uuid, INET, Interval, DateTime)
}


class Notes(TypeDecorator[Any]):
    """A host's own type around one that is another on each database."""

    impl = VARIANTS[JSON]
    cache_ok = True


POSTGRESQL: dict[str, tuple[Any, str, str]] = {
    "tsvector": (
        TSVECTOR,
        "to_tsvector('simple', 'a quick fox')",
        "to_tsvector('simple', 'a slow fox')",
    ),
    "polygon": (Named("polygon"), "'((0,0),(1,1),(2,0))'", "'((0,0),(1,1),(3,0))'"),
    "point": (Named("point"), "'(1,2)'", "'(1,3)'"),
    "box of the same area": (Named("box"), "'(0,0),(2,3)'", "'(0,0),(3,2)'"),
    "json": (JSON, "'{\"a\": [1, 2]}'", "'{\"a\": [2, 1]}'"),
    "jsonb": (JSONB, "'{\"a\": 1.50}'", "'{\"a\": 1.51}'"),
    "decorated json": (Settings, '\'{"a": "é"}\'', '\'{"a": "e"}\''),
    "array": (ARRAY(Text), "'{a,b}'", "'{b,a}'"),
    "array of json": (ARRAY(JSON), "ARRAY['{\"a\": 1}'::json]", "ARRAY['{\"a\": 2}'::json]"),
    "range": (INT4RANGE, "'[1,5)'", "'[1,6)'"),
    "inet": (INET, "'10.0.0.1'", "'10.0.0.2'"),
    "interval": (Interval, "'1 day 2 hours'", "'1 day 3 hours'"),
    "numeric": (Numeric, "1.10", "1.11"),
    "double": (Double, "0.1", "0.2"),
    "date": (Date, "'2026-01-02'", "'2026-01-03'"),
    "time": (Time, "'12:00:01'", "'12:00:02'"),
    "bytes": (LargeBinary, "'\\x00ff'", "'\\x00fe'"),
    "uuid": (Uuid, f"'{uuid.UUID(int=1)}'", f"'{uuid.UUID(int=2)}'"),
    "enum": (Enum("low", "high", name="level"), "'low'", "'high'"),
    "char": (CHAR(5), "'ab'", "'ac'"),
    "text, here json": (VARIANTS[JSON], "'{\"a\": [1, 2]}'", "'{\"a\": [2, 1]}'"),
    "decorated text, here json": (Notes, "'{\"a\": [1, 2]}'", "'{\"a\": [2, 1]}'"),
    "text, here tsvector": (
        VARIANTS[TSVECTOR],
        "to_tsvector('simple', 'a fox')",
        "to_tsvector('simple', 'a cat')",
    ),
    "text, here uuid": (VARIANTS[Uuid], f"'{uuid.UUID(int=1)}'", f"'{uuid.UUID(int=2)}'"),
    "text, here inet": (VARIANTS[INET], "'10.0.0.1'", "'10.0.0.2'"),
    "text, here interval": (VARIANTS[Interval], "'24 hours'", "'25 hours'"),
}
SQLITE: dict[str, tuple[Any, str, str]] = {
    "json": (JSON, "'{\"a\": [1, 2]}'", "'{\"a\": [2, 1]}'"),
    "json that another program wrote": (
        JSON,
        '\'{"ä": "é",  "n": 1.00}\'',
        '\'{"ä": "e", "n": 1.00}\'',
    ),
    "json with escapes": (JSON, '\'{"a": "\\u00e9"}\'', '\'{"a": "\\u00e8"}\''),
    "half a letter": (JSON, "'\"\\ud800\"'", "'\"\\ud801\"'"),
    "a list for an object": (JSON, "'[]'", "'{}'"),
    "a text for a number": (JSON, '\'{"a": "1"}\'', "'{\"a\": 1}'"),
    "decorated json": (Settings, "'{\"a\":  1}'", "'{\"a\":  2}'"),
    "interval": (Interval, "'1970-01-02 00:00:00'", "'1970-01-03 00:00:00'"),
    "numeric": (Numeric(10, 2), "1.10", "1.11"),
    "double": (Double, "0.1", "0.2"),
    "date": (Date, "'2026-01-02'", "'2026-01-03'"),
    "time": (Time, "'12:00:01.000000'", "'12:00:02.000000'"),
    "bytes": (LargeBinary, "x'00ff'", "x'00fe'"),
    "text, here json": (VARIANTS[JSON], "'{\"a\":  1}'", "'{\"a\":  2}'"),
    "decorated text, here json": (Notes, "'{\"a\":  1}'", "'{\"a\":  2}'"),
    "text, here a time": (VARIANTS[DateTime], "'2026-01-02 00:00:00'", "'2026-01-03 00:00:00'"),
    "json, here text": (JSON().with_variant(Text(), "sqlite"), "'{'", "'}'"),
}
CASES = [
    *(("postgresql", kind, *case) for kind, case in POSTGRESQL.items()),
    *(("sqlite", kind, *case) for kind, case in SQLITE.items()),
]


def model_with(type_: Any) -> Any:
    class Base(DeclarativeBase):
        """The host's."""

    class Thing(LockColumns, Base):
        __tablename__ = "things"
        id: Mapped[int] = mapped_column(primary_key=True)
        status: Mapped[str] = mapped_column(default="new")
        kept = Column("kept", type_, nullable=True)

    return Thing


class ThingPipeline(Pipeline[Any]):
    """Works on new things; a service may change one meanwhile."""

    def __init__(
        self, model: Any, *, by_intent: bool, service: Any = None, **settings: Any
    ) -> None:
        self.model = model
        self.intent = [model.kept] if by_intent else []
        self.guard = [] if by_intent else ["kept"]
        self.service = service
        super().__init__(**settings)

    def ready(self) -> ColumnElement[bool]:
        new: ColumnElement[bool] = self.model.status == "new"
        return new

    async def process(self, item: PipelineItem[Any]) -> Outcome:
        if self.service is not None:
            await self.service(item.id)
        return Apply({"status": "done"}, unless_changed=self.guard)


@pytest.mark.parametrize(
    ("name", "kind", "type_", "first", "second"), CASES, ids=lambda value: str(value)[:30]
)
async def test_a_row_is_written_unless_it_was_changed(
    request: pytest.FixtureRequest, name: str, kind: str, type_: Any, first: str, second: str
) -> None:
    """A row whose column has no equality would be worked on for ever; or what a service wrote
    would be overwritten.
    """
    database: TemporaryDatabase = request.getfixturevalue(f"{name}_database")
    model = model_with(type_)
    await database.create_tables(model.metadata)

    async def write(value: str, key: int) -> None:
        async with database.engine.begin() as connection:
            await connection.exec_driver_sql(f"UPDATE things SET kept = {value} WHERE id = {key}")

    async with database.engine.begin() as connection:
        await connection.execute(
            text("INSERT INTO things (id, status) VALUES (1, 'new'), (2, 'new'), (3, 'new')")
        )
    await write(first, 1)
    await write(first, 2)
    for by_intent in (False, True):
        pipeline = ThingPipeline(model, by_intent=by_intent, min_processing_interval=0)
        async with stepping(database.session_factory, pipeline) as steps:
            assert len(await steps.fetch_once()) == 3
            await steps.work_all()
            assert (counted(steps)["applied"], counted(steps)["changed"]) == (3, 0), kind
        async with database.engine.begin() as connection:
            await connection.execute(text("UPDATE things SET status = 'new'"))
        changes = {1: second, 2: "NULL", 3: first}

        async def service(key: int, changes: dict[int, str] = changes) -> None:
            await write(changes[key], key)

        pipeline = ThingPipeline(
            model, by_intent=by_intent, service=service, min_processing_interval=0
        )
        async with stepping(database.session_factory, pipeline) as steps:
            assert len(await steps.fetch_once()) == 3
            await steps.work_all()
            assert (counted(steps)["applied"], counted(steps)["changed"]) == (0, 3), kind
        await write(first, 1)
        await write(first, 2)
        await write("NULL", 3)


@pytest.mark.parametrize(("type_", "says"), [(NullType, "no type"), (PickleType, "pickles")])
async def test_what_cannot_be_compared_is_refused(
    sqlite_database: TemporaryDatabase, type_: Any, says: str
) -> None:
    """Its rows would be worked on for ever, and nobody would be told why."""
    model = model_with(type_)
    with pytest.raises(ModelError, match=f"kept.*{says}"):
        ThingPipeline(model, by_intent=True)
    async with sqlite_database.engine.begin() as connection:
        await connection.run_sync(model_with(Text).metadata.create_all)
        await connection.execute(text("INSERT INTO things (id, status) VALUES (1, 'new')"))
    pipeline = ThingPipeline(model, by_intent=False)
    async with stepping(sqlite_database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_all()
        assert (counted(steps)["retried"], counted(steps)["changed"]) == (1, 0)
