"""Waiting for what a flow does, as tests of steps need it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from sqlalchemy import func, select

from .flows import Bank

FAST: dict[str, Any] = {"lock_timeout": 6.0, "renew_timeout": 1.8, "fetch_delays": (0.05,)}
"""Settings of pipelines under which replicas notice each other soon. A starved machine may stand
still for so long as a renewal may take, and no open transaction is aborted.
"""


ASKS_AGAIN_S: Final = 0.01
"""How soon a question is asked again for the first time. **Unit** seconds."""
ASKS_AGAIN_S_MAX: Final = 0.05
"""How soon it is asked again in the end: each answer takes time of the loop that works on it.
**Unit** seconds.
"""


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a question is answered with yes; the test's own limit ends it."""
    again_s = ASKS_AGAIN_S
    while not await check():
        await asyncio.sleep(again_s)
        again_s = min(again_s * 1.5, ASKS_AGAIN_S_MAX)


async def is_cut(bank: Bank) -> bool:
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
