"""Waiting for what a flow does, as tests of steps need it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import func, select

from .flows import Bank

FAST: dict[str, Any] = {"lock_timeout": 6.0, "fetch_delays": (0.05,)}
"""Settings of pipelines under which replicas notice each other soon."""


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a question is answered with yes; the test's own limit ends it."""
    while not await check():  # noqa: ASYNC110 - the database tells nobody
        await asyncio.sleep(0.01)


async def is_cut(bank: Bank) -> bool:
    """Whether all that was added is cut."""
    row = await bank.flow_row()
    async with bank.sessions() as session:
        newest = await session.scalar(select(func.max(bank.payment.position))) or 0
    return row is not None and row.upto["payments"] >= newest


async def is_at_end(bank: Bank) -> bool:
    """Whether all that was added is cut, and all that is cut is done."""
    if not await is_cut(bank):
        return False
    row, rows = await bank.flow_row(), await bank.shards()
    return {one.step for one in rows} == {row.next_step}
