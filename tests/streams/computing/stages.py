"""Outputs, stages and rows for tests of what a shard computes, without a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from rowlock.streams.computing.compute import Computed, KeyState, PoisonedKey, compute
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.computing.handlers import StageHandler, StepTime
from rowlock.streams.computing.hashing import BUCKETS, BucketRange, Key, bucket_of, key_text
from rowlock.streams.computing.rows import EventBatch, SourceRows

T = TypeVar("T")

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
STEP = StepTime("flow", 7, NOON)
ALL = BucketRange(0, BUCKETS)


class Out(Generic[T]):
    def __init__(self, name: str, type_: type[T]) -> None:
        self.name = name
        self.codec = Codec[T](type_)

    def stored(self, value: T | Mapping[str, Any]) -> str | Mapping[str, Any]:
        return dict(value) if isinstance(value, Mapping) else self.codec.encode(value)


class Later(Generic[T]):
    def __init__(self, name: str, type_: type[T]) -> None:
        self.name = name
        self.codec = Codec[T](type_)

    def message_texts(self, messages: Sequence[T]) -> list[str]:
        return self.codec.encode_many(messages)


def rows_of(source: str, type_: Any, *events: tuple[Key, Any], first: int = 1) -> SourceRows:
    codec: Codec[Any] = Codec(type_)
    keys = [key_text(key) for key, _ in events]
    return SourceRows(
        source,
        range(first, first + len(events)),
        [bucket_of(key) for key in keys],
        keys,
        [codec.encode(event) for _, event in events],
        codec,
    )


def batch_of(type_: Any, *events: tuple[Key, Any]) -> EventBatch[Any]:
    return EventBatch([rows_of("s", type_, *events)])


def computed(
    stage: StageHandler,
    batch: EventBatch[Any],
    states: Mapping[str, KeyState] | None = None,
    **options: Any,
) -> Computed:
    found = compute(stage, batch, states or {}, **{"step": STEP, "shard": ALL, **options})
    assert isinstance(found, Computed), found
    return found


def poisoned(
    stage: StageHandler,
    batch: EventBatch[Any],
    states: Mapping[str, KeyState] | None = None,
    **options: Any,
) -> PoisonedKey:
    found = compute(stage, batch, states or {}, **{"step": STEP, "shard": ALL, **options})
    assert isinstance(found, PoisonedKey), found
    return found
