"""What a shard computes in a step, by key, with a batch handler or with a fold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from rowlock.stream_errors import WrongShardError
from rowlock.streams.computing.compute import DEAD_LETTERS, KeyState, compute, due_keys, keys_of
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.computing.handlers import FORGET, Forget, StageHandler, StepContext
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.computing.rows import EventBatch, input_digest

from .stages import ALL, NOON, STEP, Later, Out, batch_of, computed, poisoned, rows_of

LINES = Out("lines", int)
SECOND = Later("second", int)
BEFORE, AFTER = NOON - timedelta(1), NOON + timedelta(1)


def count(step: StepContext, key: str, state: int | None, events: Sequence[int]) -> int:
    after = (state or 0) + sum(events)
    step.emit(LINES, after)
    return after


def by_key(call: Any = count, **options: Any) -> StageHandler:
    options = {"codec": Codec(int), "outputs": {"lines": LINES}, **options}
    return StageHandler("count", "by_key", call, **options)


def in_batch(call: Any, **options: Any) -> StageHandler:
    options = {"codec": Codec(int), "later": {"second": SECOND}, **options}
    return StageHandler("batch", "batch", call, **options)


EVENTS = batch_of(int, ("a", 1), ("b", 2), ("a", 3))


class Shown(Codec[int]):
    """Reads numbers, and shows people whatever there is."""

    def texts(self, raw: Sequence[Any], /) -> list[str]:
        return list(map(str, raw))


def test_a_row_that_has_no_digest_fails_its_own_shard() -> None:
    """All shards of a replica would stand still, and none would say which row it is."""
    rows = replace(EVENTS.parts[0], raw=["1", (object(),), "3"], decoder=Shown(int))
    called: list[str] = []
    stage = by_key(lambda _, key, *__: called.append(key))
    found = poisoned(stage, EventBatch([rows]), {})
    assert found.key == "b"
    assert "the row at position 2 of " in found.text
    assert "has no digest: a value of type object cannot be digested. Have its column" in found.text
    assert "b" not in called
    # It is set aside like any other, and the same in a replay.
    lenient = replace(by_key(lambda *_: 5), dead_letters=True)
    for _ in range(2):
        found = computed(lenient, EventBatch([rows]), {}, is_last_attempt=True)
        assert [letter.key for letter in found.dead_letters] == ["b"]
        assert found.input_digest == input_digest([rows])
    alone = replace(rows, raw=["1", "2", "3"])
    assert input_digest([alone]) != input_digest([rows])


def test_by_key() -> None:
    """Events of one key would be added to the state of another."""
    found = computed(by_key(), EVENTS, {"a": KeyState("10"), "z": KeyState("5")})
    assert found.states == {"a": KeyState("14"), "b": KeyState("2")}
    assert [tuple(result) for result in found.results] == [
        ("lines", "a", "14"),
        ("lines", "b", "2"),
    ]
    assert (found.rows, found.messages, found.dead_letters) == (3, {}, [])


def test_what_has_not_changed_is_not_written() -> None:
    """A step would write the states of all keys that it has read."""
    found = computed(by_key(lambda *_: 5), EVENTS, {"a": KeyState("5", AFTER)})
    assert found.states == {"b": KeyState("5")}


def test_forget() -> None:
    """A state that was dropped would be there in the next step, or its timer would be due."""
    found = computed(by_key(lambda *_: FORGET), EVENTS, {"a": KeyState("5", AFTER)})
    assert found.states == {"a": KeyState()}

    def again(step: StepContext, *_: object) -> Forget:
        step.set_timer(AFTER)
        return FORGET

    assert computed(by_key(again), EVENTS).states["a"] == KeyState(None, AFTER)


def test_timers() -> None:
    """A window would not be closed, would be closed twice, or would lose its later timer."""
    calls: list[tuple[str, int | None, list[int]]] = []

    def note(step: StepContext, key: str, state: int | None, events: list[int]) -> int | Forget:
        calls.append((key, state, events))
        if key == "set":
            step.set_timer(AFTER)
        return state or 0

    states = {
        "late": KeyState("1", NOON),
        "early": KeyState("2", BEFORE),
        "a": KeyState("3", NOON),
        "b": KeyState("4", AFTER),
        "set": KeyState("5", NOON),
        "later": KeyState("6", AFTER),
        "bare": KeyState(None, NOON),
    }
    found = computed(by_key(note), EVENTS, states)
    assert calls == [
        ("a", 3, [1, 3]),
        ("b", 4, [2]),
        ("early", 2, []),
        ("bare", None, []),
        ("late", 1, []),
        ("set", 5, []),
    ]
    assert found.states == {
        "a": KeyState("3"),
        "early": KeyState("2"),
        "bare": KeyState("0"),
        "late": KeyState("1"),
        "set": KeyState("5", AFTER),
    }
    assert due_keys(states, BEFORE) == ["early"]


def test_states_are_apart() -> None:
    """A handler that changes the state that it was given would change what a replay begins with."""
    stored = {"a": KeyState('["x"]'), "b": KeyState('["x"]')}

    def change(step: StepContext, key: str, state: list[str], events: list[int]) -> list[str]:
        state.append(key)
        return state

    found = computed(by_key(change, codec=Codec(list[str])), EVENTS, stored)
    assert found.states == {"a": KeyState('["x","a"]'), "b": KeyState('["x","b"]')}
    assert stored["a"] == KeyState('["x"]')


def test_one_list_for_all_keys() -> None:
    """A list that a handler returns for each key would be stored as the last call left it."""
    shared: list[str] = []

    def append(step: StepContext, key: str, state: object, events: object) -> list[str]:
        shared.append(key)
        return shared

    found = computed(by_key(append, codec=Codec(list[str])), EVENTS)
    assert found.states == {"a": KeyState('["a"]'), "b": KeyState('["a","b"]')}


def test_stage_without_states() -> None:
    """A stage that only filters would need a state that says nothing."""

    def positive(step: StepContext, key: str, state: None, events: list[int]) -> None:
        assert state is None
        for event in events:
            step.emit(LINES, event)

    found = computed(by_key(positive, codec=None), EVENTS)
    assert (found.states, len(found.results)) == ({}, 3)


def fails_for(key: str) -> Any:
    """A handler that fails for one key, after it has handed out something."""

    def call(step: StepContext, own: str, state: int | None, events: list[int]) -> int:
        step.emit(LINES, 1)
        step.send(SECOND, own, 1)
        step.set_timer(AFTER)
        if own == key:
            raise ValueError("bad")
        return 1

    return call


@pytest.mark.parametrize("is_last_attempt", [False, True])
def test_poison(is_last_attempt: bool) -> None:
    """A person would have to look for the event that breaks a step among ten thousand."""
    stage = by_key(fails_for("b"), later={"second": SECOND})
    failed = poisoned(stage, EVENTS, is_last_attempt=is_last_attempt)
    assert (failed.stage, failed.step, failed.key) == ("count", 7, "b")
    assert failed.text == "step 7: 'count' failed for the key 'b': ValueError: bad"
    assert isinstance(failed.error, ValueError)


def test_dead_letters() -> None:
    """The other keys would wait for a person; or a key that failed would leave results behind, lose
    its state, or its events.
    """
    stage = by_key(fails_for("a"), dead_letters=True, later={"second": SECOND})
    assert poisoned(stage, EVENTS).key == "a"
    states = {"a": KeyState("5", NOON), "t": KeyState("6", NOON)}
    found = computed(stage, EVENTS, states, is_last_attempt=True)
    assert found.states == {
        "a": KeyState("5"),
        "b": KeyState("1", AFTER),
        "t": KeyState("1", AFTER),
    }
    emitted = [(result.output, result.key) for result in found.results]
    assert [key for output, key in emitted if output != DEAD_LETTERS] == ["b", "t"]
    assert emitted[2:] == [(DEAD_LETTERS, "a")] * 2
    assert found.messages["second"].keys == ["b", "t"]
    (letter,) = found.dead_letters
    assert (letter.key, letter.error) == ("a", "ValueError: bad")
    (rows,) = letter.rows
    assert (rows.positions, rows.raw, rows.source) == ([1, 3], ["1", "3"], "s")
    late = computed(
        by_key(fails_for("t"), dead_letters=True, later={"second": SECOND}),
        EVENTS,
        states,
        is_last_attempt=True,
    )
    assert late.dead_letters[0].rows == ()
    assert late.states["t"] == KeyState("6")


def test_dead_letters_of_rows_and_states_that_cannot_be_read() -> None:
    """A payload or a state that was written by hand would stop its shard for ever."""
    rows = replace(rows_of("s", int, ("a", 1), ("b", 2), ("c", 3)), raw=["1", "{", "3"])
    batch: EventBatch[int] = EventBatch([rows])
    states = {"c": KeyState("{"), "a": KeyState("5")}
    assert poisoned(by_key(), batch, states).key == "b"
    stage = by_key(dead_letters=True)
    found = computed(stage, batch, states, is_last_attempt=True)
    assert [letter.key for letter in found.dead_letters] == ["b", "c"]
    assert found.states == {"a": KeyState("6")}
    assert poisoned(by_key(), EVENTS, {"b": KeyState("{")}).key == "b"


def test_digests() -> None:
    """A replay would pass though it computes something else."""
    found = computed(by_key(), EVENTS)
    assert computed(by_key(), EVENTS) == found
    assert computed(by_key(), EVENTS, {"z": KeyState("1")}) == found
    other = [
        computed(by_key(lambda *_: 1), EVENTS),
        computed(by_key(lambda *_: 2), EVENTS),
        computed(by_key(lambda step, *_: step.set_timer(AFTER) or 1), EVENTS),
        computed(by_key(lambda step, *_: step.emit(LINES, 1) or 1), EVENTS),
        computed(by_key(lambda step, *_: step.emit(LINES, 1, key="x") or 1), EVENTS),
        computed(in_batch(lambda step, *_: step.send(SECOND, "a", 1)), EVENTS),
        computed(in_batch(lambda step, *_: step.send(SECOND, "b", 1)), EVENTS),
        computed(in_batch(lambda step, *_: step.send(SECOND, "a", 2)), EVENTS),
        computed(in_batch(lambda *_: None), EVENTS),
    ]
    assert len({one.output_digest for one in (found, *other)}) == 10
    assert {one.input_digest for one in (found, *other)} == {found.input_digest}


def test_order_of_a_batch_handlers_dict_does_not_matter() -> None:
    """A set in a batch handler would make each replay differ."""
    one = computed(in_batch(lambda *_: {"a": 1, "b": 2}), EVENTS)
    assert computed(in_batch(lambda *_: {"b": 2, "a": 1}), EVENTS) == one


def test_digest_of_dead_letters() -> None:
    """A replay would not notice that another key fails."""
    stage = by_key(lambda *_: 1, dead_letters=True)
    stages = [replace(stage, call=fails_for(key), later={"second": SECOND}) for key in "ab"]
    digests = {computed(one, EVENTS, is_last_attempt=True).output_digest for one in stages}
    assert len(digests) == 2


def test_arguments_stay() -> None:
    """A second attempt would begin with what the first has left."""
    states = {"a": KeyState("10", NOON), "t": KeyState("1", BEFORE)}
    before = dict(states)
    first = compute(by_key(), EVENTS, states, step=STEP, shard=ALL)
    assert compute(by_key(), EVENTS, states, step=STEP, shard=ALL) == first
    assert states == before
    assert EVENTS.timers == []


BEFORE, AFTER = NOON - timedelta(1), NOON + timedelta(1)


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
