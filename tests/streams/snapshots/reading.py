"""What tests of snapshots read, and do to the row of a flow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import update

from rowlock.rows.database_time import database_time_after
from rowlock.streams import StateSnapshot
from rowlock.testing import TemporaryDatabase, run_until_settled

from ..exchange.ledger import FAST
from ..walk.flows import Bank, add_up, is_at_end, open_bank, until

LONG_S = 3600.0
"""Longer than any test: a snapshot comes, or the test's own limit ends it."""
LONG_AGO = database_time_after(-timedelta(days=1))


async def started_bank(database: TemporaryDatabase, **settings: Any) -> Bank:
    """Return a bank whose flow has a row, and some balances."""
    bank = await open_bank(database, **FAST, **settings)
    add_up(bank)
    await bank.pay(60)
    await run_until_settled(bank.sessions, bank.streams.pipelines())
    return bank


async def read(frozen: StateSnapshot, name: str = "add") -> dict[str, int]:
    return {key: value async for key, value in frozen.items(name, int)}


async def change_flow(bank: Bank, **values: Any) -> None:
    async with bank.sessions.begin() as session:
        await session.execute(update(bank.streams.tables.flows).values(values))


def is_requested(bank: Bank, count: int) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return bool((await bank.flow_row()).snapshots_requested == count)

    return check


async def do_more(bank: Bank) -> None:
    await bank.pay(60)
    await until(partial(is_at_end, bank))
