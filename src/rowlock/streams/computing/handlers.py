"""Handlers: the host's functions by key, over batches and into rows, each reduced to one shape.

A handler is plain code without input and output. What it gets and returns is all that it does, so
a step can be repeated, and only what it handed out through `StepContext` leaves it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from types import CoroutineType
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

from rowlock.errors import ConfigurationError
from rowlock.streams.computing.batch import EventBatch
from rowlock.streams.computing.context import MessageTarget, ResultTarget, StepContext
from rowlock.streams.computing.hashing import Key

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
    """Writes and reads the states of a stage."""

    @property
    def name(self) -> str:
        """What states are, the same in each process: the name of their type, or of their table."""
        ...

    def encode(self, value: Any, /) -> Any:
        """Return what is stored of a state.

        Raises:
            TypeError: it is of another type.
            ValueError: it is too long.
        """
        ...

    def decode_many(self, texts: Sequence[Any], /) -> list[Any]:
        """Return the states of what is stored.

        Raises:
            ValueError: there is none.
        """
        ...


@dataclass(frozen=True)
class StageHandler:
    """A stage of a flow, as far as it computes.

    Attributes:
        name: of the stage, within the flow.
        kind: how the handler is called.
        call: the handler.
        codec: of its states; None if it has none.
        dead_letters: a key that fails is set aside with its events, after the last attempt.
        by: of a fold, what events are grouped by; by their key if it is None.
        fresh: of a fold, makes the row of a group of which there is none, from its key, or from
            what `by` returned.
        outputs: of the flow, by name.
        later: stages behind this one, by name.
    """

    name: str
    kind: HandlerKind
    call: Callable[..., Any]
    codec: StateCodec | None = None
    dead_letters: bool = False
    by: GroupKey[Any] | None = None
    fresh: Callable[[Any], Any] | None = None
    outputs: Mapping[str, ResultTarget[Any]] = field(default_factory=dict)
    later: Mapping[str, MessageTarget[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_handler(self.call, self.kind)

    def call_by_key(self, context: StepContext, key: Any, state: Any, *, events: list[Any]) -> Any:
        """Return the state of a key after its events: the one shape of handlers by key and of
        folds. It is None where the stage has no states.

        Args:
            context: of the step.
            key: the text of the key; of a fold, what `fresh` takes.
            state: of the key; None if it has none.
            events: of the key; none where only its timer is due.

        Raises:
            TypeError: the handler returned what it must not.
            Exception: whatever the handler raised.
        """
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
        """Return the changed states by key, after the events of all keys.

        Raises:
            TypeError: the handler returned what it must not.
            Exception: whatever the handler raised.
        """
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
    """Return the name of a handler."""
    name: str = getattr(call, "__name__", type(call).__name__)
    return name


def check_handler(call: object, kind: HandlerKind) -> None:
    """Check the function that a host registers.

    Raises:
        ConfigurationError: it cannot be called, is a coroutine function or a generator, or takes
            other arguments.
    """
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
