"""The statements of the history: what is noted is written in batches, what is old is deleted.

Each joins the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from sqlalchemy import Table, delete, func, insert, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.clock import monotonic
from rowlock.database.bulk_dialect import BULK
from rowlock.insight.dialects.insight_dialect import INSIGHT
from rowlock.insight.history.entries import NAMES, EntryKind, EntryValues, stored_key
from rowlock.insight.history.queue import HistoryBatch
from rowlock.insight.migrations import PERSON_CHARS_MAX, REASON_CHARS_MAX
from rowlock.insight.shown import shown
from rowlock.insight.steering.audit import Act
from rowlock.rows.database_time import database_instant, database_time_after
from rowlock.rows.lock_tokens import replica_mark

KEPT_FOR: Final = timedelta(days=7)
"""An entry is deleted when it is older."""
KEPT_MAX: Final = 1_000_000
"""Most entries that are kept, by their numbers."""
DELETED_AT_ONCE_MAX: Final = 1_000
"""Most entries that are deleted in one transaction."""


class ClockReading(NamedTuple):
    """What the database's clock said at a moment of the monotonic one.

    Attributes:
        now: the database's time.
        now_s: the monotonic one, in seconds.
    """

    now: datetime
    now_s: float


async def read_clock(connection: AsyncConnection) -> ClockReading:
    """Ask the database for its time."""
    now: datetime = (await connection.execute(select(database_instant()))).scalar_one()
    return ClockReading(now, monotonic())


async def write_batch(
    connection: AsyncConnection,
    history: Table,
    batch: HistoryBatch,
    *,
    models: Mapping[str, str],
    clock: ClockReading,
) -> None:
    """Write a batch, in one statement; unless it was written by a transaction whose end was not
    heard of.
    """
    was_tried = batch.entries is not None
    entries = batch.stamp(models, replica=replica_mark(), now=clock.now, now_s=clock.now_s)
    if was_tried and await _is_there(connection, history, entries[0]):
        return
    bulk = BULK.of(connection)
    await connection.execute(bulk.insert(history, NAMES), bulk.insert_parameters(NAMES, entries))


async def _is_there(connection: AsyncConnection, history: Table, entry: EntryValues) -> bool:
    named = ("model", "row_id", "at", "kind", "replica")
    same = [history.c[name] == getattr(entry, name) for name in named]
    found = await connection.execute(select(literal(1)).where(*same).limit(1))
    return found.first() is not None


async def write_action(
    connection: AsyncConnection, history: Table, act: Act, *, model: str
) -> None:
    """Write what a person has done to a row of `model`, or to a pipeline."""
    row = {
        "at": database_instant(),
        "model": model,
        "row_id": stored_key(act.row_id) if model else "",
        "pipeline": act.pipeline,
        "kind": EntryKind.ACTION.value,
        "actor": shown(act.by, PERSON_CHARS_MAX),
        "action": act.action,
        "reason": shown(act.reason, REASON_CHARS_MAX),
    }
    await connection.execute(insert(history).values(row))


async def delete_old(connection: AsyncConnection, history: Table) -> int:
    """Delete the oldest entries that need not be kept, and return how many: 0 also if another
    replica is doing so.
    """
    if not await INSIGHT.of(connection).try_hold_name(connection, history.name):
        return 0
    number, at, deleted = history.c.id, history.c.at, 0
    surplus = number <= select(func.max(number) - KEPT_MAX).scalar_subquery()
    # Each in the order of the index that finds it.
    for order, is_old in ((number, surplus), (at, at < database_time_after(-KEPT_FOR))):
        chosen = select(number).where(is_old).order_by(order).limit(DELETED_AT_ONCE_MAX - deleted)
        result = await connection.execute(delete(history).where(number.in_(chosen)))
        deleted += result.rowcount
    return deleted
