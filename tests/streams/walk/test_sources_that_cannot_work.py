"""A flow over a source that can never work is refused, and unhealthy, before it reads a row."""

from __future__ import annotations

from functools import partial

import pytest
from sqlalchemy import Integer, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import ModelError, PipelineManager
from rowlock.streams import TableSource
from rowlock.streams.inputs import high_water
from rowlock.testing import TemporaryDatabase

from .flows import Bank, add_up, open_bank
from .waiting import FAST, is_at_end, until

COLUMNS = "account VARCHAR(50) NOT NULL, cents INTEGER NOT NULL"
WRONG = {
    "sqlite-key": (f"position INTEGER PRIMARY KEY, bucket INTEGER, {COLUMNS}", "AUTOINCREMENT"),
    "sqlite-bucket": (
        f"position INTEGER PRIMARY KEY AUTOINCREMENT, bucket VARCHAR(9), {COLUMNS}",
        "payments.bucket is no bucket: it is VARCHAR(9)",
    ),
    "sqlite-none": (
        f"position INTEGER PRIMARY KEY AUTOINCREMENT, {COLUMNS}",
        "bucket is no bucket: there is no such column",
    ),
    "postgresql-cache": (
        "position bigint GENERATED ALWAYS AS IDENTITY (CACHE 20) PRIMARY KEY, bucket integer,"
        f" {COLUMNS}",
        "CACHE 20",
    ),
    "postgresql-bucket": (
        f"position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, bucket text, {COLUMNS}",
        "payments.bucket is no bucket: it is text",
    ),
    "postgresql-none": (
        f"position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {COLUMNS}",
        "bucket is no bucket: there is no such column",
    ),
}


async def is_unhealthy(manager: PipelineManager, why: str) -> bool:
    health = manager.health()
    return not health.healthy and "ModelError" in str(health) and why in str(health)


async def with_payments(bank: Bank, columns: str) -> None:
    """Have the table of the payments as a host might have made it."""
    async with bank.database.engine.begin() as connection:
        await connection.execute(text("DROP TABLE payments"))
        await connection.execute(text(f"CREATE TABLE payments ({columns})"))


@pytest.mark.parametrize("kind", ["key", "cache", "bucket", "none"])
async def test_a_source_that_cannot_work_is_refused_at_the_start(
    database: TemporaryDatabase, kind: str
) -> None:
    """A flow that can never work is refused at the start, as the docs say, and unhealthy."""
    name = f"{database.url.get_backend_name()}-{kind}"
    if name not in WRONG:
        pytest.skip("the other database")
    columns, why = WRONG[name]
    bank = await open_bank(database, **FAST)
    add_up(bank)
    await with_payments(bank, columns)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()) as manager:
        await until(partial(is_unhealthy, manager, why))
        assert await bank.flow_row() is None


async def test_a_sequence_that_gets_a_cache_stops_a_running_flow(
    postgresql_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flow that can work no longer cuts nothing more, and is unhealthy until it can again."""
    monkeypatch.setattr(high_water, "CHECK_EVERY_S", 0.0)
    bank = await open_bank(postgresql_database, **FAST, retry_delay=0.05, retry_delay_max=0.2)
    add_up(bank)

    async def alter(cache: int) -> None:
        async with bank.database.engine.begin() as connection:
            sql = f"ALTER SEQUENCE payments_position_seq CACHE {cache}"
            await connection.execute(text(sql))

    async with PipelineManager(bank.sessions, bank.streams.pipelines()) as manager:
        await bank.pay(60)
        await until(partial(is_at_end, bank))
        await alter(20)
        await bank.pay(60)
        before = await bank.flow_row()
        await until(partial(is_unhealthy, manager, "CACHE 20"))
        assert (await bank.flow_row()).next_step == before.next_step
        await alter(1)
        await until(partial(is_at_end, bank))
        assert manager.health().healthy


def test_a_bucket_that_is_no_number_is_refused_by_the_model() -> None:
    """A flow would be declared whose rows no replica can find."""

    class Base(DeclarativeBase):
        pass

    class Payment(Base):
        __tablename__ = "payments"
        id: Mapped[int] = mapped_column(Integer, primary_key=True)
        account: Mapped[str] = mapped_column(String(50))
        bucket: Mapped[str | None]

    with pytest.raises(ModelError, match=r"payments\.bucket is no bucket: it is String"):
        TableSource(Payment, position=Payment.id, key=Payment.account, bucket=Payment.bucket)
