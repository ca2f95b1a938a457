"""The exchange through the database: among shards that several replicas hold, or that are at
different steps.

The one idea: what was sent is recorded under the lease of the sender, and stays until no shard can
need it any more. So each shard goes on, or begins anew, by itself. It is read only once all shards
have sent; their parcels have all buckets then, whatever layouts they were sent from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import and_, or_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.database.bulk_dialect import BULK
from rowlock.leases.lasting.fence import Fenced, fence
from rowlock.rows.leased_table import LeasedTable
from rowlock.streams.computing.buckets import BucketRange, merged
from rowlock.streams.computing.digests import digest_of
from rowlock.streams.computing.hashing import BUCKETS
from rowlock.streams.cutting.flow_view import Transact
from rowlock.streams.exchanging.exchange import Events, Exchange, Parcels
from rowlock.streams.exchanging.in_thread import in_thread
from rowlock.streams.exchanging.parcels import (
    Parcel,
    ReceivingStage,
    addressed,
    are_complete,
    arrived,
    packed,
    unpacked,
)
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.own_shard import OwnShard
from rowlock.streams.sliced_writes import write_rows

_COLUMNS = ("flow_id", "step", "stage", "lo", "to_lo", "hi", "to_hi", "payload")


class _Written(NamedTuple):
    """A row: a part of what a shard sends in a step."""

    shard: OwnShard
    step: int
    to: BucketRange
    payload: str


class TableExchange(Exchange):
    """Writes messages of one flow into the database, and reads them.

    Args:
        program: the flow.
        leased: the table of the shards.
        transact: runs a transaction.
    """

    def __init__(self, program: FlowProgram, leased: LeasedTable, transact: Transact) -> None:
        self._program = program
        self._table = program.tables.exchange
        self._leased = leased
        self._transact = transact
        self._step = leased.column("step")

    def __repr__(self) -> str:
        return f"<TableExchange of {self._program.name}>"

    async def read_sent(self, connection: AsyncConnection, shards: Sequence[OwnShard]) -> None:
        """Read which messages shards have sent that were just opened; joins the caller's
        transaction.
        """
        opened = {shard.range.lo: shard for shard in shards if shard.is_open}
        if not opened:
            return
        own = self._table.c
        found = select(own.lo, own.step, own.stage).where(
            own.flow_id == self._program.id,
            own.step >= min(shard.version for shard in opened.values()),
            own.lo.in_(opened),
        )
        for lo, step, stage in await connection.execute(found.distinct()):
            opened[lo].sent.add((step, stage))

    async def send(self, stage: ReceivingStage, parcels: Parcels) -> dict[OwnShard, str]:
        """Write messages that are not there yet, and compare the others.

        A replay compares its results in the end, and so the messages among them.
        """
        rows = await in_thread(lambda: _rows_of(parcels))
        new = [row for row in rows if (row.step, stage.name) not in row.shard.sent]
        again = [
            row
            for row in rows
            if (row.step, stage.name) in row.shard.sent and row.step >= row.shard.step
        ]

        async def write(session: AsyncSession, connection: AsyncConnection) -> frozenset[Any]:
            return await self._write(connection, stage, new)

        if new:
            tokens = await self._transact(write, purpose="send messages")
            for shard in {row.shard: None for row in new}:
                if shard.item.lock_token not in tokens:
                    shard.drop()
            for row in new:
                row.shard.sent.add((row.step, stage.name))
        return await self._compare(stage, again) if again else {}

    async def _write(
        self, connection: AsyncConnection, stage: ReceivingStage, rows: Sequence[_Written]
    ) -> frozenset[Any]:
        shards = {row.shard: None for row in rows}
        fenced = [
            Fenced(shard.item, {}, unless_changed={self._step: shard.step}) for shard in shards
        ]
        # Before anything else: who takes a shard over reads what it has sent, and then sends.
        tokens = await fence(connection, self._leased, fenced, waits=True)
        values = [
            (
                self._program.id,
                row.step,
                stage.name,
                row.shard.range.lo,
                row.to.lo,
                row.shard.range.hi,
                row.to.hi,
                row.payload,
            )
            for row in rows
            if row.shard.item.lock_token in tokens
        ]
        if values:
            statement = BULK.of(connection).insert(self._table, _COLUMNS)
            await write_rows(connection, statement, names=_COLUMNS, rows=values, text="payload")
        return tokens

    async def _compare(
        self, stage: ReceivingStage, rows: Sequence[_Written]
    ) -> dict[OwnShard, str]:
        """Return how messages differ from those that their shard has sent before."""
        own = self._table.c
        found = select(own.step, own.lo, own.to_lo, own.payload).where(
            *self._of(stage, {row.step for row in rows}),
            own.lo.in_({row.shard.range.lo for row in rows}),
        )

        async def read(session: AsyncSession, connection: AsyncConnection) -> Sequence[Any]:
            return (await connection.execute(found)).all()

        before = await self._transact(read, purpose="compare messages", writes=False)
        sent = {(row.step, row.lo, row.to_lo): row.payload for row in before}
        return {
            row.shard: f"the messages to {stage.name!r} have the digest"
            f" {digest_of([row.payload])}, and had {digest_of([then or ''])}"
            for row in rows
            if (then := sent.get((row.step, row.shard.range.lo, row.to.lo))) != row.payload
        }

    async def receive(
        self, stage: ReceivingStage, steps: Sequence[int], shards: Sequence[OwnShard]
    ) -> Events | None:
        """Read messages, once all shards have sent."""
        ranges = [shard.range for shard in shards]

        async def read(session: AsyncSession, connection: AsyncConnection) -> Sequence[Any] | None:
            if not await self._are_there(connection, stage, steps):
                return None
            own = self._table.c
            found = select(own.step, own.lo, own.payload).where(
                *self._of(stage, steps), self._is_for(ranges)
            )
            return (await connection.execute(found.order_by(own.lo, own.to_lo))).all()

        rows = await self._transact(read, purpose="receive messages", writes=False)
        if rows is None:
            return None
        found = rows
        return await in_thread(lambda: _events_of(found, steps, ranges, stage=stage))

    async def _are_there(
        self, connection: AsyncConnection, stage: ReceivingStage, steps: Sequence[int]
    ) -> bool:
        own = self._table.c
        found = select(own.step, own.lo, own.hi).where(*self._of(stage, steps)).distinct()
        senders: dict[int, list[BucketRange]] = {step: [] for step in steps}
        for step, lo, hi in await connection.execute(found):
            senders[step].append(BucketRange(lo, hi))
        return all(map(are_complete, senders.values()))

    def _of(self, stage: ReceivingStage, steps: Iterable[int]) -> list[Any]:
        own = self._table.c
        return [
            own.flow_id == self._program.id,
            own.step.in_(sorted(steps)),
            own.stage == stage.name,
        ]

    def _is_for(self, ranges: Sequence[BucketRange]) -> Any:
        """Return whether a row has messages for one of `ranges`: also one of another layout."""
        own = self._table.c
        parts = merged(ranges)
        if parts == [(0, BUCKETS)]:
            return true()
        return or_(*(and_(own.to_lo < hi, own.to_hi > lo) for lo, hi in parts))


def _rows_of(parcels: Parcels) -> list[_Written]:
    return [
        _Written(shard, step, to, packed(part))
        for shard, by_step in parcels.items()
        for step, parcel in by_step.items()
        for to, part in addressed(parcel)
    ]


def _events_of(
    rows: Sequence[Any],
    steps: Sequence[int],
    ranges: Sequence[BucketRange],
    *,
    stage: ReceivingStage,
) -> Events:
    by_step: dict[int, dict[int, list[Parcel]]] = {step: {} for step in steps}
    for step, lo, payload in rows:
        by_step[step].setdefault(lo, []).append(unpacked(payload))
    return list(zip(*(arrived(by_step[step], ranges, stage) for step in steps), strict=True))
