"""Flows over logs and over several sources; and sources that can never work, which are refused
before a row is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import pytest
from sqlalchemy import Integer, String, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import ModelError, PipelineManager
from rowlock.streams import TableSource
from rowlock.streams.computing.handlers import StepContext
from rowlock.streams.inputs import high_water
from rowlock.streams.streams import Streams
from rowlock.testing import TemporaryDatabase, run_until_settled

from .flows import FAST, Bank, add_up, is_at_end, new_base, open_bank, pay, until

pytestmark = pytest.mark.either_database(
    but=[
        "test_a_flow_over_a_table_and_a_log",
        "test_a_source_that_cannot_work_is_refused_at_the_start",
    ]
)


@dataclass(frozen=True)
class Usage:
    account: str
    units: int


async def states(database: TemporaryDatabase, streams: Streams) -> dict[str, int]:
    c = streams.tables.state.c
    async with database.session_factory() as session:
        return {key: int(value) for key, value in await session.execute(select(c.key, c.value))}


async def test_a_flow_over_a_table_and_a_log(database: TemporaryDatabase) -> None:
    """Events of the same key would go to two shards, or one source would hold back the other."""
    base, payment = new_base()
    streams = Streams(base)
    usage = streams.log("usage", Usage, key=attrgetter("account"))
    flow = streams.flow("both", payment, usage, shards=4, step_rows_max=20)

    @flow.by_key(state=int)
    def balance(step: StepContext, key: str, before: int | None, events: Sequence[Any]) -> int:
        paid = sum(event.cents for event in events if not isinstance(event, Usage))
        used = sum(event.units for event in events if isinstance(event, Usage))
        return (before or 0) + paid - used

    await database.create_tables(base.metadata)
    expected = Counter[str]()
    for n in range(12):
        paid = [(f"a{k % 7}", k) for k in range(n, n + 9)]
        used = [Usage(f"a{k % 5}", 2 * k) for k in range(n)]
        await pay(database.session_factory, payment, paid)
        async with database.session_factory.begin() as session:
            await usage.append(session, used)
        for account, cents in paid:
            expected[account] += cents
        for event in used:
            expected[event.account] -= event.units
    await run_until_settled(database.session_factory, streams.pipelines())
    assert await states(database, streams) == expected


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


@pytest.mark.both_databases
async def test_a_source_that_cannot_work_is_refused_at_the_start(
    database: TemporaryDatabase,
) -> None:
    """A flow that can never work is refused at the start, as the docs say, and unhealthy."""
    bank = await open_bank(database, **FAST)
    add_up(bank)
    for kind, (columns, why) in WRONG.items():
        if kind.startswith(database.dialect_name):
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
