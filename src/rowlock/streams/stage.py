"""A stage of a flow: where a host registers the handler that gets its events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar, overload

from rowlock.errors import ConfigurationError
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.computing.handlers import (
    BatchHandler,
    HandlerKind,
    KeyHandler,
    StageHandler,
    StatelessKeyHandler,
)

E = TypeVar("E")
S = TypeVar("S")

Poison = Literal["park", "dead_letter"]
StatelessBatchHandler = BatchHandler[E, Any]


class StreamStage(Generic[E]):
    """A part of a flow that gets events and calls the host's handler with them.

    Attributes:
        flow_name: of the flow.
    """

    def __init__(self, flow_name: str) -> None:
        self.flow_name = flow_name
        self._handler: StageHandler | None = None

    @overload
    def by_key(
        self, *, state: None = None, poison: Poison = "park"
    ) -> Callable[[StatelessKeyHandler[E]], StatelessKeyHandler[E]]: ...
    @overload
    def by_key(
        self, *, state: type[S], poison: Poison = "park"
    ) -> Callable[[KeyHandler[S, E]], KeyHandler[S, E]]: ...
    def by_key(self, *, state: Any = None, poison: Poison = "park") -> Any:
        """Have a function called with each key and its events in a step:
        ``handler(step, key, state, events) -> state``.

        Args:
            state: the type of what is kept for each key; such as a dataclass. None: nothing is.
            poison: what becomes of a key whose events fail again and again: its shard is parked, or
                the events are moved to the dead letters.

        Raises:
            ConfigurationError: the stage has a handler, or the function cannot be one.
            TypeError: values of `state` cannot be stored.
        """
        return self._register("by_key", state, poison)

    @overload
    def batch(
        self, *, state: None = None
    ) -> Callable[[StatelessBatchHandler[E]], StatelessBatchHandler[E]]: ...
    @overload
    def batch(self, *, state: type[S]) -> Callable[[BatchHandler[E, S]], BatchHandler[E, S]]: ...
    def batch(self, *, state: Any = None) -> Any:
        """Have a function called once in a step with all events of a shard:
        ``handler(step, batch, states) -> changed states``.

        Args:
            state: the type of what is kept for each key. None: nothing is.

        Raises:
            ConfigurationError: the stage has a handler, or the function cannot be one.
            TypeError: values of `state` cannot be stored.
        """
        return self._register("batch", state, "park")

    def _register(self, kind: HandlerKind, state: Any, poison: Poison) -> Any:
        codec = None if state is None else Codec(state)

        def register(call: Callable[..., Any]) -> Callable[..., Any]:
            if self._handler is not None:
                msg = f"{self.flow_name!r} has a handler already: {self._handler.name}"
                raise ConfigurationError(msg)
            name = getattr(call, "__name__", type(call).__name__)
            self._handler = StageHandler(
                name, kind, call, codec, dead_letters=poison == "dead_letter"
            )
            return call

        return register
