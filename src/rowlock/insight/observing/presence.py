"""A replica's row among the replicas: written again and again while it lives, deleted when it
stops. Every function joins the caller's transaction.

Leases, never this table, decide who owns what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.database.bulk_dialect import BULK
from rowlock.insight.tables import InsightTables
from rowlock.rows.database_time import database_instant, database_time_after

DEAD_AFTER: Final = timedelta(seconds=15)
"""A replica that has been silent for so long counts as dead."""
SWEPT_AFTER: Final = timedelta(hours=1)
"""The row of a replica that has been silent for so long is deleted."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What the database answered.

    Attributes:
        at: its time.
        paused: the pipelines of this replica that are paused.
    """

    at: datetime
    paused: frozenset[str]


async def beat(
    connection: AsyncConnection,
    tables: InsightTables,
    *,
    row: Mapping[str, Any],
    pipelines: Sequence[str],
) -> Beat:
    """Say that the replica lives, and ask which of its `pipelines` are paused: one statement, and
    a second one if the replica has no row yet.

    Args:
        connection: of a transaction that may write.
        tables: the optional tables; a missing one is left out.
        row: the replica's, without its times.
        pipelines: of this replica.
    """
    answer: list[ColumnElement[Any]] = [database_instant().label("now")]
    if tables.controls is not None:
        answer += [tables.is_paused(name) for name in pipelines]
    if tables.replicas is None:
        found: Any = (await connection.execute(select(*answer))).one()
    else:
        again = update(tables.replicas).where(tables.replicas.c.mark == row["mark"])
        changing = {name: row[name] for name in ("draining", "report")}
        written = again.values(seen_at=database_instant(), **changing).returning(*answer)
        found = (await connection.execute(written)).first()
        if found is None:
            found = (await connection.execute(select(*answer))).one()
            await _appear(connection, tables.replicas, row, now=found[0])
    paused = (name for name, is_paused in zip(pipelines, found[1:], strict=False) if is_paused)
    return Beat(found[0], frozenset(paused))


async def _appear(
    connection: AsyncConnection, replicas: Table, row: Mapping[str, Any], *, now: datetime
) -> None:
    new = {**row, "seen_at": now, "started_at": now}
    bulk = BULK.of(connection)
    inserted = bulk.insert(replicas, tuple(new))
    # A COMMIT whose answer was lost has written it.
    statement = inserted.on_conflict_do_update(
        index_elements=[replicas.c.mark], set_={"seen_at": inserted.excluded["seen_at"]}
    )
    await connection.execute(statement, bulk.insert_parameters(tuple(new), [tuple(new.values())]))


async def disappear(connection: AsyncConnection, replicas: Table, mark: str) -> None:
    """Delete the row of a replica that stops."""
    await connection.execute(delete(replicas).where(replicas.c.mark == mark))


async def sweep(connection: AsyncConnection, replicas: Table) -> int:
    """Delete the rows of replicas that died long ago, and return how many."""
    silent = replicas.c.seen_at < database_time_after(-SWEPT_AFTER)
    return (await connection.execute(delete(replicas).where(silent))).rowcount
