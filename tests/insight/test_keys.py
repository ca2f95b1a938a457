"""Keys of all kinds, as a person types what a page or a command has shown."""

from __future__ import annotations

import enum
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    Boolean,
    ColumnElement,
    Date,
    DateTime,
    Enum,
    Float,
    LargeBinary,
    Numeric,
    String,
    Uuid,
)
from sqlalchemy.orm import DeclarativeBase, mapped_column
from sqlalchemy.types import TypeDecorator, TypeEngine

from rowlock import LockColumns, ScheduleColumns, UtcDateTime
from rowlock.errors import AppError
from rowlock.insight import Insight, Verdict
from rowlock.testing import TemporaryDatabase

from .shop import Quiet


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class HexId(TypeDecorator[Any]):
    """A UUID that is kept as text, and as nothing but a UUID in Python."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return value.hex

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        return uuid.UUID(value)


class Base(DeclarativeBase):
    """The host's mapped classes."""


ID = uuid.UUID("00000000-0000-4000-8000-00003fa2c1d0")
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
KINDS: dict[str, tuple[TypeEngine[Any], Any, str]] = {
    "Dated": (Date(), date(2026, 11, 22), "a date"),
    "Timed": (DateTime(timezone=True), NOON, "a time"),
    "Plain": (DateTime(), NOON.replace(tzinfo=None), "a time"),
    "Utc": (UtcDateTime(), NOON, "a time"),
    "Counted": (Numeric(20, 0), Decimal(17), "a number"),
    "Measured": (Float(), 1.5, "a number"),
    "Sized": (Enum(Size), Size.LARGE, "one of SMALL, LARGE"),
    "Listed": (Enum("in", "out", name="listed_kind"), "out", "one of in, out"),
    "Typed": (Uuid(as_uuid=False), str(ID), "a UUID"),
    "Raw": (LargeBinary(16), b"a\x00'", "bytes"),
    "Hex": (HexId(), ID, "a HexId"),
    "Flagged": (Boolean(), True, "true or false"),
    "Named": (Uuid(), ID, "a UUID"),
}
MODELS: dict[str, Any] = {
    name: type(
        name,
        (LockColumns, ScheduleColumns, Base),
        {"__tablename__": f"keys_{name.lower()}", "id": mapped_column(kind, primary_key=True)},
    )
    for name, (kind, _, _) in KINDS.items()
}


def pipeline_of(name: str) -> Any:
    """Return a pipeline that wants all rows of a model."""

    def ready(self: Any) -> ColumnElement[bool]:
        condition: ColumnElement[bool] = MODELS[name].id.is_not(None)
        return condition

    return type(f"{name}Pipeline", (Quiet,), {"model": MODELS[name], "ready": ready})()


async def test_what_is_shown_of_a_key_names_its_row(database: TemporaryDatabase) -> None:
    """A person would be told that ready() fails, of a row with a date for its key."""
    await database.create_tables(Base.metadata)
    insight = Insight(database.session_factory, [pipeline_of(name) for name in KINDS])
    async with database.session_factory.begin() as session:
        session.add_all(MODELS[name](id=key) for name, (_, key, _) in KINDS.items())
    for name, (_, _, what) in KINDS.items():
        [row] = (await insight.rows(f"{name}Pipeline", "due")).rows
        [one] = (await insight.explain(name, row.row_id)).pipelines
        assert one.verdict in {Verdict.IN_LINE, Verdict.NOBODY_RUNS}, (name, row.row_id)
        await insight.make_due(name, row.row_id, by="alice", reason="asked for")
        for wrong in ("z\x00", "no key"):
            with pytest.raises(AppError, match=f"is no key of {name}: its id is {what}"):
                await insight.explain(name, wrong)
        for strange in (object(), [17]):
            if name in {"Dated", "Timed", "Raw", "Flagged", "Named"}:
                with pytest.raises(AppError, match=f"is no key of {name}: its id is {what}"):
                    await insight.timeline(name, strange)
    with pytest.raises(AppError, match="the limit of a timeline is 1 to"):
        await insight.timeline("Named", ID, limit="5")  # type: ignore[arg-type]
