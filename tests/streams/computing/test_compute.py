"""What a shard computes in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rowlock.streams.computing.compute import DEAD_LETTERS, KeyState, compute, due_keys
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.computing.handlers import FORGET, Forget, StageHandler, StepContext
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
    """A stage by key with a number as state."""
    options = {"codec": Codec(int), "outputs": {"lines": LINES}, **options}
    return StageHandler("count", "by_key", call, **options)


def in_batch(call: Any, **options: Any) -> StageHandler:
    """A stage over batches with a number as state."""
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
