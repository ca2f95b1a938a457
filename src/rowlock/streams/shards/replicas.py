"""Which replicas work on a flow, and which shards are this one's to claim.

Each replica writes a row from time to time and reads those of the others; all of them compute the
same assignment from the same rows (``layout.py``). A row that is out of date delays a handover and
breaks nothing: whoever holds the lease works.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from sqlalchemy import and_, case, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.database.bulk_dialect import BULK
from rowlock.rows.database_time import database_instant, database_now
from rowlock.streams.computing.buckets import BucketRange
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.layout import assigned, check_layout

REPLICAS_MAX = 1000
"""Most replicas of a flow that are told apart."""
PRESENCE_PARTS = 6
"""A replica says so many times within `lock_timeout` that it is there."""
PRESENT_FOR = 3.0
"""A replica that was not seen for so many times the rest between two of its rows is gone."""

_PRESENCE = ("flow_id", "id", "name", "code_version", "shards", "seen_at")


class Presence(NamedTuple):
    """How replicas know of each other.

    Attributes:
        every: how often each of them says that it is there.
        lasts: how long a replica counts as there after it was seen.
    """

    every: timedelta
    lasts: timedelta


def presence(lock_timeout: timedelta) -> Presence:
    """Return how replicas know of each other whose leases last for `lock_timeout`."""
    every = lock_timeout / PRESENCE_PARTS
    return Presence(every, every * PRESENT_FOR)


class Replicas:
    """The replicas of one flow, as one of them sees it.

    Attributes:
        id: of this replica; another one in each life of a pipeline.
        mine: the ranges that this replica is to hold, by the key of the shard's row.
        wanted: how many shards there are to be.
        present_for: how long a replica counts as there after it was seen.
    """

    def __init__(self, program: FlowProgram) -> None:
        self.id: UUID = uuid4()
        self.mine: dict[int, BucketRange] = {}
        self.wanted = program.shards_at_first
        self._program = program
        self.present_for = timedelta(seconds=PRESENT_FOR)
        self._name = f"{socket.gethostname()}:{os.getpid()}"[:255]

    def __repr__(self) -> str:
        return f"<Replicas of {self._program.name}, {len(self.mine)} shards are ours>"

    async def appear(self, connection: AsyncConnection, *, shards: int) -> None:
        """Write this replica's row; joins the caller's transaction."""
        program, table = self._program, self._program.tables.replicas
        dialect = BULK.of(connection)
        inserted = dialect.insert(table, _PRESENCE)
        now = await _now(connection)
        statement = inserted.on_conflict_do_update(
            index_elements=[table.c.flow_id, table.c.id],
            set_={name: inserted.excluded[name] for name in ("shards", "seen_at")},
        )
        row = (program.id, self.id, self._name, program.code_version, shards, now)
        given = dialect.insert_parameters(_PRESENCE, [row])
        await connection.execute(statement, given)

    async def disappear(self, connection: AsyncConnection) -> None:
        """Delete this replica's row; joins the caller's transaction."""
        table = self._program.tables.replicas
        own = (table.c.flow_id == self._program.id, table.c.id == self.id)
        await connection.execute(delete(table).where(*own))
        await self.tell_coordinator(connection)

    async def tell_coordinator(self, connection: AsyncConnection) -> None:
        """Have the coordinator look soon, since there are more replicas or fewer; joins the
        caller's transaction.
        """
        flows = self._program.tables.flows
        rests = (flows.c.id == self._program.id, flows.c.due_at > database_now())
        await connection.execute(update(flows).where(*rests).values(due_at=database_now()))

    async def look(self, connection: AsyncConnection, *, shards_wanted: int | None) -> None:
        """Read who is there and who holds what, and find what is this replica's; joins the caller's
        transaction.

        Raises:
            ShardsMissingError: the shards do not have each bucket once.
        """
        program, table = self._program, self._program.tables.replicas
        since = await _now(connection) - self.present_for
        present = select(table.c.id).where(table.c.flow_id == program.id, table.c.seen_at > since)
        seen = (await connection.scalars(present.order_by(table.c.id).limit(REPLICAS_MAX))).all()
        there = {str(one) for one in seen} | {str(self.id)}
        shards = program.tables.shards
        is_held = and_(
            shards.c.lock_token.is_not(None), shards.c.lock_expires_at > database_instant()
        )
        holder: Any = case((is_held, shards.c.replica), else_=None)
        of_flow = select(shards.c.id, shards.c.lo, shards.c.hi, holder).where(
            shards.c.flow_id == program.id
        )
        rows = (await connection.execute(of_flow)).all()
        ranges = {BucketRange(lo, hi): key for key, lo, hi, _ in rows}
        check_layout(program.name, ranges)
        holders = {BucketRange(lo, hi): _text(by) for _, lo, hi, by in rows}
        self.wanted = shards_wanted or len(rows)
        self._assign(holders, there, ranges)

    def _assign(
        self,
        holders: Mapping[BucketRange, str | None],
        there: set[str],
        ranges: Mapping[BucketRange, int],
    ) -> None:
        by = assigned(holders, there, wanted=self.wanted)
        own = str(self.id)
        self.mine = {ranges[each]: each for each, holder in by.items() if holder == own}


async def _now(connection: AsyncConnection) -> datetime:
    now = await connection.scalar(select(database_instant()))
    assert isinstance(now, datetime)
    return now


def _text(replica: UUID | None) -> str | None:
    return None if replica is None else str(replica)
