"""Messages between the shards of a flow, within a step, through the database.

A parcel is what one shard sends to one stage in one step. It is addressed to ranges of buckets that
depend on its size alone, and the holder of these buckets finds it: so it does not matter which
shards there were when it was sent, or which there are when it is read.

A parcel is recorded under the lease of its sender, and stays until no shard can need it any more,
so each shard goes on, or begins anew, by itself. Parcels are read only once all shards have sent;
they have all buckets then, whatever layouts they were sent from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import and_, or_, select, true
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.spi import ROWS, Fenced, PipelineContext, fence
from rowlock.stream_errors import ShardStateError
from rowlock.streams.computing.hashing import BUCKETS, BucketRange, digest_of, merged
from rowlock.streams.computing.rows import Decoder, SentMessages, SourceRows, divide
from rowlock.streams.dialects.stream_dialect import has_all, write_rows
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.replicas import OwnShard
from rowlock.streams.shards.slow_calls import in_thread
from rowlock.streams.tables import StreamDatabase

PARCEL_BYTES = 64 * 1024
"""A parcel that is longer is written in several rows, each for a part of the buckets."""
PARCEL_ROWS_MAX = 1024
"""Most rows of a parcel."""
_LINE = "\n"

Parcel: TypeAlias = Mapping[int, SentMessages]
"""Messages of one shard to one stage in one step, by the number of the stage that sent them."""


@dataclass(frozen=True)
class ReceivingStage:
    """A stage that gets messages; stage 0 gets none."""

    # `senders` tells of each stage before it whether its handler gets batches.

    number: int
    name: str
    decoder: Decoder[Any]
    senders: Sequence[bool]


def packed(parcel: Parcel) -> str:
    head = [[number, sent.keys, sent.buckets] for number, sent in sorted(parcel.items())]
    texts = chain.from_iterable(sent.texts for _, sent in sorted(parcel.items()))
    # No text of a message has a line of its own in it: it is JSON without space.
    return _LINE.join([json.dumps(head, separators=(",", ":")), *texts])


def unpacked(text: str) -> Parcel:
    head, *texts = text.split(_LINE)
    parcel, begin = {}, 0
    for number, keys, buckets in json.loads(head):
        end = begin + len(keys)
        parcel[number] = SentMessages(keys, buckets, texts[begin:end])
        begin = end
    return parcel


def addressed(parcel: Parcel) -> list[tuple[BucketRange, Parcel]]:
    """Return the parts of a parcel with the buckets that each one is for: all buckets, once."""
    width = BUCKETS // _rows_of(parcel)
    ranges = [BucketRange(lo, lo + width) for lo in range(0, BUCKETS, width)]
    if len(ranges) == 1:
        return [(ranges[0], parcel)]
    parts: list[dict[int, SentMessages]] = [{} for _ in ranges]
    for number, sent in parcel.items():
        indices: list[list[int]] = [[] for _ in ranges]
        for index, bucket in enumerate(sent.buckets):
            indices[bucket // width].append(index)
        for part, own in zip(parts, indices, strict=True):
            if own:
                part[number] = sent.at(own)
    return list(zip(ranges, parts, strict=True))


def _rows_of(parcel: Parcel) -> int:
    size = sum(len(text) for sent in parcel.values() for text in chain(sent.keys, sent.texts))
    rows = 1
    while rows < PARCEL_ROWS_MAX and size > rows * PARCEL_BYTES:
        rows *= 2
    return rows


def are_complete(senders: Iterable[BucketRange]) -> bool:
    """Return whether these shards have each bucket, so that no parcel is missing."""
    # ShardStateError if it is in two, which would be counted twice.
    ranges = set(senders)
    if sum(each.width for each in ranges) > BUCKETS:
        shown = ", ".join(map(str, sorted(ranges)))
        raise ShardStateError(f"messages of one step came twice, from the buckets {shown}")
    return has_all(ranges)


def arrived(
    parcels: Mapping[int, Sequence[Parcel]], ranges: Sequence[BucketRange], stage: ReceivingStage
) -> list[list[SourceRows]]:
    """Return the events of a stage in a step: for each range, a part for each sending stage."""
    # Parcels are those of all shards by the first bucket of the sender; parts that are for none of
    # `ranges` may be missing.
    events: list[list[SourceRows]] = [[] for _ in ranges]
    for number, is_batch in enumerate(stage.senders):
        sent = _joined(parcels, number).in_one_order(is_batch)
        if not sent.keys:
            continue
        rows = SourceRows(
            f"{stage.name}/{number}",
            range(len(sent.keys)),
            sent.buckets,
            sent.keys,
            sent.texts,
            stage.decoder,
            is_sent=True,
        )
        for own, part in zip(events, divide(rows, ranges), strict=True):
            if len(part):
                # Numbers of its own: those of others are not read everywhere.
                own.append(replace(part, positions=range(len(part))))
    return events


def _joined(parcels: Mapping[int, Sequence[Parcel]], number: int) -> SentMessages:
    joined = SentMessages([], [], [])
    for _, own in sorted(parcels.items()):
        for parcel in own:
            if number in parcel:
                joined.extend(parcel[number])
    return joined


Parcels: TypeAlias = Mapping[OwnShard, Mapping[int, Parcel]]
"""What shards send to one stage, by the number of the step."""
Events: TypeAlias = Sequence[Sequence[Sequence[SourceRows]]]
"""The events of a stage: of each shard, of each step, part by part."""


_COLUMNS = ("flow_id", "step", "stage", "lo", "to_lo", "hi", "to_hi", "payload")


class _Written(NamedTuple):
    shard: OwnShard
    step: int
    to: BucketRange
    payload: str


class Exchange:
    def __init__(self, program: FlowProgram, context: PipelineContext[Any]) -> None:
        self._program = program
        self._table = program.tables.exchange
        self._leased = context.leased
        self._database = StreamDatabase(context.transact)

    async def read_sent(self, connection: AsyncConnection, shards: Sequence[OwnShard]) -> None:
        """Read which messages shards have sent that were just opened."""
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
        """Write messages, and compare those sent before; return why a shard must not go on."""
        # A shard that turns out not to be held any more sends nothing, and is dropped.
        rows = await in_thread(
            lambda: [
                _Written(shard, step, to, packed(part))
                for shard, by_step in parcels.items()
                for step, parcel in by_step.items()
                for to, part in addressed(parcel)
            ]
        )
        new = [row for row in rows if (row.step, stage.name) not in row.shard.sent]
        again = [
            row
            for row in rows
            if (row.step, stage.name) in row.shard.sent and row.step >= row.shard.step
        ]
        if new:
            tokens = await self._database.write(
                "send messages", lambda connection: self._write(connection, stage, new)
            )
            for shard in {row.shard: None for row in new}:
                if shard.item.lock_token not in tokens:
                    shard.drop()
            for row in new:
                row.shard.sent.add((row.step, stage.name))
        return await self._compare(stage, again) if again else {}

    async def _write(
        self, connection: AsyncConnection, stage: ReceivingStage, rows: Sequence[_Written]
    ) -> frozenset[Any]:
        shards, step = {row.shard: None for row in rows}, self._leased.column("step")
        fenced = [Fenced(shard.item, {}, unless_changed={step: shard.step}) for shard in shards]
        # Before anything else: the next holder of a shard reads what it has sent, and then sends.
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
            statement = ROWS.of(connection).insert(self._table, _COLUMNS)
            await write_rows(connection, statement, names=_COLUMNS, rows=values, text="payload")
        return tokens

    async def _compare(
        self, stage: ReceivingStage, rows: Sequence[_Written]
    ) -> dict[OwnShard, str]:
        own = self._table.c
        found = select(own.step, own.lo, own.to_lo, own.payload).where(
            *self._of(stage, {row.step for row in rows}),
            own.lo.in_({row.shard.range.lo for row in rows}),
        )

        async def read(connection: AsyncConnection) -> Sequence[Any]:
            return (await connection.execute(found)).all()

        before = await self._database.read("compare messages", read)
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
        """Return what `shards` got in `steps`; None as long as a shard of the flow has not sent."""
        ranges = [shard.range for shard in shards]

        async def read(connection: AsyncConnection) -> Sequence[Any] | None:
            if not await self._are_there(connection, stage, steps):
                return None
            own = self._table.c
            found = select(own.step, own.lo, own.payload).where(
                *self._of(stage, steps), self._is_for(ranges)
            )
            return (await connection.execute(found.order_by(own.lo, own.to_lo))).all()

        rows = await self._database.read("receive messages", read)
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
