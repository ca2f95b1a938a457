"""Holds off those of this process who lock rows by a lockset, around a transaction that leases rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

from rowlock.database.binds import bind_of
from rowlock.database.transaction import SessionFactory
from rowlock.errors import LockWaitTimeout
from rowlock.leases.dialects import dialect_named
from rowlock.rows.leased_table import LeasedTable


@asynccontextmanager
async def lockset_guard(
    session_factory: SessionFactory, leased: LeasedTable, *, timeout: timedelta
) -> AsyncIterator[frozenset[Any]]:
    """Hold off those of this process who take rows by a lockset, around a transaction that leases rows; gives their keys.

    Raises:
        LockWaitTimeout: somebody kept the lockset still for so long.
    """
    dialect = dialect_named(bind_of(session_factory(), leased).dialect.name)
    async with AsyncExitStack() as stack:
        wait_s = timeout.total_seconds()
        try:
            # Bounded by itself: once leases are sent for, they must not be dropped by anybody's timeout.
            async with asyncio.timeout(wait_s):
                held = await stack.enter_async_context(dialect.excluding(leased))
        except TimeoutError:
            raise LockWaitTimeout(namespace=leased.table.name, keys=(), timeout_s=wait_s) from None
        yield held
