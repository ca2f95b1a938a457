"""The stages of a flow, where a host registers handlers, and the flow as it runs: everything that
was declared, checked and no longer changed.

The first stage is the flow itself, whose events are the rows of its sources. Each further one gets
the messages that earlier ones send: they go by their keys to the shards that own these, within the
step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from inspect import isroutine
from typing import Any, Generic, Literal, TypeGuard, TypeVar, get_args, overload
from unicodedata import category

from rowlock.errors import ConfigurationError
from rowlock.spi import OWNER_SEPARATOR
from rowlock.streams.computing.compute import DEAD_LETTERS
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.computing.handlers import (
    BatchHandler,
    FoldHandler,
    GroupKey,
    HandlerKind,
    KeyHandler,
    ResultTarget,
    StageHandler,
    StatelessKeyHandler,
    name_of,
)
from rowlock.streams.computing.hashing import is_storable
from rowlock.streams.cut_plan import Checkpoint
from rowlock.streams.folds import FoldModel, FoldTable, fold_handler
from rowlock.streams.inputs.source import Source
from rowlock.streams.inputs.step_inputs import FlowSources
from rowlock.streams.outputs import Output
from rowlock.streams.settings import FlowSettings
from rowlock.streams.shards.layout import DynamicShards
from rowlock.streams.tables import NAME_CHARS_MAX, StreamTables, key_of

E = TypeVar("E")
S = TypeVar("S")
M = TypeVar("M")
F = TypeVar("F")

STAGES_MAX = 8
"""Most stages of a flow."""

Poison = Literal["park", "dead_letter"]
StatelessBatchHandler = BatchHandler[E, Any]


class StreamStage(Generic[E]):
    """A part of a flow that gets events and calls the host's handler with them.

    Attributes:
        flow_name: of the flow.
    """

    def __init__(self, flow_name: str, stages: Stages) -> None:
        self.flow_name = flow_name
        self._handler: StageHandler | None = None
        self._stages = stages
        stages.add(self)

    @overload
    def by_key(
        self, *, state: None = None, poison: Poison = "park"
    ) -> Callable[[StatelessKeyHandler[E]], StatelessKeyHandler[E]]: ...
    @overload
    def by_key(
        self, *, state: type[S], poison: Poison = "park"
    ) -> Callable[[KeyHandler[S, E]], KeyHandler[S, E]]: ...
    def by_key(self, *_bare: Any, state: Any = None, poison: Poison = "park") -> Any:
        """Have a function called with each key and its events in a step:
        ``handler(step, key, state, events) -> state``.

        Args:
            state: the type of what is kept for each key; such as a dataclass. None: nothing is.
            poison: what becomes of a key whose events fail again and again: its shard is parked, or
                the events are moved to `StreamFlow.dead_letters`, and the key keeps its state.

        Raises:
            ConfigurationError: the stage has a handler, the function cannot be one, or `poison` is
                none of these.
            TypeError: values of `state` cannot be stored.
        """
        return self._registers("by_key", _bare, state=state, poison=poison)

    @overload
    def batch(
        self, *, state: None = None
    ) -> Callable[[StatelessBatchHandler[E]], StatelessBatchHandler[E]]: ...
    @overload
    def batch(self, *, state: type[S]) -> Callable[[BatchHandler[E, S]], BatchHandler[E, S]]: ...
    def batch(self, *_bare: Any, state: Any = None) -> Any:
        """Have a function called once in a step with all events of a shard:
        ``handler(step, batch, states) -> changed states``.

        Args:
            state: the type of what is kept for each key. None: nothing is.

        Raises:
            ConfigurationError: the stage has a handler, or the function cannot be one.
            TypeError: values of `state` cannot be stored.
        """
        return self._registers("batch", _bare, state=state, poison="park")

    def fold(
        self, model: type[M], *, by: GroupKey[E] | None = None, cache: bool = False
    ) -> Callable[[FoldHandler[M, E]], FoldHandler[M, E]]:
        """Have a function called with each key's row of a table of the host, and the events of the
        key in a step: ``handler(step, row, events) -> None`` changes the row.

        The row is a detached instance of the model. A new one has its key and the plain defaults of
        the model: values, and empty collections. What has changed is written in the transaction of
        the step. The host may read these rows at any time, and write them, too: a step whose rows
        were changed after they were read is done again.

        Args:
            model: of the rows; its primary key is the key of the events.
            by: returns for an event the primary key of its row: the key of the event, or a tuple
                that begins with it.
            cache: rows are kept in memory between steps and not read again, since there is no
                other writer.

        Raises:
            ConfigurationError: the stage has a handler, the function cannot be one, or states are
                not written with every step.
            ModelError: rows of this model cannot be found by keys of events, or not be written many
                at once; the text says what to change.
        """
        check_fold(self.flow_name, self._stages.checkpoint)
        if isroutine(model):
            raise ConfigurationError("fold needs the model of its rows: write @flow.fold(Model)")
        known = FoldModel(model, is_keyed_by_host=by is not None, is_cached=cache)
        self._check_room(known)
        rows = FoldTable(known, is_cached=cache)

        def register(call: FoldHandler[M, E]) -> FoldHandler[M, E]:
            self._register(fold_handler(rows, call, by))
            return call

        return register

    def exchange(self, name: str, type: type[F]) -> ExchangeStage[F]:  # noqa: A002
        """Add a stage behind all others that there are: handlers of these send it messages
        (`StepContext.send`), each of which goes to the shard of its key, within the step.

        Args:
            name: of the stage, within the flow.
            type: of the messages.

        Raises:
            ConfigurationError: the name is taken or none, the flow runs already, or it has
                `STAGES_MAX` stages.
            TypeError: values of this type cannot be stored.
        """
        check_name(name, "an exchange")
        return ExchangeStage(self.flow_name, name, type, stages=self._stages)

    def _registers(self, kind: HandlerKind, bare: object, *, state: Any, poison: Poison) -> Any:
        if bare:
            msg = f"{kind} takes keywords only: write @flow.{kind}() or @flow.{kind}(state=...)"
            raise ConfigurationError(msg)
        if poison not in get_args(Poison):
            msg = f"poison is one of {', '.join(map(repr, get_args(Poison)))}, not {poison!r}"
            raise ConfigurationError(msg)
        codec = None if state is None else Codec(state)

        def register(call: Callable[..., Any]) -> Callable[..., Any]:
            moves = poison == "dead_letter"
            self._register(StageHandler(name_of(call), kind, call, codec, dead_letters=moves))
            return call

        return register

    def _check_room(self, rows: FoldModel) -> None:
        """Refuse rows whose key is shorter than keys of the events, as far as that is declared."""

    def _register(self, handler: StageHandler) -> None:
        if self._handler is not None:
            msg = f"{self.flow_name!r} has a handler already: {self._handler.name}"
            raise ConfigurationError(msg)
        self._handler = handler


class ExchangeStage(StreamStage[F]):
    """A stage that gets messages; made by `StreamStage.exchange`.

    Attributes:
        name: its own, within the flow.
        codec: writes and reads the messages.
    """

    def __init__(self, flow_name: str, name: str, type_: type[F], *, stages: Stages) -> None:
        self.name = name
        self.codec: Codec[F] = Codec(type_)
        super().__init__(flow_name, stages)

    def __repr__(self) -> str:
        return f"<ExchangeStage {self.flow_name}/{self.name}>"

    def message_texts(self, messages: Sequence[F]) -> list[str]:
        """Return the texts of messages.

        Raises:
            TypeError: one of them is of another type.
            ValueError: one of them is too long.
        """
        return self.codec.encode_many(messages)


class Stages:
    """The stages of one flow in their order; once `is_complete`, nothing can be added."""

    def __init__(self, flow_name: str, checkpoint: Checkpoint) -> None:
        self.flow_name = flow_name
        self.checkpoint = checkpoint
        self.is_complete = False
        self._stages: list[StreamStage[Any]] = []

    @property
    def exchanges(self) -> tuple[ExchangeStage[Any], ...]:
        return tuple(stage for stage in self._stages if isinstance(stage, ExchangeStage))

    @property
    def handlers(self) -> dict[str, StageHandler]:
        found = (stage._handler for stage in self._stages)
        return {handler.name: handler for handler in found if handler is not None}

    @property
    def have_dead_letters(self) -> bool:
        return any(each._handler and each._handler.dead_letters for each in self._stages)

    def add(self, stage: StreamStage[Any]) -> None:
        flow = f"the flow {self.flow_name!r}"
        if self.is_complete:
            raise ConfigurationError(f"{flow} runs already: declare its exchanges before")
        if len(self._stages) >= STAGES_MAX:
            raise ConfigurationError(f"{flow} has more than {STAGES_MAX} stages")
        names = {each.name for each in self.exchanges}
        if isinstance(stage, ExchangeStage) and stage.name in names:
            raise ConfigurationError(f"{flow} has an exchange {stage.name!r} already")
        self._stages.append(stage)

    def complete(self, outputs: Mapping[str, ResultTarget[Any]]) -> tuple[StageHandler, ...]:
        """Return the handlers with what they may emit and send to; nothing can be added then."""
        handlers = [self._handler_of(stage) for stage in self._stages]
        for handler in handlers[:-1]:
            if handler.rows is not None and not handler.rows.is_cached:
                raise ConfigurationError(
                    f"a fold of the flow {self.flow_name!r} has stages behind it, and what it has"
                    " sent to them would not be what follows from a row that the host has changed"
                    " since: pass cache=True, if these rows have no other writer"
                )
        names = [handler.name for handler in handlers]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ConfigurationError(
                f"two stages of the flow {self.flow_name!r} have a handler named {twice[0]!r}:"
                " states belong to the name, so rename one"
            )
        self.is_complete = True
        exchanges = self.exchanges
        return tuple(
            replace(
                handler, outputs=outputs, later={each.name: each for each in exchanges[number:]}
            )
            for number, handler in enumerate(handlers)
        )

    def _handler_of(self, stage: StreamStage[Any]) -> StageHandler:
        if stage._handler is None:
            name = stage.name if isinstance(stage, ExchangeStage) else self.flow_name
            raise ConfigurationError(
                f"{name!r} has no handler: a flow needs one, and each of its exchanges: decorate a"
                " function with its by_key, batch or fold"
            )
        return stage._handler


def check_fold(flow_name: str, checkpoint: Checkpoint) -> None:
    """Refuse a fold whose rows would lag behind the steps that they are of."""
    if checkpoint.steps != 1:
        raise ConfigurationError(
            f"the flow {flow_name!r} writes its states every {checkpoint.steps} steps, and rows"
            " that are folded into are written with every step: leave out checkpoint=..., or keep"
            " the state with by_key"
        )


def check_name(name: object, of: str) -> None:
    if not _is_short_text(name) or not name or "/" in name:
        msg = (
            f"the name of {of} is a text of 1 to {NAME_CHARS_MAX} characters without '/', control"
            f" characters and lone surrogates, not {name!r:.100}"
        )
        raise ConfigurationError(msg)


def check_version(flow_name: str, version: object) -> None:
    """Refuse what cannot be shown as the version of a host's code."""
    if not _is_short_text(version):
        raise ConfigurationError(
            f"the version of the flow {flow_name!r} is a text of up to {NAME_CHARS_MAX} characters"
            f" without control characters, not {version!r:.100}"
        )


def _is_short_text(given: object) -> TypeGuard[str]:
    if not isinstance(given, str) or len(given) > NAME_CHARS_MAX or not is_storable(given):
        return False
    # They break lines of logs, and topics of hints.
    return not any(category(char) == "Cc" for char in given)


OWNER_NAME_CHARS_MAX = 200
"""So much of a flow's name is in its leases."""


def lease_owner(kind: str, flow: str) -> str:
    """Return the owner in leases of a pipeline of a flow: it names no other one, and fits."""
    # Without the separator: behind it, leases say for whom besides they are held.
    plain = flow.replace(OWNER_SEPARATOR, ".")[:OWNER_NAME_CHARS_MAX]
    more = "" if plain == flow else f" {sha256(flow.encode()).hexdigest()[:8]}"
    return f"{kind} {plain}{more}"


@dataclass(frozen=True, eq=False)
class FlowProgram:
    name: str
    code_version: str  # of the host's code, as it is declared
    sources: Mapping[str, Source[Any]]  # by their names, in the order in which they were declared
    stages: Sequence[StageHandler]  # in the order in which a step passes them
    exchanges: Sequence[ExchangeStage[Any]]  # what handlers send to, of each stage behind the first
    outputs: Mapping[str, Output[Any]]
    shards: int | DynamicShards
    checkpoint: Checkpoint
    from_now: bool  # a new flow begins with what is added after it was created
    settings: FlowSettings
    tables: StreamTables

    @cached_property
    def folds(self) -> Mapping[str, FoldTable]:
        """The rows of stages that are folds, by the names of their handlers."""
        return {one.name: one.rows for one in self.stages if one.rows is not None}

    @property
    def id(self) -> int:
        return key_of("flow", self.name)

    @property
    def topic(self) -> str:
        """The topic of hints that the flow has a new step or a request."""
        return f"stream:{self.name}"

    @property
    def shards_topic(self) -> str:
        """The topic of hints that a shard may be claimed."""
        return f"{self.topic}:shards"

    @property
    def frontier_topic(self) -> str:
        """The topic of hints that shards have done a step."""
        return f"{self.topic}:frontier"

    @property
    def has_exchange(self) -> bool:
        """Whether shards send each other messages within a step."""
        return len(self.stages) > 1

    @property
    def shards_at_first(self) -> int:
        """How many shards a new flow has."""
        return self.shards.shards_for(1) if isinstance(self.shards, DynamicShards) else self.shards

    @property
    def readable(self) -> FlowSources:
        """The sources and tables from which its steps are read again."""
        return FlowSources(self.name, self.id, self.sources, self.tables)

    @property
    def description(self) -> str:
        """What must not change over the states and positions that are stored, as text."""
        lines = [f"source {source.fingerprint()}" for source in self.sources.values()]
        for stage in self.stages:
            state = "no state" if stage.codec is None else stage.codec.name
            lines.append(f"stage {stage.name} {stage.kind} {state}")
        lines += [f"exchange {each.name} {each.codec.name}" for each in self.exchanges]
        # Dead letters have one type, and whether a flow has some may change.
        lasting = (one for name, one in self.outputs.items() if name != DEAD_LETTERS)
        lines += [f"output {output.fingerprint()}" for output in lasting]
        return "\n".join(lines)

    @property
    def fingerprint(self) -> str:
        """The digest of `description`: replicas with another one are refused."""
        return sha256(self.description.encode()).hexdigest()

    def shard_id(self, lo: int) -> int:
        return key_of("shard", self.id, lo)
