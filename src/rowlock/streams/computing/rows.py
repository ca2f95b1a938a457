"""Rows and messages of a step as columns, read once for all shards of a replica and divided among
these; and the batches that handlers get of them.

The order of messages does not depend on the layout. Those of a handler by key are sent in the order
of the keys that it had, by bucket; and shards have their buckets in order, so the messages of all
shards, one shard behind the other, are in one order whatever the shards. A batch handler has no key
when it sends, so its messages are put in the order of their own keys and texts.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from rowlock.streams.computing.hashing import (
    NOT_HERE,
    BucketRange,
    Digest,
    Key,
    bucket_of,
    digest_of,
    key_text,
    owner_table,
)

E = TypeVar("E")

NOTHING_BROKEN: Final[Mapping[str, Exception]] = MappingProxyType({})
NO_DIGEST: Final = "\0no digest"
"""What stands in a digest for a row that has none."""


class Decoder(Protocol[E]):
    """Makes events of what a driver returns. A ValueError says that a row cannot be read."""

    def parse(self, raw: Sequence[Any], /) -> Sequence[Any]:
        """Return what `build` and `column` take; it is called once for the rows of a batch."""
        ...

    def build(self, parsed: Sequence[Any], /) -> list[E]: ...

    def texts(self, raw: Sequence[Any], /) -> list[str]:
        """Return each row as JSON, for people: also one of which no event can be made."""
        ...

    def column(self, parsed: Sequence[Any], name: str, /) -> list[Any]:
        """Return one attribute of the events, without making them."""
        ...


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Rows of one source in one step, in the order of their positions, as columns."""

    source: str
    positions: Sequence[int]  # of the rows; those of messages are their numbers
    buckets: Sequence[int | None]  # of their keys; None where a row has none
    keys: Sequence[str]
    # The rest of each row, as the driver returns it: a text, or a tuple of columns
    raw: Sequence[Any]
    decoder: Decoder[Any]
    is_sent: bool = False  # they are messages, whose numbers depend on what else the shard was sent
    # Why a row cannot be handed to a handler, by its key
    broken: Mapping[str, Exception] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def at(self, indices: Sequence[int]) -> SourceRows:
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
    """Return the rows of each range, in their order; rows of other ranges are left out."""
    # A row without a bucket belongs to the range of its key.
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
    """The digest of the rows of a shard in a step; and, by key, why a row has no part in it."""

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


class SentMessages(NamedTuple):
    """Messages to one later stage, as columns."""

    keys: list[str]
    buckets: list[int]
    texts: list[str]

    def at(self, indices: Sequence[int]) -> SentMessages:
        return SentMessages(
            [self.keys[index] for index in indices],
            [self.buckets[index] for index in indices],
            [self.texts[index] for index in indices],
        )

    def extend(self, others: SentMessages) -> None:
        self.keys.extend(others.keys)
        self.buckets.extend(others.buckets)
        self.texts.extend(others.texts)

    def in_one_order(self, is_batch: bool) -> SentMessages:
        """Return what one stage of all shards sent, in an order that no layout changes."""
        if not is_batch:
            # Those to one bucket stay in the order of the keys for which they were sent.
            return self.at(sorted(range(len(self.keys)), key=self.buckets.__getitem__))
        # No key has a zero in it, so two of these texts are in the order of such pairs.
        pairs = [f"{key}\0{text}" for key, text in zip(self.keys, self.texts, strict=True)]
        return self.at(sorted(range(len(pairs)), key=pairs.__getitem__))


class Messages:
    """Messages to one stage, while a handler sends them."""

    __slots__ = ("_runs", "keys", "texts")

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.texts: list[str] = []
        self._runs: list[tuple[str, int]] = []

    def add(self, sender: str | None, keys: Sequence[str], texts: Sequence[str]) -> None:
        """Add messages that were sent for the key `sender`; in a batch there is none."""
        if sender is not None and (not self._runs or self._runs[-1][0] != sender):
            self._runs.append((sender, len(self.keys)))
        self.keys += keys
        self.texts += texts

    def cut_to(self, count: int) -> None:
        del self.keys[count:], self.texts[count:]
        while self._runs and self._runs[-1][1] >= count:
            self._runs.pop()

    def ordered(self, is_batch: bool) -> SentMessages:
        """Return all of them: those of a handler by key in the order of the keys that it had."""
        buckets = {key: bucket_of(key) for key in dict.fromkeys(self.keys)}
        sent = SentMessages(self.keys, [buckets[key] for key in self.keys], self.texts)
        return sent if is_batch else sent.at(self._by_sender())

    def _by_sender(self) -> list[int]:
        ends = [("", len(self.keys))]
        runs = [
            (bucket_of(sender), sender, begin, end)
            for (sender, begin), (_, end) in pairwise([*self._runs, *ends])
        ]
        return [index for _, _, begin, end in sorted(runs) for index in range(begin, end)]


class EventBatch(Generic[E]):
    """The events of one shard in one step.

    Events stand in the order of their sources and, within one, of their positions; so those of a
    key are in the order in which they arrived. They are made when they are first asked for: a
    handler that needs some columns does not pay for objects.

    Attributes:
        keys: the key of each event.
        timers: keys whose timer is due in this step; the earliest first.
        parts: the rows, source by source.
        broken: keys with a row that no handler can get, and why.
    """

    def __init__(self, parts: Sequence[SourceRows] = (), timers: Sequence[str] = ()) -> None:
        """`parts`: the rows of each source; `timers`: keys whose timer is due in this step."""
        self.parts = tuple(part for part in parts if len(part))
        self.timers = list(timers)
        self.keys: list[str] = list(chain.from_iterable(part.keys for part in self.parts))
        self.broken: dict[str, Exception] = {}
        for part in self.parts:
            self.broken.update(part.broken)

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def _parsed(self) -> list[Sequence[Any]]:
        return [part.decoder.parse(part.raw) for part in self.parts]

    @cached_property
    def rows(self) -> list[E]:
        """The events.

        Raises:
            ValueError: a row cannot be read.
        """
        pairs = zip(self.parts, self._parsed, strict=True)
        return list(chain.from_iterable(part.decoder.build(parsed) for part, parsed in pairs))

    def column(self, name: str) -> list[Any]:
        """Return one attribute of all events, in their order.

        Raises:
            ValueError: events have no such attribute, or a row cannot be read.
        """
        pairs = zip(self.parts, self._parsed, strict=True)
        return list(chain.from_iterable(p.decoder.column(parsed, name) for p, parsed in pairs))

    def groups(self) -> dict[str, list[E]]:
        """Return the events of each key, in their order; first the key whose event came first.

        Raises:
            ValueError: a row cannot be read.
        """
        groups: defaultdict[str, list[E]] = defaultdict(list)
        for key, row in zip(self.keys, self.rows, strict=True):
            groups[key].append(row)
        return dict(groups)

    def counts(self) -> dict[str, int]:
        """Return how many events each key has."""
        return dict(Counter(self.keys))

    def with_timers(self, timers: Sequence[str]) -> EventBatch[E]:
        """Return the same events with the timers that are due."""
        if timers == self.timers:
            return self
        batch: EventBatch[E] = EventBatch(self.parts, timers)
        batch.broken = self.broken
        batch.__dict__.update({k: v for k, v in vars(self).items() if k in {"_parsed", "rows"}})
        return batch


@dataclass(slots=True)
class Groups(Generic[E]):
    """The events of each key, by its text; `broken` says why events of a key cannot be read."""

    events: dict[str, list[E]]
    values: dict[str, Any]
    broken: dict[str, Exception] = field(default_factory=dict)

    def leave_out(self, broken: Mapping[str, Exception]) -> None:
        self.broken.update(broken)
        for key in broken:
            self.events.pop(key, None)
            self.values.pop(key, None)


def grouped(batch: EventBatch[E]) -> Groups[E]:
    """Return the events of each key; keys with a row that cannot be read are in `broken`."""
    try:
        events = batch.groups()
    # A host's class may raise anything when it is made.
    except Exception:  # noqa: BLE001
        return _grouped_apart(batch)
    groups = Groups(events, {key: key for key in events})
    groups.leave_out(batch.broken)
    return groups


def _grouped_apart(batch: EventBatch[E]) -> Groups[E]:
    events: defaultdict[str, list[E]] = defaultdict(list)
    broken: dict[str, Exception] = {}
    for part in batch.parts:
        for key, raw in zip(part.keys, part.raw, strict=True):
            try:
                events[key] += part.decoder.build(part.decoder.parse([raw]))
            except Exception as error:  # noqa: BLE001 - as above
                broken.setdefault(key, error)
    sound = {key: of_key for key, of_key in events.items() if key not in broken}
    groups = Groups(sound, {key: key for key in sound})
    groups.leave_out({**broken, **batch.broken})
    return groups


def grouped_by(batch: EventBatch[E], by: Callable[[E], Key | tuple[Key, ...]]) -> Groups[E]:
    """Return the events grouped by what `by` returns for each."""
    # That must be the key of the event, or a tuple that begins with it. Otherwise two shards might
    # write one row.
    plain = grouped(batch)
    groups: Groups[E] = Groups({}, {}, plain.broken)
    for key, events in plain.events.items():
        try:
            found = [(by(event), event) for event in events]
            named = [(_group_text(key, value), value, event) for value, event in found]
        except Exception as error:  # noqa: BLE001 - `by` is the host's
            groups.broken[key] = error
            continue
        for text, value, event in named:
            groups.values.setdefault(text, value)
            groups.events.setdefault(text, []).append(event)
    return groups


def _group_text(key: str, value: Any) -> str:
    parts = value if isinstance(value, tuple) else (value,)
    texts = [key_text(part) for part in parts]
    if not texts or texts[0] != key:
        msg = f"by returned {value!r} for an event of the key {key!r}: it must begin with that key"
        raise ValueError(msg)
    return json.dumps(texts) if isinstance(value, tuple) else texts[0]
