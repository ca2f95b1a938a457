"""Parcels: what one shard sends to one stage in one step, and how it is written down.

The one idea: a parcel is addressed to ranges of buckets that depend on its size alone. The
holder of these buckets finds it, so it does not matter which shards there were when it was
sent, or which there are when it is read.

Nothing here runs SQL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeAlias

from rowlock.stream_errors import ShardStateError
from rowlock.streams.computing.buckets import BucketRange, merged
from rowlock.streams.computing.hashing import BUCKETS
from rowlock.streams.computing.messages import SentMessages
from rowlock.streams.computing.rows import Decoder, SourceRows, divide

PARCEL_BYTES = 64 * 1024
"""A parcel that is longer is written in several rows, each for a part of the buckets."""
PARCEL_ROWS_MAX = 1024
"""Most rows of a parcel."""
_LINE = "\n"

Parcel: TypeAlias = Mapping[int, SentMessages]
"""Messages of one shard to one stage in one step, by the number of the stage that sent them."""


@dataclass(frozen=True)
class ReceivingStage:
    """A stage that gets messages, as far as its events are made of them.

    Attributes:
        number: of the stage; the first one is 0 and gets none.
        name: under which messages are sent to it.
        decoder: makes events of the messages.
        senders: the stages before it, each with whether its handler gets batches.
    """

    number: int
    name: str
    decoder: Decoder[Any]
    senders: Sequence[bool]


def packed(parcel: Parcel) -> str:
    """Return the text of a parcel."""
    head = [[number, sent.keys, sent.buckets] for number, sent in sorted(parcel.items())]
    texts = chain.from_iterable(sent.texts for _, sent in sorted(parcel.items()))
    # No text of a message has a line of its own in it: it is JSON without space.
    return _LINE.join([json.dumps(head, separators=(",", ":")), *texts])


def unpacked(text: str) -> Parcel:
    """Return the parcel of a text."""
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
    """Return whether parcels of these shards are all that there will be: each bucket is in the
    range of one sender.

    Raises:
        ShardStateError: a bucket is in the ranges of two; they would be counted twice.
    """
    ranges = set(senders)
    if sum(each.width for each in ranges) > BUCKETS:
        shown = ", ".join(map(str, sorted(ranges)))
        raise ShardStateError(f"messages of one step came twice, from the buckets {shown}")
    return merged(ranges) == [(0, BUCKETS)]


def arrived(
    parcels: Mapping[int, Sequence[Parcel]], ranges: Sequence[BucketRange], stage: ReceivingStage
) -> list[list[SourceRows]]:
    """Return the events of a stage in a step: for each of `ranges`, one part for each of the stages
    that sent something, in their order.

    Args:
        parcels: of all shards, or of those parts that are for some of `ranges`; by the first bucket
            of the sender.
        ranges: of the shards that get them.
        stage: which one.
    """
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
    """Return what one stage sent, in the order of the shards."""
    joined = SentMessages([], [], [])
    for _, own in sorted(parcels.items()):
        for parcel in own:
            if number in parcel:
                joined.extend(parcel[number])
    return joined
