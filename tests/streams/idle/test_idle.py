"""What a flow asks of its database while it has nothing to do, over minutes of virtual time."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event, insert
from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock import PipelineManager, pipeline_hinter
from rowlock.clock import monotonic
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.cutter import HOLDS_FOR_S
from rowlock.testing import TemporaryDatabase, virtual_time

from ..walk.flows import Bank, add_up, is_at_end, open_bank, until

SETTLED_S = 120.0
"""By then all rests have grown to their longest."""
WINDOW_S = 1800.0
STATEMENTS_PER_S_MAX = 0.5
POLL_S = 5.0
SLACK_S = 1.0
"""For the step itself, of which nothing but rests takes virtual time."""


@contextmanager
def counted(engine: AsyncEngine) -> Iterator[Counter[str]]:
    seen: Counter[str] = Counter()

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        if statement.startswith("BEGIN"):
            # SQLite's is a statement of the driver; on PostgreSQL none is counted.
            return
        table = re.search(r"(?:FROM|UPDATE|INTO) (\w+)", statement)
        seen[f"{statement.split(maxsplit=1)[0]} {table[1] if table else ''}"] += 1

    event.listen(engine.sync_engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine.sync_engine, "before_cursor_execute", note)


async def idle_bank(database: TemporaryDatabase, **settings: Any) -> Bank:
    """Return a bank with the settings that a flow has by itself."""
    bank = await open_bank(database, **{"poll_interval": POLL_S, **settings})
    add_up(bank)
    await bank.pay(10)
    return bank


@virtual_time
async def test_statements(virtual_database: TemporaryDatabase) -> None:
    """A thousand idle flows would keep a database busy."""
    bank = await idle_bank(virtual_database)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await until(lambda: is_at_end(bank))
        await asyncio.sleep(SETTLED_S)
        with counted(virtual_database.engine) as seen:
            await asyncio.sleep(WINDOW_S)
    assert sum(seen.values()) <= STATEMENTS_PER_S_MAX * WINDOW_S, seen


@virtual_time
async def test_looks_of_sources(virtual_database: TemporaryDatabase) -> None:
    """Each look at a flow would list the open transactions of the server."""
    bank = await idle_bank(virtual_database)
    async with PipelineManager(bank.sessions, [bank.pipeline()]):
        await until(lambda: is_at_end(bank))
        await asyncio.sleep(SETTLED_S)
        with counted(virtual_database.engine) as seen:
            await asyncio.sleep(WINDOW_S / 3)
        assert seen["SELECT sqlite_sequence"] <= 2 + WINDOW_S / 3 / HOLDS_FOR_S, seen


@virtual_time
async def test_a_busy_replica_goes_by_what_it_knows(virtual_database: TemporaryDatabase) -> None:
    """Each step would begin with a look at the flow's row, since the replica hears its own hint."""
    bank = await idle_bank(virtual_database, step_rows_max=5)
    pipeline = bank.pipeline()
    async with PipelineManager(bank.sessions, [pipeline]):
        await until(lambda: is_at_end(bank))
        wakes = pipeline.runner.wakes
        async with bank.sessions.begin() as session:
            payment = {"account": "a", "bucket": bucket_of("a"), "cents": 1}
            await session.execute(insert(bank.payment.__table__).values([payment] * 50))
        await until(lambda: is_at_end(bank))
        assert pipeline.runner.wakes == wakes


@virtual_time
async def test_a_row_without_a_hint(virtual_database: TemporaryDatabase) -> None:
    """Rows of raw SQL would wait for longer than the setting says."""
    bank = await idle_bank(virtual_database)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await until(lambda: is_at_end(bank))
        for _ in range(3):
            await asyncio.sleep(SETTLED_S)
            async with bank.sessions.begin() as session:
                await session.execute(
                    insert(bank.payment.__table__).values(
                        account="a", bucket=bucket_of("a"), cents=1
                    )
                )
            began = monotonic()
            await until(lambda: is_at_end(bank))
            assert monotonic() - began <= POLL_S + SLACK_S


@virtual_time
async def test_a_hint_ends_the_rest(virtual_database: TemporaryDatabase) -> None:
    """An event would wait for the poll of an idle flow."""
    bank = await idle_bank(virtual_database)
    async with PipelineManager(bank.sessions, bank.streams.pipelines()):
        await until(lambda: is_at_end(bank))
        await asyncio.sleep(SETTLED_S)
        await bank.pay(1)
        began = monotonic()
        pipeline_hinter.hint_fetch(bank.flow.topic)
        await until(lambda: is_at_end(bank))
        assert monotonic() - began <= SLACK_S


@virtual_time
async def test_a_new_replica_is_seen_by_polling(virtual_database: TemporaryDatabase) -> None:
    """Without notifications a second replica would wait a minute for its share."""
    bank = await idle_bank(virtual_database, shards=8)
    async with PipelineManager(bank.sessions, [bank.pipeline()]):
        await until(lambda: is_at_end(bank))
        await asyncio.sleep(SETTLED_S)
        began = monotonic()
        async with PipelineManager(bank.sessions, [bank.pipeline()]):

            async def is_shared() -> bool:
                held = Counter(one.replica for one in await bank.shards() if one.lock_token)
                return sorted(held.values()) == [4, 4]

            await until(is_shared)
            # Its own fetches rest for up to 5 seconds, too.
            assert monotonic() - began <= 2 * POLL_S + SLACK_S
