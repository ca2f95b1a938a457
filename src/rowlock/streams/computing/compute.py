"""What a shard computes in one stage of a step: rows and states in, everything that follows out.

A pure function of its arguments, if the handler is one; so it runs in a thread, and a replay gives
the same. Nothing of a step is kept here: if it fails, or its transaction does, the caller has what
it had before.

Events of keys that fail again and again become dead letters, which are results of the step that
goes on without them: none is lost and none is there twice. Their error is no part of a digest: its
text may be another one in a replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

from rowlock.errors import describe
from rowlock.stream_errors import WrongShardError
from rowlock.streams.computing.encoding import VALUE_BYTES_MAX, Codec
from rowlock.streams.computing.handlers import (
    FORGET,
    NOTHING_YET,
    Effects,
    HandedOut,
    StageHandler,
    StepContext,
    StepTime,
    StreamResult,
    begin_key,
    effects_of,
    end_context,
)
from rowlock.streams.computing.hashing import BucketRange, Digest, bucket_of, key_text
from rowlock.streams.computing.rows import (
    EventBatch,
    Groups,
    SentMessages,
    SourceRows,
    digested,
    grouped,
    grouped_by,
)
from rowlock.tasks import as_ordinary

DEAD_LETTERS: Final = "dead_letters"
"""The output of a flow that has them."""
PAYLOAD_BYTES_MAX: Final = VALUE_BYTES_MAX // 3
"""Longest text of an event that is kept with its dead letter: in quotes it gets longer."""


class DeadLetter(NamedTuple):
    """The events of a key that could not be processed; no rows if only its timer was due."""

    key: str
    error: str
    rows: tuple[SourceRows, ...]


@dataclass(frozen=True)
class DeadEvent:
    """An event that no handler could process: a result of the output `StreamFlow.dead_letters`.

    Attributes:
        stage: the name of the handler.
        key: the text of the event's key.
        error: what the handler raised, shortened.
        source: the stream of the event; None: there was no event, the timer of the key was due.
        position: of the event in its stream; of a message of another stage, its number among those
            to the key in this step.
        payload: the event as JSON; None if it is too long to be kept here.
    """

    stage: str
    key: str
    error: str
    source: str | None
    position: int | None
    payload: str | None


CODEC: Final = Codec(DeadEvent)


def dead_results(stage: str, letters: Iterable[DeadLetter]) -> list[StreamResult]:
    """Return a result for each event of `letters`; one for a letter without events."""
    return [
        StreamResult(DEAD_LETTERS, letter.key, CODEC.encode(event))
        for letter in letters
        for event in _events_of(stage, letter)
    ]


def _events_of(stage: str, letter: DeadLetter) -> list[DeadEvent]:
    of = (stage, letter.key, letter.error)
    if not letter.rows:
        return [DeadEvent(*of, None, None, None)]
    return [
        DeadEvent(*of, part.source, position, text if len(text) <= PAYLOAD_BYTES_MAX else None)
        for part in letter.rows
        for position, text in zip(part.positions, part.decoder.texts(part.raw), strict=True)
    ]


class KeyState(NamedTuple):
    """What is stored of a key: its encoded state and its timer. Where both are None, nothing is."""

    value: Any = None
    timer_at: datetime | None = None


NO_STATE = KeyState()


@dataclass(frozen=True, slots=True)
class PoisonedKey:
    """Why a stage could not be computed; a batch handler that failed names no key."""

    stage: str
    step: int
    key: str | None
    error: Exception

    @property
    def text(self) -> str:
        """What is shown and stored of it."""
        of = "" if self.key is None else f" for the key {self.key!r}"
        return f"step {self.step}: {self.stage!r} failed{of}: {describe(self.error)}"


@dataclass(frozen=True, slots=True)
class Computed:
    rows: int
    input_digest: str
    output_digest: str
    states: dict[str, KeyState]  # of keys whose state or timer has changed; `NO_STATE` drops a key
    # In the order in which they were emitted; then those of `dead_letters`
    results: list[StreamResult]
    messages: dict[str, SentMessages]
    dead_letters: list[DeadLetter] = field(default_factory=list)
    # How much the shard has handed out in the step, up to this stage
    handed_out: HandedOut = NOTHING_YET


States: TypeAlias = Mapping[str, KeyState]


def keys_of(stage: StageHandler, batch: EventBatch[Any]) -> dict[str, Any]:
    """Return the keys whose states `compute` needs beside those with a due timer, by text."""
    # Of a fold, with what its rows are found by.
    if stage.kind == "fold":
        return _groups_of(stage, batch).values
    return {key: key for key in batch.keys}


def compute(
    stage: StageHandler,
    batch: EventBatch[Any],
    states: States,
    *,
    step: StepTime,
    shard: BucketRange,
    is_last_attempt: bool = False,
    before: HandedOut = NOTHING_YET,
) -> Computed | PoisonedKey:
    """Return what follows from the events of a shard in one stage of a step."""
    # `states` has those of the keys of `keys_of`, and of keys whose timer is due; more do no harm.
    # In the last attempt, and always in a replay, keys that fail are set aside with their events,
    # if the stage has dead letters: what failed then is to fail again.
    batch = batch.with_timers(due_keys(states, step.now))
    context = StepContext(
        step,
        stage.name,
        stage.outputs,
        later=stage.later,
        before=before,
        has_timers=stage.kind != "fold",
    )
    moves = stage.dead_letters and is_last_attempt
    run = _Run(stage, batch, states, context=context, moves=moves)
    digest, without = digested(batch.parts)
    batch.broken.update(without)
    failed = run.batch(shard) if stage.kind == "batch" else run.by_key()
    if failed is not None:
        return failed
    effects = end_context(context)
    is_batch = stage.kind == "batch"
    messages = {name: each.ordered(is_batch) for name, each in effects.messages.items()}
    return Computed(
        len(batch),
        digest,
        _output_digest(run, effects),
        run.after,
        [*effects.results, *dead_results(stage.name, run.dead)],
        messages,
        run.dead,
        effects.handed_out,
    )


def due_keys(states: States, now: datetime) -> list[str]:
    """Return the keys whose timer is due at `now`; the earliest first."""
    due = [
        (state.timer_at, key)
        for key, state in states.items()
        if state.timer_at is not None and state.timer_at <= now
    ]
    return [key for _, key in sorted(due)]


def _groups_of(stage: StageHandler, batch: EventBatch[Any]) -> Groups[Any]:
    return grouped(batch) if stage.by is None else grouped_by(batch, stage.by)


class _Run:
    def __init__(
        self,
        stage: StageHandler,
        batch: EventBatch[Any],
        states: States,
        *,
        context: StepContext,
        moves: bool,
    ) -> None:
        self.stage = stage
        self.events = batch
        self.states = states
        self.context = context
        self.effects = effects_of(context)
        self.moves = moves
        self.due = frozenset(batch.timers)
        self.after: dict[str, KeyState] = {}
        self.dead: list[DeadLetter] = []

    def by_key(self) -> PoisonedKey | None:
        groups = _groups_of(self.stage, self.events)
        for key, error in groups.broken.items():
            if not self.moves:
                return self.poison(key, error)
            self.move(key, error)
        waiting = (key for key in self.events.timers if key not in groups.events)
        keys = [*groups.events, *(key for key in waiting if key not in groups.broken)]
        try:
            states = self.decoded(keys)
        # A class of the host's may raise anything when it is made. It is made again, key by key.
        except Exception:  # noqa: BLE001
            states = {}
        for key in keys:
            mark = self.effects.mark() if self.moves else None
            try:
                state = states[key] if key in states else self.decoded([key])[key]
                value = groups.values.get(key, key)
                self.call(key, value, state, events=groups.events.get(key, []))
            # A handler may raise anything; an exit must not reach the event loop from its thread.
            except BaseException as error:  # noqa: BLE001
                if mark is None:
                    return self.poison(key, as_ordinary(error))
                self.effects.cut_to(mark, key)
                self.move(key, as_ordinary(error))
        return None

    def call(self, key: str, value: Any, state: Any, *, events: list[Any]) -> None:
        named = key if value is key else key_text(value[0] if isinstance(value, tuple) else value)
        begin_key(self.context, named, group=key)
        after = self.stage.call_by_key(self.context, value, state, events=events)
        self.keep(key, after)

    def keep(self, key: str, after: Any) -> None:
        before = self.states.get(key, NO_STATE)
        is_dropped = after is FORGET
        codec = self.stage.codec
        stored = None if is_dropped or codec is None else codec.encode(after)
        changed = KeyState(stored, self.timer_after(key, before, is_dropped=is_dropped))
        if changed != before:
            self.after[key] = changed

    def timer_after(self, key: str, before: KeyState, *, is_dropped: bool) -> datetime | None:
        """Return the timer of a key after its events: one that was due has been used."""
        is_used = is_dropped or key in self.due
        return self.effects.timers.get(key, None if is_used else before.timer_at)

    def decoded(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return the states of keys; raise what is wrong with one of them."""
        stored = {key: self.states.get(key, NO_STATE).value for key in keys}
        known = {key: value for key, value in stored.items() if value is not None}
        if self.stage.codec is None or not known:
            return dict.fromkeys(keys)
        values = self.stage.codec.decode_many(list(known.values()))
        return {**dict.fromkeys(keys), **dict(zip(known, values, strict=True))}

    def move(self, key: str, error: Exception) -> None:
        """Set the events of a key aside. Its state stays, and a timer that was due is used."""
        parts = (_of_key(part, key) for part in self.events.parts)
        rows = tuple(part for part in parts if len(part))
        self.dead.append(DeadLetter(key, describe(error), rows))
        if key in self.due:
            self.after[key] = KeyState(self.states[key].value)

    def poison(self, key: str | None, error: Exception) -> PoisonedKey:
        return PoisonedKey(self.stage.name, self.context.number, key, error)

    def batch(self, shard: BucketRange) -> PoisonedKey | None:
        for broken, error in self.events.broken.items():
            return self.poison(broken, error)
        begin_key(self.context, None)
        keys = dict.fromkeys(chain(self.events.keys, self.events.timers))
        key: str | None = None
        try:
            states = self.decoded([key for key in keys if key in self.states])
            given = {key: state for key, state in states.items() if state is not None}
            after = self.stage.call_batch(self.context, self.events, given)
            for key in sorted({*after, *self.effects.timers}):
                self.check_key(key, keys, shard)
                if key in after:
                    self.keep(key, after[key])
            key = None
            self.keep_timers(after)
        # As above.
        except BaseException as error:  # noqa: BLE001
            return self.poison(*self.cause(key, as_ordinary(error)))
        return None

    def keep_timers(self, after: Mapping[str, Any]) -> None:
        for key in sorted({*self.effects.timers, *self.due} - after.keys()):
            before = self.states.get(key, NO_STATE)
            changed = KeyState(before.value, self.timer_after(key, before, is_dropped=False))
            if changed != before:
                self.after[key] = changed

    def check_key(self, key: str, keys: Mapping[str, None], shard: BucketRange) -> None:
        """Refuse the state of a key that the handler was not given: it was not read."""
        if key in keys:
            return
        if bucket_of(key) not in shard:
            raise WrongShardError(key=key, shard=str(shard))
        msg = f"{self.stage.name!r} returned a state of the key {key!r}, of which it had no events"
        raise ValueError(msg)

    def cause(self, key: str | None, error: Exception) -> tuple[str | None, Exception]:
        """Return the key whose rows cannot be read, and why, if that may be what went wrong."""
        broken = {} if key is not None else grouped(self.events).broken
        return next(iter(broken.items()), (key, error))


def _of_key(part: SourceRows, key: str) -> SourceRows:
    rows = part.at([index for index, own in enumerate(part.keys) if own == key])
    # Results are the same in each layout: messages have the numbers that they have for their key.
    return replace(rows, positions=range(len(rows))) if rows.is_sent else rows


def _output_digest(run: _Run, effects: Effects) -> str:
    digest = Digest()
    results = effects.results
    digest.add([result.output for result in results])
    digest.add([result.key or "" for result in results])
    digest.add([result.stored for result in results])
    for name, messages in sorted(effects.messages.items()):
        digest.add([name])
        digest.add(messages.keys)
        digest.add(messages.texts)
    digest.add(list(run.after))
    digest.add(["" if state.value is None else str(state.value) for state in run.after.values()])
    timers = (state.timer_at for state in run.after.values())
    digest.add(["" if at is None else at.isoformat() for at in timers])
    for letter in run.dead:
        # Not the error, whose text may have an address in it.
        digest.add([letter.key])
        digest.add([str(position) for part in letter.rows for position in part.positions])
    return str(digest)
