"""The events of a shard in one step and one stage: as columns, as a list, and by key."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any, Generic, TypeVar

from rowlock.containment import as_ordinary
from rowlock.streams.computing.hashing import Key, key_text
from rowlock.streams.computing.rows import Decoder, SourceRows

E = TypeVar("E")


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
        """Hold the rows of a shard.

        Args:
            parts: the rows of each source, in the order of the flow's sources.
            timers: keys whose timer is due in this step.
        """
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


class Groups(Generic[E]):
    """The events of each key, and the keys of which a row cannot be read.

    Attributes:
        events: by the text of the key, or of what it is grouped by.
        values: what it is grouped by, by its text.
        broken: why events of a key cannot be handed to a handler, by the key.
    """

    __slots__ = ("broken", "events", "values")

    def __init__(self, events: dict[str, list[E]], values: dict[str, Any]) -> None:
        self.events = events
        self.values = values
        self.broken: dict[str, Exception] = {}

    def leave_out(self, broken: Mapping[str, Exception]) -> None:
        """Have keys be broken."""
        self.broken.update(broken)
        for key in broken:
            self.events.pop(key, None)
            self.values.pop(key, None)


def grouped(batch: EventBatch[E]) -> Groups[E]:
    """Return the events of each key. Where rows cannot be read, the keys of these are broken, and
    the events of the others are there.
    """
    try:
        events = batch.groups()
    # A host's class may raise anything when it is made.
    except BaseException:  # noqa: BLE001
        return _grouped_apart(batch)
    groups = Groups(events, {key: key for key in events})
    groups.leave_out(batch.broken)
    return groups


def _grouped_apart(batch: EventBatch[E]) -> Groups[E]:
    events: defaultdict[str, list[E]] = defaultdict(list)
    broken: dict[str, Exception] = {}
    for key, make in _each(batch):
        try:
            events[key].append(make())
        except BaseException as error:  # noqa: BLE001 - as above
            broken.setdefault(key, as_ordinary(error))
    sound = {key: of_key for key, of_key in events.items() if key not in broken}
    groups = Groups(sound, {key: key for key in sound})
    groups.leave_out({**broken, **batch.broken})
    return groups


def _each(batch: EventBatch[E]) -> Iterator[tuple[str, Callable[[], E]]]:
    for part in batch.parts:
        for key, raw in zip(part.keys, part.raw, strict=True):
            yield key, partial(_made, part.decoder, raw)


def _made(decoder: Decoder[E], raw: Any) -> E:
    return decoder.build(decoder.parse([raw]))[0]


def grouped_by(batch: EventBatch[E], by: Callable[[E], Key | tuple[Key, ...]]) -> Groups[E]:
    """Return the events grouped by what `by` returns for each.

    That must be the key of the event, or a tuple that begins with it. Otherwise two shards might
    write one row.
    """
    plain = grouped(batch)
    groups: Groups[E] = Groups({}, {})
    groups.broken = plain.broken
    for key, events in plain.events.items():
        try:
            found = [(by(event), event) for event in events]
            named = [(_group_text(key, value), value, event) for value, event in found]
        except BaseException as error:  # noqa: BLE001 - `by` is the host's
            groups.broken[key] = as_ordinary(error)
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
