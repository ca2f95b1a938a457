"""What type checkers say of handlers of streams. Never run: `test_pins.py` has it checked.

A line that ends in ``# refused`` is an error for each of them, and no other line is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from random import Random
from typing import assert_type

from rowlock.streams.computing.encoding import Codec
from rowlock.streams.computing.handlers import (
    FORGET,
    BatchHandler,
    FoldHandler,
    Forget,
    KeyHandler,
    MessageTarget,
    ResultTarget,
    StatelessKeyHandler,
    StepContext,
)
from rowlock.streams.computing.rows import EventBatch
from rowlock.streams.snapshots import StateSnapshot


@dataclass(frozen=True)
class Use:
    account: str
    units: int


@dataclass(frozen=True)
class Month:
    begins: date
    units: int = 0


@dataclass
class Balance:
    account: str
    cents: int = 0


def by_key(handler: KeyHandler[Month, Use]) -> None:
    """Register a handler by key."""


def without_state(handler: StatelessKeyHandler[Use]) -> None:
    """Register a handler by key that has no state."""


def in_batch(handler: BatchHandler[Use, Month]) -> None:
    """Register a handler over batches."""


def into_rows(handler: FoldHandler[Balance, Use]) -> None:
    """Register a fold."""


def meter(
    step: StepContext, account: str, month: Month | None, events: Sequence[Use]
) -> Month | Forget:
    if not events:
        return FORGET
    before = month or Month(step.now.date())
    return replace(before, units=before.units + sum(event.units for event in events))


def always(step: StepContext, account: str, month: Month | None, events: list[Use]) -> Month:
    return month or Month(step.now.date(), len(events))


def forgets_return(
    step: StepContext, account: str, month: Month | None, events: Sequence[Use]
) -> Month | None:
    return month


def needs_state(step: StepContext, account: str, month: Month, events: Sequence[Use]) -> Month:
    return month


def of_numbers(
    step: StepContext, account: str, month: Month | None, events: Sequence[int]
) -> Month:
    return month or Month(step.now.date(), sum(events))


def of_other_state(
    step: StepContext, account: str, month: int | None, events: Sequence[Use]
) -> int:
    return month or 0


async def later(
    step: StepContext, account: str, month: Month | None, events: Sequence[Use]
) -> Month:
    return month or Month(step.now.date())


def of_one(step: StepContext, account: str, month: Month | None, event: Use) -> Month:
    return month or Month(step.now.date(), event.units)


def of_bytes(
    step: StepContext, account: bytes, month: Month | None, events: Sequence[Use]
) -> Month:
    return month or Month(step.now.date())


def no_state(step: StepContext, account: str, state: None, events: Sequence[Use]) -> None:
    """Have no state."""


def registered() -> None:
    by_key(meter)
    by_key(always)
    without_state(no_state)
    by_key(forgets_return)  # refused
    by_key(needs_state)  # refused
    by_key(of_numbers)  # refused
    by_key(of_other_state)  # refused
    by_key(later)  # refused
    by_key(of_one)  # refused
    by_key(of_bytes)  # refused
    by_key(no_state)  # refused
    without_state(meter)  # refused


def batch(
    step: StepContext, events: EventBatch[Use], states: Mapping[str, Month]
) -> Mapping[str, Month | Forget]:
    assert_type(events.rows, list[Use])
    assert_type(events.groups(), dict[str, list[Use]])
    assert_type(events.counts(), dict[str, int])
    assert_type(events.keys, list[str])
    return dict.fromkeys(states, FORGET)


def quiet_batch(step: StepContext, events: EventBatch[Use], _: Mapping[str, Month]) -> None:
    """Change nothing."""


def batch_of_lists(
    step: StepContext, events: EventBatch[Use], states: Mapping[str, Month]
) -> list[Month]:
    return list(states.values())


def batch_of_numbers(step: StepContext, events: EventBatch[int], _: Mapping[str, Month]) -> None:
    """Take other events."""


def fold(step: StepContext, row: Balance, events: Sequence[Use]) -> None:
    row.cents += len(events)


def fold_of_a_value(step: StepContext, row: Balance, events: Sequence[Use]) -> Balance:
    return row


def registered_too() -> None:
    in_batch(batch)
    in_batch(quiet_batch)
    into_rows(fold)
    in_batch(batch_of_lists)  # refused
    in_batch(batch_of_numbers)  # refused
    in_batch(meter)  # refused
    into_rows(batch)  # refused
    into_rows(fold_of_a_value)  # refused


def hand_out(
    step: StepContext, months: ResultTarget[Month], second: MessageTarget[int], at: datetime
) -> None:
    assert_type(step.now, datetime)
    assert_type(step.number, int)
    assert_type(step.random("a"), Random)
    step.emit(months, Month(step.now.date()))
    step.emit(months, {"begins": step.now.date()}, key=5)
    step.send(second, "a", 5)
    step.send_many(second, ["a", "b"], [5, 6])
    step.set_timer(at)
    step.emit(months, 5)  # refused
    step.emit(second, 5)  # refused
    step.send(second, "a", "b")  # refused
    step.send(months, "a", Month(step.now.date()))  # refused
    step.send(second, 1.5, 5)  # refused
    step.set_timer(step.number)  # refused


def coded(months: Codec[Month]) -> None:
    assert_type(Codec(Month).decode_many([]), list[Month])
    months.encode(5)  # refused


async def frozen_states(frozen: StateSnapshot) -> None:
    async for key, month in frozen.items(meter):
        assert_type((key, month), tuple[str, Month])
    async for _, month in frozen.items(batch):
        assert_type(month, Month)
    async for _, month in frozen.items("meter", Month):
        assert_type(month, Month)
    frozen.items(fold)  # refused
    frozen.items("meter", 5)  # refused
