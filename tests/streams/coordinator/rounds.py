"""Rounds of a coordinator, one at a time, and what their tests write into the rows of a flow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import update

from rowlock.rows.database_time import database_time_after
from rowlock.streams.coordinator import CoordinatorPipeline
from rowlock.streams.flow_row import ensure_flow
from rowlock.testing import Steps, TemporaryDatabase, stepping

from ..walk.flows import Bank, add_up, open_bank

HOUR = timedelta(hours=1)


def coordinator_of(bank: Bank) -> CoordinatorPipeline:
    (found,) = [one for one in bank.streams.pipelines() if isinstance(one, CoordinatorPipeline)]
    return found


async def created(database: TemporaryDatabase, **settings: Any) -> Bank:
    """Return a bank whose flow is created, and on which nobody works."""
    bank = await open_bank(database, **settings)
    add_up(bank)
    async with stepping(bank.sessions, bank.pipeline()) as steps:
        await ensure_flow(bank.flow.program, steps.run.context.transact)
    return bank


@asynccontextmanager
async def coordinating(bank: Bank) -> AsyncIterator[Rounds]:
    async with stepping(bank.sessions, coordinator_of(bank)) as steps:
        yield Rounds(bank, steps)


class Rounds:
    """Does one round at a time, with no time between them."""

    def __init__(self, bank: Bank, steps: Steps[Any]) -> None:
        self.bank = bank
        self.steps = steps

    async def claim(self) -> int:
        """Claim the flow's row, as if the time for the next round had come; return how many rows
        that were.
        """
        await write(self.bank, "flows", due_at=database_time_after(-HOUR))
        return len(await self.steps.fetch_once())

    async def one(self) -> Any:
        assert await self.claim() == 1
        await self.steps.work_once()
        return await self.bank.flow_row()


async def write(bank: Bank, table: str, *where: Any, **values: Any) -> None:
    async with bank.sessions.begin() as session:
        statement = update(getattr(bank.streams.tables, table)).where(*where)
        await session.execute(statement.values(values))


async def hold_all(bank: Bank) -> None:
    expires = database_time_after(HOUR)
    await write(bank, "shards", lock_token=uuid4(), lock_owner="x", lock_expires_at=expires)
