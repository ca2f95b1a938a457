"""Splits and joins shards that are held here: a change of ranges is one transaction, and no state
is moved, since states are found by their buckets.

Only what is written is divided: no replay spans a change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import delete, insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.errors import LeaseLost
from rowlock.leases.lasting.fence import Fenced, fence
from rowlock.rows.leased_table import LeasedTable
from rowlock.streams.computing.buckets import BucketRange
from rowlock.streams.cutting.flow_view import Transact
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.own_shard import OwnShard
from rowlock.streams.state.store import count_states


class Resharding:
    """Divides and joins the shards of one flow.

    Args:
        program: the flow.
        leased: the table of the shards.
        transact: runs a transaction.
    """

    def __init__(self, program: FlowProgram, leased: LeasedTable, transact: Transact) -> None:
        self._program = program
        self._leased = leased
        self._transact = transact

    def __repr__(self) -> str:
        return f"<Resharding of {self._program.name}>"

    async def split(self, shard: OwnShard) -> bool:
        """Have `shard` keep the lower half of its buckets, and make a shard of the upper one, which
        anybody may claim; return whether that was done.
        """
        lower, upper = shard.range.halves

        async def work(session: AsyncSession, connection: AsyncConnection) -> None:
            counts = [await self._count(connection, half) for half in (lower, upper)]
            await self._fence(connection, shard, hi=lower.hi, state_keys=counts[0])
            half = {
                "id": self._program.shard_id(upper.lo),
                "flow_id": self._program.id,
                "lo": upper.lo,
                "hi": upper.hi,
                "step": shard.step,
                "version": shard.version,
                "snapshot": shard.snapshot,
                "state_keys": counts[1],
                "state_keys_at": shard.version,
            }
            await connection.execute(insert(self._program.tables.shards).values(half))

        return await self._if_held(work, purpose="split a shard")

    async def join(self, lower: OwnShard, upper: OwnShard) -> bool:
        """Have `lower` take the buckets of its sibling, whose row is deleted; return whether that
        was done.
        """

        async def work(session: AsyncSession, connection: AsyncConnection) -> None:
            both = lower.state_keys + upper.state_keys
            await self._fence(connection, lower, upper, hi=upper.range.hi, state_keys=both)
            shards = self._program.tables.shards
            await connection.execute(delete(shards).where(shards.c.id == upper.item.id))

        # From its COMMIT on there is no lease that a heartbeat could find.
        item = upper.item
        item.is_settling = True
        try:
            item.is_deleted = await self._if_held(work, purpose="join two shards")
        finally:
            item.is_settling = item.is_deleted
        return item.is_deleted

    async def _count(self, connection: AsyncConnection, half: BucketRange) -> int:
        table = self._program.tables.state
        return (await count_states(connection, table, self._program.id, buckets=half)).keys

    async def _if_held(
        self, work: Callable[[AsyncSession, AsyncConnection], Awaitable[None]], *, purpose: str
    ) -> bool:
        try:
            await self._transact(work, purpose=purpose)
        except LeaseLost:
            return False
        return True

    async def _fence(
        self, connection: AsyncConnection, first: OwnShard, *others: OwnShard, **values: int
    ) -> None:
        """Lock shards that are as their holder knows them, and write into the row of the first one;
        joins the caller's transaction.

        Raises:
            LeaseLost: one of them is not; what was written is to be rolled back.
        """
        values["state_keys_at"] = first.version
        assigned = {self._leased.column(name): value for name, value in values.items()}
        rows = [self._fenced(first, assigned)]
        rows += [self._fenced(other, {}) for other in others]
        tokens = await fence(connection, self._leased, rows, waits=True)
        if len(tokens) < len(rows):
            raise first.item.lease_lost()

    def _fenced(self, shard: OwnShard, values: dict[Any, Any]) -> Fenced:
        as_known = {
            self._leased.column("step"): shard.step,
            self._leased.column("version"): shard.version,
        }
        return Fenced(shard.item, values, unless_changed=as_known)
