"""Flows over logs and over several sources, on both databases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from random import Random
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import DeclarativeBase

from rowlock.rows.database_time import database_time_after
from rowlock.streams.computing.handlers import StepContext
from rowlock.streams.streams import Streams
from rowlock.testing import TemporaryDatabase, run_until_settled

from .payments import new_base, pay

pytestmark = pytest.mark.either_database(but=["test_a_flow_over_a_table_and_a_log"])

SEED = 5


@dataclass(frozen=True)
class Usage:
    account: str
    units: int


async def states(database: TemporaryDatabase, streams: Streams) -> dict[str, int]:
    c = streams.tables.state.c
    async with database.session_factory() as session:
        return {key: int(value) for key, value in await session.execute(select(c.key, c.value))}


async def test_a_flow_over_a_log(database: TemporaryDatabase) -> None:
    """Usage would be lost or billed twice, since meters send all of it several times."""

    class Base(DeclarativeBase):
        pass

    streams = Streams(Base)
    usage = streams.log("usage", Usage, key=attrgetter("account"))
    metering = streams.flow("metering", usage, shards=4, step_rows_max=15)

    @metering.by_key(state=int)
    def meter(step: StepContext, account: str, units: int | None, events: Sequence[Usage]) -> int:
        return (units or 0) + sum(event.units for event in events)

    await database.create_tables(Base.metadata)
    rng, expected = Random(SEED), Counter[str]()
    batches = [
        [Usage(f"a{rng.randrange(20)}", rng.randrange(9)) for _ in range(rng.randrange(1, 9))]
        for _ in range(20)
    ]
    for batch in batches:
        for event in batch:
            expected[event.account] += event.units
    sent = [seq for seq in range(len(batches)) for _ in range(rng.randrange(1, 4))]
    rng.shuffle(sent)
    for half in (sent[: len(sent) // 2], sent[len(sent) // 2 :]):
        for seq in half:
            async with database.session_factory.begin() as session:
                await usage.append(session, batches[seq], producer="meter", seq=seq)
        await run_until_settled(database.session_factory, streams.pipelines())
    assert await states(database, streams) == expected


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


async def test_a_flow_that_begins_behind_expired_events(database: TemporaryDatabase) -> None:
    """A new flow over an old log would stop at its first step."""

    class Base(DeclarativeBase):
        pass

    streams = Streams(Base)
    usage = streams.log("usage", Usage, key=attrgetter("account"))
    flow = streams.flow("late", usage, shards=2)

    @flow.by_key(state=int)
    def meter(step: StepContext, account: str, units: int | None, events: Sequence[Usage]) -> int:
        return (units or 0) + sum(event.units for event in events)

    await database.create_tables(Base.metadata)
    async with database.session_factory.begin() as session:
        first = await usage.append(session, [Usage("a", 1), Usage("b", 2)])
    async with database.engine.begin() as connection:
        old = update(streams.tables.log).values(at=database_time_after(timedelta(days=-8)))
        await connection.execute(old)
        assert await usage.expire(connection, first.last) == 1
    await run_until_settled(database.session_factory, streams.pipelines())
    assert await states(database, streams) == {"b": 2}
