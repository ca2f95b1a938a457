"""What was left behind in rows: leases that ended long ago, and names that no pipeline of the app
has.

The one idea: no index finds these rows, and none may (a heartbeat would write it). So only the
newest rows are looked at, by their key, and the answer says how many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.insight.checking.finding import Finding, Level
from rowlock.insight.shown import duration, shown
from rowlock.rows.database_time import database_now, database_time_after
from rowlock.rows.eligibility import OWNER_SEPARATOR
from rowlock.rows.leased_table import LeasedTable

LOOKED_MAX: Final = 100_000
"""Among how many rows, the newest by their key, leftovers are looked for."""
OWNERS_MAX: Final = 200
"""Most owners that are told apart."""
LONG_AGO: Final = timedelta(minutes=10)
"""A lease that ended before is left over: replicas take over within seconds."""
NAMES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class OwnerSeen:
    """Rows that carry one owner.

    Attributes:
        owner: as it stands in them.
        kept: how many are kept for it without a lease, because it stepped back.
        ended: how many leases of it ended long ago.
        ended_s: how long ago the first of these did.
    """

    owner: str | None
    kept: int
    ended: int
    ended_s: float


async def look_for_leftovers(
    connection: AsyncConnection, leased: LeasedTable
) -> tuple[OwnerSeen, ...]:
    """Return what was left behind in the newest rows; joins the caller's transaction."""
    attribute = leased.attribute
    newest = (
        select(
            attribute("lock_owner").label("owner"),
            attribute("lock_token").label("token"),
            attribute("lock_expires_at").label("expires_at"),
        )
        .order_by(attribute(leased.key_name).desc())
        .limit(LOOKED_MAX)
        .subquery()
    )
    columns = newest.c
    is_kept = and_(columns.owner.is_not(None), columns.token.is_(None))
    has_ended = columns.expires_at <= database_time_after(-LONG_AGO)
    ended_at = case((has_ended, columns.expires_at))
    statement = (
        select(
            columns.owner,
            func.sum(case((is_kept, 1), else_=0)),
            func.sum(case((has_ended, 1), else_=0)),
            database_now(),
            func.min(ended_at, type_=columns.expires_at.type),
        )
        .where(or_(is_kept, has_ended))
        .group_by(columns.owner)
        .limit(OWNERS_MAX)
    )
    rows = (await connection.execute(statement)).all()
    return tuple(_owner_of(row) for row in rows)


def _owner_of(row: Any) -> OwnerSeen:
    ended_s = 0.0 if row[4] is None else (row[3] - row[4]).total_seconds()
    owner = None if row[0] is None else str(row[0])
    return OwnerSeen(owner, int(row[1]), int(row[2]), ended_s)


def leftover_findings(
    table: str, owners: Sequence[OwnerSeen], pipelines: Collection[str]
) -> Iterable[Finding]:
    """Return what the leftovers come to, for an app with these pipelines."""
    unknown = [one for one in owners if one.kept and not _is_of(one.owner, pipelines)]
    if unknown:
        rows = sum(one.kept for one in unknown)
        names = ", ".join(shown(one.owner, 60) for one in unknown[:NAMES_SHOWN])
        more = f" and {len(unknown) - NAMES_SHOWN} more" if len(unknown) > NAMES_SHOWN else ""
        yield Finding(
            table,
            Level.WARN,
            f"{_rows(rows)} kept for {names}{more}, which this app does not have",
            'the next sweep frees them, or: rowlock release MODEL ID --reason "..."',
        )
    ended = [one for one in owners if one.ended]
    if ended:
        rows = sum(one.ended for one in ended)
        oldest = duration(max(one.ended_s for one in ended))
        yield Finding(
            table,
            Level.WARN,
            f"{_rows(rows)} left with a lease that ended up to {oldest} ago",
            "a replica that runs takes them over or sweeps them: rowlock status",
        )


def _is_of(owner: str | None, pipelines: Collection[str]) -> bool:
    # What follows the separator says for what a pipeline or a service holds the row.
    return owner is not None and owner.partition(OWNER_SEPARATOR)[0] in pipelines


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"
