"""What a handler sees of its step, and what it hands out."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, cast

import pytest

from rowlock.errors import PipelineError
from rowlock.streams.computing import handlers as context_module
from rowlock.streams.computing.handlers import (
    StepContext,
    StepTime,
    StreamResult,
    begin_key,
    effects_of,
    end_context,
)

from .stages import NOON, STEP, Later, Out

LINES, ROWS = Out("lines", int), Out("rows", dict)
SECOND = Later("second", int)


def context(key: str | None = "k", *, step: StepTime = STEP, stage: str = "first") -> StepContext:
    made = StepContext(step, stage, {"lines": LINES, "rows": ROWS}, later={"second": SECOND})
    begin_key(made, key)
    return made


def test_the_step() -> None:
    """A handler would ask the clock, and get another time in a replay."""
    step = context()
    assert (step.number, step.now, step.flow) == (7, NOON, "flow")


def test_emit() -> None:
    """A result would be written under the key of another, or as it became later."""
    step, row = context(), {"a": 1}
    step.emit(LINES, 5)
    step.emit(LINES, 6, key=8)
    step.emit(ROWS, row)
    row["a"] = 2
    assert effects_of(step).results == [
        StreamResult("lines", "k", "5"),
        StreamResult("lines", "8", "6"),
        StreamResult("rows", "k", {"a": 1}),
    ]
    batch = context(None)
    batch.emit(LINES, 5)
    assert effects_of(batch).results == [StreamResult("lines", None, "5")]


def test_emit_to_what_is_no_output() -> None:
    """A result of one flow would be written under the steps of another."""
    with pytest.raises(ValueError, match="no output"):
        context().emit(Out("lines", int), 5)
    others: list[Any] = ["lines", None, {}]
    for given in others:
        with pytest.raises(ValueError, match=f"{given!r} is no output .* its `output` method"):
            context().emit(given, 5)
    with pytest.raises(TypeError, match="is no int"):
        context().emit(LINES, "5")  # type: ignore[misc]


def test_send() -> None:
    """Messages would reach the shard of a key in another order than they were sent."""
    step = context()
    step.send(SECOND, "a", 1)
    step.send_many(SECOND, ["b", 5], [2, 3])
    sent = effects_of(step).messages["second"]
    assert (sent.keys, sent.texts) == (["a", "b", "5"], ["1", "2", "3"])
    with pytest.raises(ValueError, match="2 keys for 1 messages"):
        step.send_many(SECOND, ["a", "b"], [1])
    with pytest.raises(ValueError, match="no stage"):
        step.send(Later("second", int), "a", 1)
    with pytest.raises(ValueError, match="'second' is no stage"):
        step.send(cast("Later", "second"), "a", 1)
    with pytest.raises(TypeError):
        step.send(SECOND, "a", "1")  # type: ignore[misc]


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler with a wrong loop would fill the memory of the replica."""
    monkeypatch.setattr(context_module, "RESULTS_MAX", 2)
    monkeypatch.setattr(context_module, "MESSAGES_MAX", 3)
    step = context()
    for number in range(2):
        step.emit(LINES, number)
    with pytest.raises(ValueError, match="more than 2 results"):
        step.emit(LINES, 2)
    step.send_many(SECOND, "abc", [1, 2, 3])
    with pytest.raises(ValueError, match="more than 3 messages"):
        step.send(SECOND, "d", 4)
    monkeypatch.setattr(context_module, "MESSAGE_BYTES_MAX", 10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        context().send(SECOND, "d", 10**11)


def test_bounds_are_those_of_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard could hand out so many times as much in a step as its flow has stages."""
    monkeypatch.setattr(context_module, "RESULTS_MAX", 2)
    monkeypatch.setattr(context_module, "MESSAGES_MAX", 3)
    monkeypatch.setattr(context_module, "MESSAGE_BYTES_MAX", 10)
    first = context()
    first.emit(LINES, 1)
    first.send_many(SECOND, "ab", [10, 20])
    before = end_context(first).handed_out
    assert before == (1, 2, 4)
    outputs, later = {"lines": LINES}, {"second": SECOND}
    second = StepContext(STEP, "then", outputs, later=later, before=before)
    second.emit(LINES, 2)
    with pytest.raises(ValueError, match="more than 2 results"):
        second.emit(LINES, 3)
    second.send(SECOND, "a", 1)
    with pytest.raises(ValueError, match="more than 3 messages"):
        second.send(SECOND, "a", 1)
    third = StepContext(STEP, "then", outputs, later=later, before=before)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        third.send(SECOND, "a", 10**7)


def test_timers() -> None:
    """A timer would be set for another key, or at a time that depends on the machine."""
    step = context()
    step.set_timer(NOON)
    step.set_timer(datetime(2026, 3, 2, 2, tzinfo=timezone(timedelta(hours=2))), key="k")
    assert effects_of(step).timers == {"k": datetime(2026, 3, 2, tzinfo=UTC)}
    assert effects_of(step).timers["k"].tzinfo is UTC
    for at in (datetime(2026, 3, 2), timedelta(seconds=30), 30):  # noqa: DTZ001
        with pytest.raises(ValueError, match=r"aware .* write step\.now \+ timedelta"):
            step.set_timer(at)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot be set"):
        step.set_timer(NOON, key="other")
    batch = context(None)
    batch.set_timer(NOON, key=5)
    assert effects_of(batch).timers == {"5": NOON}
    with pytest.raises(TypeError, match="needs the key"):
        batch.set_timer(NOON)


def test_idempotency_keys() -> None:
    """An outbox would drop a message as sent that is another one, or send one twice."""
    step = context()
    keys = {
        step.idempotency_key(),
        step.idempotency_key("a"),
        step.idempotency_key("a", "b"),
        step.idempotency_key("ab"),
        context("l").idempotency_key(),
        context(None).idempotency_key("c"),
        context(stage="second").idempotency_key(),
        context(step=StepTime("flow", 8, NOON)).idempotency_key(),
        context(step=StepTime("other", 7, NOON)).idempotency_key(),
    }
    assert len(keys) == 9
    assert {len(key) for key in keys} == {32}
    later = context(step=StepTime("flow", 7, NOON + timedelta(1)))
    assert step.idempotency_key("a", 1) == later.idempotency_key("a", 1)
    assert step.idempotency_key("a") == "d71ea46d5accb73e9356e332c2f959a1"
    with pytest.raises(TypeError):
        step.idempotency_key(object())  # type: ignore[arg-type]


def test_an_idempotency_key_of_a_batch_names_its_result() -> None:
    """All results of a batch handler, in each shard, would have one key, and an outbox would keep
    one of them: another one in each layout.
    """
    with pytest.raises(TypeError, match="tells its results apart"):
        context(None).idempotency_key()
    ann, bob = (context(None).idempotency_key(name) for name in ("ann", "bob"))
    assert ann != bob
    assert context("ann").idempotency_key()
    in_part = context("ann")
    begin_key(in_part, "ann", group='["ann", "1"]')
    assert in_part.idempotency_key() != context("ann").idempotency_key()


def test_random_numbers() -> None:
    """A replay, or the same step after a split, would draw other numbers."""
    step, other = context("k"), context(None)
    assert step.random("a").random() == step.random("a").random() == other.random("a").random()
    drawn = {
        step.random("a").random(),
        step.random("b").random(),
        context(stage="second").random("a").random(),
        context(step=StepTime("flow", 8, NOON)).random("a").random(),
    }
    assert len(drawn) == 4
    assert step.random("a").randrange(10**6) == 726760


def test_context_after_its_call() -> None:
    """What a thread of the host's hands out later would belong to no step."""
    step = context()
    step.emit(LINES, 5)
    assert end_context(step).results == [StreamResult("lines", "k", "5")]
    calls: dict[str, Any] = {
        "emit to 'lines'": lambda: step.emit(LINES, 5),
        "send to 'second'": lambda: step.send(SECOND, "a", 1),
        "set_timer": lambda: step.set_timer(NOON),
    }
    for text, call in calls.items():
        with pytest.raises(PipelineError, match=f"{text} was used after its call"):
            call()


def test_effects_are_dropped_from_a_mark() -> None:
    """What a key that failed had handed out would be written with the results of the others."""
    step = context("a")
    effects = effects_of(step)
    step.emit(LINES, 1)
    step.send(SECOND, "x", 1)
    mark, before = effects.mark(), effects.message_bytes
    begin_key(step, "b")
    step.emit(LINES, 2)
    step.send(SECOND, "y", 22)
    step.set_timer(NOON)
    effects.cut_to(mark, "b")
    assert [result.stored for result in effects.results] == ["1"]
    assert (effects.messages["second"].keys, effects.timers) == (["x"], {})
    assert effects.message_bytes == before
