"""How rows get in, and which of them still want something.

The one idea: rows come as a host's services add them, each in a transaction of its own, with a hint in any of the ways in which one
may be given: after the commit, before it, with it, never, or for a transaction that is rolled back first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, or_, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import Pipeline, hint_after_commit, pipeline_hinter
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing.ledger import Place
from rowlock.testing.simulation.chronicle import Chronicle, place_of_row
from rowlock.testing.simulation.ports import Harbour

__all__ = ["Settling", "put_at_once", "put_rows", "tables_of"]


async def put_rows(
    session_factory: async_sessionmaker[AsyncSession],
    rows: Sequence[object],
    *,
    pace_s: float,
    chronicle: Chronicle,
    rng: Random,
) -> None:
    """Add `rows` one after the other, with rests between."""
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
        chronicle.note(
            f"a {type(row).__name__} comes{way.__name__.replace('_', ' ').replace(' add', ' without a hint')}"
        )
        await way(session_factory, row)


async def put_at_once(session_factory: async_sessionmaker[AsyncSession], rows: Sequence[object]) -> None:
    """Add `rows` together."""
    async with session_factory.begin() as session:
        session.add_all(rows)


async def _add(session_factory: async_sessionmaker[AsyncSession], row: object) -> None:
    async with session_factory.begin() as session:
        session.add(row)


async def _hint_afterwards(session_factory: async_sessionmaker[AsyncSession], row: object) -> None:
    await _add(session_factory, row)
    pipeline_hinter.hint_fetch(type(row))


async def _hint_with_the_commit(session_factory: async_sessionmaker[AsyncSession], row: object) -> None:
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


class Settling:
    """Knows which rows have not settled: those that still want something, and those with a lock column that is set.

    Attributes:
        bound_s: how long settling may take, by the settings of the pipelines.
    """

    def __init__(
        self,
        harbour: Harbour,
        pipelines: Sequence[Pipeline[Any]],
        unsettled: Callable[[Pipeline[Any]], ColumnElement[bool]],
    ) -> None:
        """Look at the tables of `pipelines`, and of the rows that they lock."""
        self._harbour, self._pipelines, self._unsettled = harbour, pipelines, unsettled
        self.bound_s = max((_bound_s(pipeline) for pipeline in pipelines), default=0.0)

    def left(self) -> list[tuple[Place, str]]:
        """Return the rows that have not settled, each with what is the matter."""
        tables = tables_of(self._pipelines).values()
        with self._harbour.eye.connect() as connection:
            return [one for leased in tables for one in _left_in(connection, leased, self._wants(leased))]

    def _wants(self, leased: LeasedTable[Any]) -> ColumnElement[bool]:
        own = [pipeline for pipeline in self._pipelines if pipeline.leased.table is leased.table]
        wants = or_(False, *(self._unsettled(pipeline) for pipeline in own))
        return and_(wants, leased.column("parked_at").is_(None)) if leased.has_schedule else wants


def tables_of(pipelines: Sequence[Pipeline[Any]]) -> dict[str, LeasedTable[Any]]:
    """Return the tables that pipelines lease rows of, related ones among them, by name."""
    locked = [lock.leased for pipeline in pipelines for lock in pipeline.declared_locks]
    return {leased.table.name: leased for leased in (*(pipeline.leased for pipeline in pipelines), *locked)}


def _left_in(connection: Connection, leased: LeasedTable[Any], wants: ColumnElement[bool]) -> list[tuple[Place, str]]:
    owner, token = leased.column("lock_owner"), leased.column("lock_token")
    held = or_(*(leased.column(name).is_not(None) for name in ("lock_token", "lock_owner", "lock_expires_at")))
    statement = select(leased.key, wants, owner, token).where(or_(wants, held)).order_by(leased.key)
    return [
        (place_of_row(leased.table.name, key), _matter(is_wanting, holder, by))
        for key, is_wanting, holder, by in connection.execute(statement)
    ]


def _matter(is_wanting: object, owner: str | None, token: object) -> str:
    held = f"leased by {owner}" if token is not None else f"kept for {owner}" if owner is not None else ""
    return " and ".join(part for part in ("still wants work" if is_wanting else "", held) if part) or "has an expiry"


def _bound_s(pipeline: Pipeline[Any]) -> float:
    # What is the longest way there: an attempt that hangs and ignores its cancellation leaves its lease behind, nobody comes back
    # for it, and a sweep clears it; then it is tried again, and rests as long as a row may.
    settings = pipeline.settings
    parts = (
        settings.process_timeout,
        settings.cancel_grace,
        2 * settings.lock_timeout,
        3 * settings.sweep_after,
        settings.retry_delay_max,
        settings.min_processing_interval,
        *settings.fetch_delays,
    )
    return 2 * sum(part.total_seconds() for part in parts)
