"""What a shard computes in a step with a batch handler, or with a fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from rowlock.stream_errors import WrongShardError
from rowlock.streams.computing.compute import KeyState, keys_of
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.computing.handlers import FORGET, StageHandler, StepContext
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.computing.rows import EventBatch

from .stages import ALL, NOON, Later, Out, batch_of, computed, poisoned, rows_of

LINES = Out("lines", int)
SECOND = Later("second", int)
BEFORE, AFTER = NOON - timedelta(1), NOON + timedelta(1)


def in_batch(call: Any, **options: Any) -> StageHandler:
    """A stage over batches with a number as state."""
    options = {"codec": Codec(int), "later": {"second": SECOND}, **options}
    return StageHandler("batch", "batch", call, **options)


EVENTS = batch_of(int, ("a", 1), ("b", 2), ("a", 3))


def test_batch() -> None:
    """A batch handler would get states of other keys, or its own would not be written."""
    seen: list[Mapping[str, int]] = []

    def add(step: StepContext, batch: EventBatch[int], states: dict[str, int]) -> dict[str, Any]:
        seen.append(dict(states))
        step.send_many(SECOND, batch.keys, batch.rows)
        return {
            key: FORGET if key == "c" else states.get(key, 0) + n
            for key, n in batch.counts().items()
        }

    batch = batch_of(int, ("b", 1), ("a", 2), ("c", 3))
    states = {"a": KeyState("5"), "c": KeyState("6", AFTER), "z": KeyState("7")}
    found = computed(in_batch(add), batch, states)
    assert seen == [{"a": 5, "c": 6}]
    assert found.states == {"a": KeyState("6"), "b": KeyState("1"), "c": KeyState()}
    sent = found.messages["second"]
    assert (sent.keys, sent.texts) == (["b", "a", "c"], ["1", "2", "3"])
    assert sent.buckets == [bucket_of(key) for key in sent.keys]


def test_a_row_that_no_handler_can_get_fails_the_batch() -> None:
    """A batch would be counted without a row that has no key, or with one that it has not."""
    (part,) = EVENTS.parts
    called: list[object] = []
    batch: EventBatch[int] = EventBatch([replace(part, broken={"b": ValueError("it has no key")})])
    found = poisoned(in_batch(lambda *_: called.append(1)), batch, {})
    assert (found.key, called) == ("b", [])
    assert "it has no key" in found.text


def test_timers_of_a_batch() -> None:
    """A timer that was due would be due in each step after it, or take the state with it."""

    def note(step: StepContext, batch: EventBatch[int], states: dict[str, int]) -> dict[str, int]:
        assert (batch.timers, set(states)) == (["t", "u"], {"t"})
        step.set_timer(AFTER, key="a")
        return {"b": 1}

    states = {"t": KeyState("5", BEFORE), "u": KeyState(None, NOON), "v": KeyState("5", AFTER)}
    found = computed(in_batch(note), EVENTS, states)
    assert found.states == {
        "a": KeyState(None, AFTER),
        "b": KeyState("1"),
        "t": KeyState("5"),
        "u": KeyState(),
    }


def test_batch_and_keys_of_other_shards() -> None:
    """A state would be written that another shard keeps, or over one that was not read."""
    half = next(each for each in ALL.halves if bucket_of("a") in each)
    own = next(f"k{n}" for n in range(99) if bucket_of(f"k{n}") in half)
    other = next(f"k{n}" for n in range(99) if bucket_of(f"k{n}") not in half)
    batch = batch_of(int, ("a", 1))
    failed = poisoned(in_batch(lambda *_: {"a": 1, other: 5}), batch, shard=half)
    assert isinstance(failed.error, WrongShardError)
    assert (failed.key, failed.error.key, failed.error.shard) == (other, other, str(half))
    failed = poisoned(in_batch(lambda *_: {own: 5}), batch, shard=half)
    assert "of which it had no events" in str(failed.error)

    def set_timer(step: StepContext, *_: object) -> None:
        step.set_timer(AFTER, key=other)

    assert isinstance(poisoned(in_batch(set_timer), batch, shard=half).error, WrongShardError)


def test_batch_that_fails() -> None:
    """A row that cannot be read would be blamed on the handler, without its key."""

    def read(step: StepContext, batch: EventBatch[int], states: object) -> None:
        if sum(batch.rows):
            raise ValueError("bad")

    failed = poisoned(in_batch(read), EVENTS)
    assert (failed.key, failed.text) == (None, "step 7: 'batch' failed: ValueError: bad")
    rows = replace(rows_of("s", int, ("a", 1), ("b", 2)), raw=["1", "{"])
    assert poisoned(in_batch(read), EventBatch([rows])).key == "b"
    assert "JSONDecodeError" in poisoned(in_batch(read), EVENTS, {"a": KeyState("{")}).text


@dataclass
class Balance:
    account: str
    cents: int = 0


class RowCodec:
    """Reads and writes rows as tuples, as a driver has them."""

    name = "balances"

    def encode(self, value: Balance) -> tuple[str, int]:
        return value.account, value.cents

    def decode_many(self, texts: Sequence[tuple[str, int]]) -> list[Balance]:
        return [Balance(*columns) for columns in texts]


def test_fold() -> None:
    """A row would be begun anew with each step."""

    def add(step: StepContext, row: Balance, events: list[int]) -> None:
        row.cents += sum(events)

    stage = StageHandler("fold", "fold", add, RowCodec(), fresh=Balance)
    assert keys_of(stage, EVENTS) == {"a": "a", "b": "b"}
    found = computed(stage, EVENTS, {"a": KeyState(("a", 10))})
    assert found.states == {"a": KeyState(("a", 14)), "b": KeyState(("b", 2))}


def test_fold_by_parts() -> None:
    """A row of two columns as its key would be made with one of them."""
    made: list[object] = []

    def fresh(value: tuple[str, int]) -> Balance:
        made.append(value)
        return Balance(value[0])

    def add(step: StepContext, row: Balance, events: list[int]) -> None:
        row.cents += len(events)
        step.emit(LINES, row.cents)

    def kind(event: int) -> tuple[str, int]:
        return ("ab"[event == 2], event)

    stage = StageHandler(
        "fold", "fold", add, RowCodec(), by=kind, fresh=fresh, outputs={"lines": LINES}
    )
    keys = keys_of(stage, EVENTS)
    assert list(keys.values()) == made == [] or list(keys.values()) == [
        ("a", 1),
        ("a", 3),
        ("b", 2),
    ]
    one = next(iter(keys))
    found = computed(stage, EVENTS, {one: KeyState(("a", 10))})
    assert made == [("a", 3), ("b", 2)]
    assert found.states[one] == KeyState(("a", 11))
    assert [result.key for result in found.results] == ["a", "a", "b"]
    wrong = replace(stage, by=lambda event: (event,))
    assert poisoned(wrong, EVENTS).key == "a"
