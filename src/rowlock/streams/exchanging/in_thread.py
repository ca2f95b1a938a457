"""Runs computations in a thread, so that the event loop is free meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from rowlock.clock import is_real

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread; on virtual time, where threads take none, here."""
    return await asyncio.to_thread(work) if is_real() else work()
