"""The same cuts give the same results, in each layout and in a replay: two whole flows without a
database, recounted by plain code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowlock.streams.computing.compute import Computed, KeyState, due_keys
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.computing.handlers import FORGET, Forget, StageHandler, StepContext, StepTime
from rowlock.streams.computing.hashing import BucketRange, bucket_of
from rowlock.streams.computing.rows import EventBatch, SentMessages, SourceRows, divide
from rowlock.streams.shards.layout import even_layout

from .stages import NOON, Later, Out, computed, rows_of


@dataclass(frozen=True)
class Use:
    account: str
    units: int


@dataclass(frozen=True)
class Month:
    begins: date
    units: int = 0


@dataclass(frozen=True)
class Line:
    account: str
    begins: date
    units: int


@dataclass(frozen=True)
class Transfer:
    payer: str
    payee: str
    cents: int


LINES = Out("lines", Line)
POSTINGS = Later("postings", int)
ALARMS = Out("alarms", dict)


def first_of_next(day: date) -> datetime:
    after = (day.replace(day=1) + timedelta(32)).replace(day=1)
    return datetime(after.year, after.month, 1, tzinfo=NOON.tzinfo)


def meter(
    step: StepContext, account: str, month: Month | None, events: Sequence[Use]
) -> Month | Forget:
    this = step.now.date().replace(day=1)
    if month is not None and month.begins < this:
        step.emit(LINES, Line(account, month.begins, month.units))
        month = None
    if not events:
        return FORGET
    step.set_timer(first_of_next(this))
    before = month or Month(this)
    return replace(before, units=before.units + sum(event.units for event in events))


def split(step: StepContext, batch: EventBatch[Transfer], _: object) -> None:
    """Send each half of a transfer to its account."""
    step.send_many(POSTINGS, batch.column("payer"), [-cents for cents in batch.column("cents")])
    step.send_many(POSTINGS, batch.column("payee"), batch.column("cents"))


def post(step: StepContext, account: str, cents: int | None, moves: Sequence[int]) -> int:
    """Keep a balance, with an alarm where it is short."""
    after = (cents or 0) + sum(moves)
    if after < 0:
        noise = step.random(account).randrange(1000)
        key = step.idempotency_key()
        step.emit(ALARMS, {"dedup_key": key, "account": account, "cents": after, "noise": noise})
    return after


METERING = (StageHandler("meter", "by_key", meter, Codec(Month), outputs={"lines": LINES}),)
ACCOUNTS = (
    StageHandler("split", "batch", split, later={"postings": POSTINGS}),
    StageHandler("postings", "by_key", post, Codec(int), outputs={"alarms": ALARMS}),
)


class Outcome(NamedTuple):
    """What a flow has done: states, and results by step."""

    states: dict[str, dict[str, KeyState]]
    results: list[list[Any]]


def run_flow(
    stages: Sequence[StageHandler], steps: Sequence[tuple[datetime, SourceRows]], shards: int
) -> Outcome:
    """Compute all steps, each of them twice, with so many shards."""
    layout = even_layout(shards)
    states: dict[str, dict[str, KeyState]] = {stage.name: {} for stage in stages}
    results: list[list[Any]] = []
    for number, (now, rows) in enumerate(steps):
        step, emitted = StepTime("flow", number, now), []
        parts = divide(rows, layout)
        for index, stage in enumerate(stages):
            done = [
                stage_of_shard(stage, part, states[stage.name], step, own)
                for part, own in zip(parts, layout, strict=True)
            ]
            for one in done:
                states[stage.name].update(one.states)
                emitted += [tuple(result) for result in one.results]
            if index + 1 < len(stages):
                parts = divide(
                    joined(one.messages.get(stages[index + 1].name) for one in done), layout
                )
        results.append(sorted(emitted, key=repr))
    kept = {
        name: {key: state for key, state in each.items() if state != KeyState()}
        for name, each in states.items()
    }
    return Outcome(kept, results)


def stage_of_shard(
    stage: StageHandler,
    part: SourceRows,
    states: dict[str, KeyState],
    step: StepTime,
    own: BucketRange,
) -> Computed:
    """Compute one stage for one shard; and once more, as a replay does."""
    here = {key: state for key, state in states.items() if bucket_of(key) in own}
    wanted = {*part.keys, *due_keys(here, step.now)}
    given = {key: state for key, state in here.items() if key in wanted}
    first, again = (
        computed(stage, EventBatch([part]), given, step=step, shard=own) for _ in range(2)
    )
    assert first == again
    return first


def joined(sent: Iterable[SentMessages | None]) -> SourceRows:
    some = [each for each in sent if each is not None]
    keys = [key for each in some for key in each.keys]
    buckets = [bucket for each in some for bucket in each.buckets]
    texts = [text for each in some for text in each.texts]
    return SourceRows("postings", range(len(keys)), buckets, keys, texts, POSTINGS.codec)


names = st.sampled_from(["ann", "bob", "cy", "dee", "eve", "ä"])
days = st.integers(1, 40)
uses = st.lists(st.tuples(days, st.lists(st.builds(Use, names, st.integers(0, 9)))), min_size=1)
transfers = st.lists(st.lists(st.builds(Transfer, names, names, st.integers(0, 9))), max_size=6)


@pytest.mark.parametrize("shards", [2, 16])
@settings(max_examples=30, deadline=None)
@given(uses)
def test_metering(shards: int, steps: list[tuple[int, list[Use]]]) -> None:
    """With another number of shards there would be other invoices; or a unit would be on none."""
    now, cuts, expected, months = NOON, [], Counter[tuple[str, date]](), set()
    for days_later, events in steps:
        now += timedelta(days_later)
        cuts.append((now, rows_of("uses", Use, *((use.account, use) for use in events))))
        for use in events:
            expected[use.account, now.date().replace(day=1)] += use.units
            months.add((use.account, now.date().replace(day=1)))
    cuts.append((now + timedelta(62), rows_of("uses", Use)))
    found = run_flow(METERING, cuts, shards)
    assert found == run_flow(METERING, cuts, 1)
    lines = [LINES.codec.decode(stored) for step in found.results for _, _, stored in step]
    assert len(lines) == len(months)
    assert {(line.account, line.begins): line.units for line in lines} == {
        month: expected[month] for month in months
    }
    assert found.states == {"meter": {}}


@pytest.mark.parametrize("shards", [2, 16])
@settings(max_examples=30, deadline=None)
@given(transfers)
def test_accounts(shards: int, steps: list[list[Transfer]]) -> None:
    """With another number of shards there would be other alarms; or the sum would not be zero."""
    cuts = [
        (NOON, rows_of("transfers", Transfer, *((move.payer, move) for move in moves)))
        for moves in steps
    ]
    found = run_flow(ACCOUNTS, cuts, shards)
    assert found == run_flow(ACCOUNTS, cuts, 1)
    expected: defaultdict[str, int] = defaultdict(int)
    for move in (move for moves in steps for move in moves):
        expected[move.payer] -= move.cents
        expected[move.payee] += move.cents
    balances = {key: int(state.value) for key, state in found.states["postings"].items()}
    assert balances == dict(expected)
    assert sum(balances.values()) == 0
    alarms = [stored["dedup_key"] for step in found.results for _, _, stored in step]
    assert len(set(alarms)) == len(alarms)
