"""How rows get in.

The one idea: rows come as a host's services add them, each in a transaction of its own, with a hint
in any of the ways in which one may be given: after the commit, before it, with it, never, or for a
transaction that is rolled back first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import hint_after_commit, pipeline_hinter

from .trace import Trace


async def put_rows(
    session_factory: async_sessionmaker[AsyncSession],
    rows: Sequence[object],
    *,
    pace_s: float,
    trace: Trace,
    rng: Random,
) -> None:
    ways: tuple[Callable[..., Any], ...] = (
        _hint_with_the_commit,
        _hint_afterwards,
        _hint_too_early,
        _hint_for_nothing,
        _add,
    )
    for row in rows:
        await asyncio.sleep(pace_s * rng.choice((0, 0.02, 0.2)))
        way = rng.choice(ways)
        trace.record(
            f"a {type(row).__name__}"
            f" comes{way.__name__.replace('_', ' ').replace(' add', ' without a hint')}"
        )
        await way(session_factory, row)


async def put_at_once(
    session_factory: async_sessionmaker[AsyncSession], rows: Sequence[object]
) -> None:
    async with session_factory.begin() as session:
        session.add_all(rows)


async def _add(session_factory: async_sessionmaker[AsyncSession], row: object) -> None:
    async with session_factory.begin() as session:
        session.add(row)


async def _hint_afterwards(session_factory: async_sessionmaker[AsyncSession], row: object) -> None:
    await _add(session_factory, row)
    pipeline_hinter.hint_fetch(type(row))


async def _hint_with_the_commit(
    session_factory: async_sessionmaker[AsyncSession], row: object
) -> None:
    async with session_factory.begin() as session:
        session.add(row)
        hint_after_commit(session, type(row))


async def _hint_too_early(session_factory: async_sessionmaker[AsyncSession], row: object) -> None:
    async with session_factory.begin() as session:
        session.add(row)
        await session.flush()
        pipeline_hinter.hint_fetch(type(row))
        await asyncio.sleep(0.01)


async def _hint_for_nothing(session_factory: async_sessionmaker[AsyncSession], row: object) -> None:
    async with session_factory() as session:
        session.add(row)
        await session.flush()
        hint_after_commit(session, type(row))
        pipeline_hinter.hint_fetch(type(row))
        await session.rollback()
    await _add(session_factory, row)
