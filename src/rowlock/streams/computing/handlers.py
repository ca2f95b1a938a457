"""Handlers: the host's functions by key, over batches and into rows, each reduced to one shape; and
what a handler sees of its step and hands out: results, messages and timers.

A handler is plain code without input and output. What it gets and returns is all that it does, so
a step can be repeated, and only what it handed out through `StepContext` leaves it. Whatever is not
in its arguments comes from there, and is the same in every replay and layout: the time is that of
the cut, and random numbers are drawn by key.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from hashlib import sha256
from random import Random
from types import CoroutineType
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from rowlock.errors import ConfigurationError, PipelineError
from rowlock.streams.computing.hashing import Key, key_text
from rowlock.streams.computing.rows import EventBatch, Messages

RESULTS_MAX = 100_000
"""Most results of a shard in a step."""
MESSAGES_MAX = 1_000_000
"""Most messages of a shard in a step."""
MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""Longest messages of a shard in a step, all together, in bytes."""
_ID_CHARS = 32

O_contra = TypeVar("O_contra", contravariant=True)
F_contra = TypeVar("F_contra", contravariant=True)
T = TypeVar("T")


class ResultTarget(Protocol[O_contra]):
    """An output, as far as a handler emits to it."""

    @property
    def name(self) -> str: ...

    def stored(self, value: O_contra | Mapping[str, Any], /) -> str | Mapping[str, Any]:
        """Return what is written of a result: its text, or the values of a row."""
        ...


class MessageTarget(Protocol[F_contra]):
    """A later stage, as far as a handler sends to it."""

    @property
    def name(self) -> str: ...

    def message_texts(self, messages: Sequence[F_contra], /) -> list[str]: ...


class StepTime(NamedTuple):
    """Which step it is, and its time: aware, in UTC, as it was recorded with the cut."""

    flow: str
    number: int
    now: datetime


class StreamResult(NamedTuple):
    """A result of a step: a text, or the values of a row; no key if a batch handler named none."""

    output: str
    key: str | None
    stored: str | Mapping[str, Any]


class HandedOut(NamedTuple):
    """How much a shard has handed out in a step, to all stages."""

    results: int = 0
    messages: int = 0
    message_bytes: int = 0


NOTHING_YET = HandedOut()


@dataclass(slots=True)
class Effects:
    """What a handler has handed out so far; `before` is what earlier stages of the shard have."""

    results: list[StreamResult]
    messages: dict[str, Messages]
    timers: dict[str, datetime]
    message_bytes: int = 0
    before: HandedOut = NOTHING_YET

    @property
    def handed_out(self) -> HandedOut:
        before = self.before
        messages = sum(len(each.keys) for each in self.messages.values())
        return HandedOut(
            before.results + len(self.results),
            before.messages + messages,
            before.message_bytes + self.message_bytes,
        )

    def mark(self) -> tuple[int, dict[str, int], int]:
        """Return where the effects end now."""
        counts = {name: len(each.keys) for name, each in self.messages.items()}
        return len(self.results), counts, self.message_bytes

    def cut_to(self, mark: tuple[int, dict[str, int], int], key: str) -> None:
        """Drop what was handed out for `key` since `mark`."""
        del self.results[mark[0] :]
        for name, messages in self.messages.items():
            messages.cut_to(mark[1].get(name, 0))
        self.message_bytes = mark[2]
        self.timers.pop(key, None)


class StepContext:
    """The step of which a handler gets events.

    It lives as long as the call of the handler.

    Attributes:
        number: of the step.
        now: the time of the step, aware. It is recorded with the step and never goes back.
        flow: the name of the flow.
    """

    __slots__ = (
        *("_effects", "_group", "_has_timers", "_key", "_later", "_outputs", "_stage"),
        *("flow", "now", "number"),
    )

    def __init__(
        self,
        step: StepTime,
        stage: str,
        outputs: Mapping[str, ResultTarget[Any]],
        *,
        later: Mapping[str, MessageTarget[Any]],
        before: HandedOut = NOTHING_YET,
        has_timers: bool = True,
    ) -> None:
        self.flow, self.number, self.now = step
        self._stage = stage
        self._outputs = outputs
        self._later = later
        self._has_timers = has_timers
        self._key: str | None = None
        self._group: str | None = None
        self._effects: Effects | None = Effects([], {}, {}, before=before)

    def emit(
        self, output: ResultTarget[T], value: T | Mapping[str, Any], *, key: Key | None = None
    ) -> None:
        """Hand out a result. It is written with the step, or not at all.

        Args:
            output: of this flow.
            value: of the output's type; values by column, for an output into a table.
            key: of the result; by default the key whose events the handler has.

        Raises:
            TypeError: the value is of another type than the output's.
            ValueError: the output is one of another flow, there are more than `RESULTS_MAX`
                results, or the value is too long.
            PipelineError: the call of the handler has ended.
        """
        effects = self._open_effects("emit", output)
        if self._outputs.get(getattr(output, "name", ""), self) is not output:
            msg = (
                f"{_named(output)} is no output of the flow {self.flow!r}: pass what its `output`"
                " method has returned"
            )
            raise ValueError(msg)
        if effects.before.results + len(effects.results) >= RESULTS_MAX:
            msg = f"more than {RESULTS_MAX} results of a shard in a step"
            raise ValueError(msg)
        named = self._key if key is None else key_text(key)
        effects.results.append(StreamResult(output.name, named, output.stored(value)))

    def send(self, stage: MessageTarget[T], key: Key, message: T) -> None:
        """Send a message to a later stage, where the shard of `key` gets it within this step.

        Messages to one key come stage by stage; those of a handler by key in the order of the keys
        that it had when it sent them, and for each of these as they were sent; those of a batch
        handler in the order of their texts, since it has no key when it sends. So their order is
        the same in every layout.

        Raises:
            TypeError: the message is of another type than the stage's.
            ValueError: the stage is no later one of this flow, or there are too many messages.
            PipelineError: the call of the handler has ended.
        """
        self.send_many(stage, (key,), (message,))

    def send_many(
        self, stage: MessageTarget[T], keys: Iterable[Key], messages: Iterable[T]
    ) -> None:
        """Send many messages to a later stage, as columns.

        Args:
            stage: of this flow, behind that of the handler.
            keys: one for each message.
            messages: as many; of their order see `send`.

        Raises:
            TypeError: a message is of another type than the stage's.
            ValueError: there are more keys than messages, or fewer; or as `send`.
            PipelineError: the call of the handler has ended.
        """
        effects = self._open_effects("send", stage)
        if self._later.get(getattr(stage, "name", ""), self) is not stage:
            msg = f"{_named(stage)} is no stage of the flow {self.flow!r} behind {self._stage!r}"
            raise ValueError(msg)
        texts = stage.message_texts(list(messages))
        named = [key_text(key) for key in keys]
        if len(named) != len(texts):
            msg = f"{len(named)} keys for {len(texts)} messages"
            raise ValueError(msg)
        effects.message_bytes += sum(map(len, texts))
        effects.messages.setdefault(stage.name, Messages()).add(self._key, named, texts)
        handed_out = effects.handed_out
        if handed_out.messages > MESSAGES_MAX:
            msg = f"more than {MESSAGES_MAX} messages of a shard in a step"
            raise ValueError(msg)
        if handed_out.message_bytes > MESSAGE_BYTES_MAX:
            msg = f"messages of a shard in a step have more than {MESSAGE_BYTES_MAX} bytes"
            raise ValueError(msg)

    def set_timer(self, at: datetime, *, key: Key | None = None) -> None:
        """Have the handler called for the key in the first step at or after `at`, also if no event
        comes. A key has one timer: a later call in this or another step replaces it.
        In a step that has events of the key, too, the handler is called once, with these, and the
        timer is over: compare `now` with what the state knows.

        Args:
            at: aware. What has passed is due in the next step.
            key: whose timer it is; a batch handler must name it, one by key has its own.

        Raises:
            TypeError: a batch handler named no key; or the handler is a fold, which has no timers.
            ValueError: `at` is no aware datetime, or a handler by key named another one.
            PipelineError: the call of the handler has ended.
        """
        effects = self._open_effects("set_timer")
        if not self._has_timers:
            raise TypeError("a fold has no timers: keep a state with by_key, and emit into a table")
        named = self._key if key is None else key_text(key)
        if named is None:
            raise TypeError("set_timer in a batch needs the key whose timer it is")
        if self._key is not None and named != self._key:
            msg = f"a timer of the key {named!r} cannot be set for {self._key!r}"
            raise ValueError(msg)
        if not isinstance(at, datetime) or at.utcoffset() is None:
            msg = f"set_timer needs an aware datetime, not {at!r:.100}: write step.now + timedelta"
            raise ValueError(msg)
        effects.timers[named] = at.astimezone(UTC)

    def idempotency_key(self, *parts: Key) -> str:
        """Return a text that is the same in every replay and layout, and another one for each flow,
        step, stage, key of the handler, and `parts`. So a second result of one key in a step needs
        a part of its own; and each result of a batch handler, whose call has no key.

        Raises:
            TypeError: a part cannot be a key; or a batch handler named none.
            ValueError: as of a key.
        """
        if self._group is None and not parts:
            # It would be one text for all keys, and the same in each shard.
            raise TypeError(
                "idempotency_key in a batch needs what tells its results apart, such as their key"
            )
        return self._digest(*map(key_text, parts)).hex()[:_ID_CHARS]

    def random(self, key: Key) -> Random:
        """Return random numbers for `key` that are the same in every replay and layout. Each call
        begins them anew.
        """
        # By key, not by shard: a shard may be split.
        return Random(self._digest("random", key_text(key), by_key=False))

    def _digest(self, *parts: str, by_key: bool = True) -> bytes:
        own = self._group if by_key else None
        named = [self.flow, str(self.number), self._stage, own, *parts]
        return sha256(json.dumps(named).encode()).digest()

    def _open_effects(self, used: str = "step", target: object = None) -> Effects:
        if self._effects is None:
            to = "" if target is None else f" to {_named(target)}"
            raise PipelineError(
                f"{used}{to} was used after its call, of the step {self.number} of {self.flow!r}:"
                " a handler uses its step until it returns"
            )
        return self._effects


def _named(target: object) -> str:
    return f"{getattr(target, 'name', target)!r:.100}"


def begin_key(context: StepContext, key: str | None, *, group: str | None = None) -> None:
    """Let `context` speak of `key`; None in a batch."""
    # Of a fold into parts of keys, `group` is the text of the part.
    context._key = key
    context._group = key if group is None else group


def call_under_way(context: StepContext) -> tuple[str, str | None]:
    """Return the stage of a context, and the key that its handler is called with."""
    return context._stage, context._key


def effects_of(context: StepContext) -> Effects:
    return context._open_effects()


def end_context(context: StepContext) -> Effects:
    effects = context._open_effects()
    context._effects = None
    return effects


E = TypeVar("E")
S = TypeVar("S")
M = TypeVar("M")


class Forget(Enum):
    """The type of `FORGET`."""

    FORGET = "forget"


FORGET: Final = Forget.FORGET
"""What a handler returns to drop the state of a key, with its timer unless it has just set one."""

KeyHandler: TypeAlias = Callable[[StepContext, str, S | None, list[E]], S | Forget]
"""``handler(step, key, state, events) -> state``; None is the state of a new key.

The parameters are the types of the state and of the events.
"""
StatelessKeyHandler: TypeAlias = Callable[[StepContext, str, None, list[E]], None]
BatchHandler: TypeAlias = Callable[
    [StepContext, EventBatch[E], dict[str, S]], Mapping[str, S | Forget] | None
]
"""``handler(step, batch, states) -> changed states``; there is no state of a new key.

The parameters are the types of the events and of the states.
"""
FoldHandler: TypeAlias = Callable[[StepContext, M, list[E]], None]
"""``handler(step, row, events)`` changes the row.

The parameters are the types of the row and of the events.
"""
GroupKey: TypeAlias = Callable[[E], Key | tuple[Key, ...]]

HandlerKind: TypeAlias = Literal["by_key", "batch", "fold"]

_CALLS: dict[HandlerKind, tuple[str, ...]] = {
    "by_key": ("step", "key", "state", "events"),
    "batch": ("step", "batch", "states"),
    "fold": ("step", "row", "events"),
}


class StateCodec(Protocol):
    @property
    def name(self) -> str:
        """What states are, the same in each process: the name of their type, or of their table."""
        ...

    def encode(self, value: Any, /) -> Any: ...

    def decode_many(self, texts: Sequence[Any], /) -> list[Any]: ...


@dataclass(frozen=True)
class StageHandler:
    """A stage of a flow, as far as it computes."""

    name: str
    kind: HandlerKind
    call: Callable[..., Any]
    codec: StateCodec | None = None  # of its states; None if it has none
    # A key that fails is set aside with its events, after the last attempt
    dead_letters: bool = False
    # Of a fold, what events are grouped by; by their key if it is None
    by: GroupKey[Any] | None = None
    # Of a fold, makes the row of a new group, from its key, or from what `by` returned
    fresh: Callable[[Any], Any] | None = None
    rows: Any = None  # of a fold, the table of its rows
    outputs: Mapping[str, ResultTarget[Any]] = field(default_factory=dict)
    # Stages behind this one, by name
    later: Mapping[str, MessageTarget[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_handler(self.call, self.kind)

    def call_by_key(self, context: StepContext, key: Any, state: Any, *, events: list[Any]) -> Any:
        """Return the state of a key after its events; one shape for handlers by key and folds."""
        # It is None where the stage has no states.
        if self.kind == "fold":
            row = state if state is not None or self.fresh is None else self.fresh(key)
            after = _not_awaited(self.call(context, row, events), self.name)
            self._refuse(after, "a fold changes its row")
            return row
        after = _not_awaited(self.call(context, key, state, events), self.name)
        if self.codec is None:
            self._refuse(after, "without state=... there is nowhere to keep it")
        elif after is None:
            msg = f"{self.name!r} returned None: return the state, or FORGET to drop it"
            raise TypeError(msg)
        return after

    def call_batch(
        self, context: StepContext, batch: EventBatch[Any], states: dict[str, Any]
    ) -> Mapping[str, Any]:
        """Return the changed states by key, after the events of all keys."""
        after = _not_awaited(self.call(context, batch, states), self.name)
        if self.codec is None:
            self._refuse(after, "without state=... there is nowhere to keep it")
        elif after is not None and not isinstance(after, Mapping):
            msg = f"{self.name!r} returned a {type(after).__name__}, not a dict of changed states"
            raise TypeError(msg)
        changed = after or {}
        strange = set(map(type, changed)) - {str}
        if strange:
            names = ", ".join(sorted(cls.__name__ for cls in strange))
            msg = f"{self.name!r} returned states of keys of type {names}: a key is its text"
            raise TypeError(msg)
        return changed

    def _refuse(self, after: object, why: str) -> None:
        if after is not None:
            msg = f"{self.name!r} returned a {type(after).__name__}; it must return None: {why}"
            raise TypeError(msg)


def _not_awaited(after: Any, name: str) -> Any:
    if type(after) is CoroutineType:
        after.close()
        msg = (
            f"{name!r} returned a coroutine, which is not awaited: a handler is a plain function;"
            " emit to an output and deliver from there"
        )
        raise TypeError(msg)
    return after


def name_of(call: object) -> str:
    name: str = getattr(call, "__name__", type(call).__name__)
    return name


def check_handler(call: object, kind: HandlerKind) -> None:
    if not callable(call):
        msg = f"{call!r} cannot be called"
        raise ConfigurationError(msg)
    name = name_of(call)
    if _is_asynchronous(call):
        msg = (
            f"{name} is asynchronous or a generator: a handler is a plain function, since a step"
            " has no effect but its results; emit to an output and deliver from there"
        )
        raise ConfigurationError(msg)
    expected = _CALLS[kind]
    try:
        inspect.signature(call).bind(*expected)
    except TypeError:
        msg = f"{name} must take ({', '.join(expected)}), by position"
        raise ConfigurationError(msg) from None
    except ValueError:  # a function of C without a signature
        return


def _is_asynchronous(call: Any) -> bool:
    while isinstance(call, partial):
        call = call.func
    function = call if inspect.isroutine(call) else type(call).__call__
    return (
        inspect.iscoroutinefunction(function)
        or inspect.isasyncgenfunction(function)
        or inspect.isgeneratorfunction(function)
    )
