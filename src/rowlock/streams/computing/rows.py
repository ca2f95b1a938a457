"""Rows of a step as columns: read once for all shards of a replica, and divided among these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from rowlock.streams.computing.buckets import NOT_HERE, BucketRange, owner_table
from rowlock.streams.computing.digests import Digest, digest_of
from rowlock.streams.computing.hashing import bucket_of

E = TypeVar("E")

NOTHING_BROKEN: Final[Mapping[str, Exception]] = MappingProxyType({})
NO_DIGEST: Final = "\0no digest"
"""What stands in a digest for a row that has none."""


class Decoder(Protocol[E]):
    """Makes events of what a driver returns."""

    def parse(self, raw: Sequence[Any], /) -> Sequence[Any]:
        """Return what both of the others take; it is called once for the rows of a batch.

        Raises:
            ValueError: a row cannot be read.
        """
        ...

    def build(self, parsed: Sequence[Any], /) -> list[E]:
        """Return the events.

        Raises:
            ValueError: a row is no such event.
        """
        ...

    def texts(self, raw: Sequence[Any], /) -> list[str]:
        """Return each row as JSON, for people: also one of which no event can be made."""
        ...

    def column(self, parsed: Sequence[Any], name: str, /) -> list[Any]:
        """Return one attribute of the events, without making them.

        Raises:
            ValueError: events have no such attribute, or a row is no such event.
        """
        ...


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Rows of one source in one step, in the order of their positions, as columns.

    Attributes:
        source: its name, within the flow.
        positions: of the rows; those of messages are their numbers.
        buckets: of their keys; None where a row has none.
        keys: the texts of their keys.
        raw: the rest of each row, as the driver returns it: a text, or a tuple of columns.
        decoder: makes events of `raw`.
        is_sent: they are messages, whose numbers depend on what else the shard was sent.
        broken: why a row cannot be handed to a handler, by its key.
    """

    source: str
    positions: Sequence[int]
    buckets: Sequence[int | None]
    keys: Sequence[str]
    raw: Sequence[Any]
    decoder: Decoder[Any]
    is_sent: bool = False
    broken: Mapping[str, Exception] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def at(self, indices: Sequence[int]) -> SourceRows:
        """Return some of the rows."""
        keys = [self.keys[index] for index in indices]
        broken = self.broken
        if broken:
            broken = {key: broken[key] for key in keys if key in broken}
        return SourceRows(
            self.source,
            [self.positions[index] for index in indices],
            [self.buckets[index] for index in indices],
            keys,
            [self.raw[index] for index in indices],
            self.decoder,
            self.is_sent,
            broken,
        )


def divide(rows: SourceRows, ranges: Sequence[BucketRange]) -> list[SourceRows]:
    """Return the rows of each range, in their order; rows of other ranges are left out.

    A row without a bucket belongs to the range of its key, as any other.

    Args:
        rows: of one source.
        ranges: of the shards that this replica holds.
    """
    owners = owner_table(tuple(ranges))
    indices: list[list[int]] = [[] for _ in ranges]
    for index, bucket in enumerate(rows.buckets):
        owner = owners[bucket_of(rows.keys[index]) if bucket is None else bucket]
        if owner != NOT_HERE:
            indices[owner].append(index)
    if len(ranges) == 1 and len(indices[0]) == len(rows):
        return [rows]
    return [rows.at(own) for own in indices]


class Digested(NamedTuple):
    """The digest of the rows of a shard in a step.

    Attributes:
        digest: of their keys and all else that was read of them, source by source.
        broken: why a row has no part in it, by its key.
    """

    digest: str
    broken: Mapping[str, Exception]


def digested(parts: Sequence[SourceRows]) -> Digested:
    """Return the digest of rows; one with a value that has no text of its own is left out."""
    try:
        return Digested(_digest(parts), NOTHING_BROKEN)
    # Whatever a driver has made of a column that was written by other means.
    except Exception:  # noqa: BLE001
        return _digested_apart(parts)


def input_digest(parts: Sequence[SourceRows]) -> str:
    """Return the digest of the rows of a shard in a step."""
    return digested(parts).digest


def _digest(parts: Iterable[SourceRows]) -> str:
    digest = Digest()
    for part in parts:
        digest.add([part.source])
        digest.add(part.keys)
        digest.add(part.raw)
    return str(digest)


def _digested_apart(parts: Sequence[SourceRows]) -> Digested:
    broken: dict[str, Exception] = {}
    sound = []
    for part in parts:
        raw: list[Any] = []
        for position, key, own in zip(part.positions, part.keys, part.raw, strict=True):
            try:
                digest_of([own])
            except Exception as error:  # noqa: BLE001 - as above
                msg = (
                    f"the row at position {position} of {part.source} has no digest: {error}. Have"
                    " its column be deferred, if no handler needs it"
                )
                broken.setdefault(key, ValueError(msg))
                raw.append(NO_DIGEST)
            else:
                raw.append(own)
        sound.append(replace(part, raw=raw))
    return Digested(_digest(sound), broken)
