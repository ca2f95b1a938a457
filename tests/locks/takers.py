"""Tasks that take locks and hold them until they are told to go."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable
    from contextlib import AbstractAsyncContextManager

    from rowlock import ResourceLocker

NAMESPACE = "volumes"
TURNS_MAX = 20
"""More turns of the loop than any hand-over takes."""


async def settle() -> None:
    """Let the loop turn until everybody waits for somebody else's next step."""
    for _ in range(TURNS_MAX):
        await asyncio.sleep(0)


class LockHolder:
    """One task inside, or waiting to get inside, a lock."""

    def __init__(
        self, context: AbstractAsyncContextManager[object], keys: Iterable[Hashable] = ()
    ) -> None:
        """Start the task; it has not run yet."""
        self.keys = tuple(keys)
        self.holds = False
        self._may_go = asyncio.Event()
        self.task = asyncio.create_task(self._hold(context))

    async def _hold(self, context: AbstractAsyncContextManager[object]) -> None:
        async with context:
            self.holds = True
            try:
                await self._may_go.wait()
            finally:
                self.holds = False

    def let_go(self) -> None:
        self._may_go.set()

    async def finish(self) -> None:
        self.let_go()
        await self.task

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.wait((self.task,))


async def take(locker: ResourceLocker, *keys: Hashable, timeout: float | None = None) -> LockHolder:
    """Start a task that takes `keys`, and return it once it holds them or waits."""
    taker = LockHolder(locker.lock_ctx(NAMESPACE, keys, timeout=timeout), keys)
    await settle()
    return taker


async def go_inside(locker: ResourceLocker) -> LockHolder:
    """Start a task that takes the lock of the set, and return it once it is inside or waits."""
    lock, _ = locker.get_lockset(NAMESPACE)
    taker = LockHolder(lock)
    await settle()
    return taker
