"""A flow, as a host declares it: sources, handlers, outputs; and the commands to it.

Every command is one UPDATE of the flow's row, in the caller's transaction; whoever works on the
flow hears of it after the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar, cast, overload

from sqlalchemy import CursorResult, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.database.binds import bind_of
from rowlock.errors import ConfigurationError, PipelineError
from rowlock.execution import execute
from rowlock.hints.hinter import hint_after_commit
from rowlock.rows.database_time import database_now
from rowlock.rows.leased_table import LeasedTable
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.computing.handlers import (
    BatchHandler,
    HandlerKind,
    KeyHandler,
    StageHandler,
    StatelessKeyHandler,
)
from rowlock.streams.migrations import NAME_CHARS_MAX
from rowlock.streams.outputs.output import Output
from rowlock.streams.outputs.table_output import TableOutput
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.layout import DynamicShards, check_number

E = TypeVar("E")
S = TypeVar("S")
O = TypeVar("O")  # noqa: E741 - of an output

OUTPUTS_MAX = 64
"""Most outputs of a flow."""
SOURCES_MAX = 16
"""Most sources of a flow."""

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


class StreamFlow(StreamStage[E]):
    """A computation over streams, in numbered steps; made by `Streams.flow`.

    Attributes:
        name: its own; results and states belong to it.
        sources: what it reads, by name.
        outputs: of results, by name.
    """

    def __init__(self, declared: FlowProgram, pipeline_settings: Mapping[str, Any]) -> None:
        """Declare a flow.

        Args:
            declared: all but its stages.
            pipeline_settings: of its pipelines.

        Raises:
            ConfigurationError: it has no name, or no sources or too many.
        """
        super().__init__(declared.name)
        check_name(declared.name, "a flow")
        if not 1 <= len(declared.sources) <= SOURCES_MAX:
            count = len(declared.sources)
            msg = f"the flow {declared.name!r} has {count} sources; it must be 1 to {SOURCES_MAX}"
            raise ConfigurationError(msg)
        self.name = declared.name
        self.sources = declared.sources
        self.outputs: dict[str, Output[Any]] = {}
        self.pipeline_settings = dict(pipeline_settings)
        self._declared = declared
        self._program: FlowProgram | None = None
        self._leased = LeasedTable.of(declared.tables.flow_model)

    def __repr__(self) -> str:
        return f"<StreamFlow {self.name}>"

    @property
    def topic(self) -> str:
        """The topic of hints for those who work on it."""
        return self._declared.topic

    def output(
        self,
        name: str,
        type: type[O] | None = None,  # noqa: A002
        *,
        into: type[O] | None = None,
    ) -> Output[O]:
        """Declare an output, to which a handler emits.

        Args:
            name: of the output, within the flow.
            type: of its values; None: whatever JSON has.
            into: a model of the host, whose rows the results are: they are written in the
                transaction of their step.

        Raises:
            ConfigurationError: the name is taken, the flow runs already, or both `type` and `into`
                are given.
            TypeError: values of this type cannot be stored.
            ModelError: `into` is no mapped class of one table.
        """
        check_name(name, "an output")
        if name in self.outputs:
            msg = f"the flow {self.name!r} has an output {name!r} already"
            raise ConfigurationError(msg)
        if self._program is not None:
            msg = f"the flow {self.name!r} runs already: declare its outputs before"
            raise ConfigurationError(msg)
        if len(self.outputs) >= OUTPUTS_MAX:
            msg = f"the flow {self.name!r} has more than {OUTPUTS_MAX} outputs"
            raise ConfigurationError(msg)
        if type is not None and into is not None:
            msg = f"the output {name!r} has a type or a table: pass `type` or `into`"
            raise ConfigurationError(msg)
        tables = self._declared.tables
        output: Output[O] = (
            Output(self.name, name, type, tables=tables)
            if into is None
            else TableOutput(self.name, name, into, tables=tables)
        )
        self.outputs[name] = output
        return output

    @property
    def program(self) -> FlowProgram:
        """What replicas run; from now on nothing can be added to it.

        Raises:
            ConfigurationError: the flow has no handler.
        """
        if self._program is None:
            if self._handler is None:
                msg = (
                    f"the flow {self.name!r} has no handler: decorate one with @{self.name}.by_key"
                )
                raise ConfigurationError(msg)
            stage = replace(self._handler, outputs=dict(self.outputs))
            self._program = replace(self._declared, stages=(stage,), outputs=dict(self.outputs))
        return self._program

    def hint_after_commit(self, session: AsyncSession) -> None:
        """Have the flow look for new rows of its sources once the caller's transaction has
        committed.
        """
        hint_after_commit(session, self.topic)

    async def pause(self, session: AsyncSession) -> int:
        """Cut no more steps; those that are cut are done. Joins the caller's transaction.

        Returns:
            The first step that is not done then.

        Raises:
            PipelineError: the flow was never started, so there is nothing to pause.
        """
        return await self._change(session, {"state": "paused"})

    async def resume(self, session: AsyncSession) -> int:
        """Go on after a pause or a stop; joins the caller's transaction. Returns the next step.

        Raises:
            PipelineError: as `pause`.
        """
        return await self._change(session, {"state": "running"})

    async def stop(self, session: AsyncSession) -> int:
        """Cut no more steps, do those that are cut, write all states and release the shards, until
        `start`; joins the caller's transaction. Returns the first step that is not done then.

        Raises:
            PipelineError: as `pause`.
        """
        return await self._change(session, {"state": "stopped"})

    async def start(self, session: AsyncSession) -> int:
        """Go on after a stop or a pause; joins the caller's transaction. Returns the next step.

        Raises:
            PipelineError: as `pause`.
        """
        return await self._change(session, {"state": "running"})

    async def checkpoint(self, session: AsyncSession) -> int:
        """Have all states written with the next step, which is cut for it; joins the caller's
        transaction. Returns that step.

        Raises:
            PipelineError: as `pause`.
        """
        return await self._change(session, {"checkpoint_requested": True})

    async def reshard(self, session: AsyncSession, shards: int) -> int:
        """Have so many shards, a power of two; they are split and joined while steps go on. Joins
        the caller's transaction. Returns the next step.

        Raises:
            ValueError: the number is none that a flow can have.
            ConfigurationError: the number follows that of the replicas (`DynamicShards`).
            PipelineError: as `pause`.
        """
        check_number(shards)
        if isinstance(self._declared.shards, DynamicShards):
            raise ConfigurationError(f"the flow {self.name!r} finds its number of shards itself")
        return await self._change(session, {"shards_wanted": shards})

    async def unpark(self, session: AsyncSession, shard: int | None = None) -> int:
        """Have parked shards tried again; joins the caller's transaction.

        Args:
            session: of the flow's database.
            shard: the first bucket of the one; None: all.

        Returns:
            How many there were.
        """
        shards = self._declared.tables.shards
        parked = [shards.c.flow_id == self._declared.id, shards.c.parked_at.is_not(None)]
        if shard is not None:
            parked.append(shards.c.lo == shard)
        values = {
            "parked_at": None,
            "attempts": 0,
            "failures": 0,
            "failed_step": None,
            "due_at": database_now(),
        }
        done = await execute(
            session,
            update(shards).where(*parked).values(values),
            bind_arguments={"bind": bind_of(session, self._leased)},
        )
        hint_after_commit(session, self._declared.shards_topic, self.topic)
        return cast("CursorResult[Any]", done).rowcount

    async def _change(self, session: AsyncSession, values: Mapping[str, Any]) -> int:
        flows = self._declared.tables.flows
        bind = {"bind": bind_of(session, self._leased)}
        own = flows.c.id == self._declared.id
        done = await execute(
            session, update(flows).where(own).values(dict(values)), bind_arguments=bind
        )
        if cast("CursorResult[Any]", done).rowcount == 0:
            raise PipelineError(
                f"the flow {self.name!r} has no row yet: it is made when a manager with"
                " streams.pipelines() starts"
            )
        hint_after_commit(session, self._declared.shards_topic, self.topic)
        found = await execute(session, select(flows.c.next_step).where(own), bind_arguments=bind)
        return int(found.scalar_one())


def check_name(name: object, of: str) -> None:
    """Refuse what is no name.

    Raises:
        ConfigurationError: it is no text, empty, too long, or has a slash.
    """
    if not isinstance(name, str) or not name or len(name) > NAME_CHARS_MAX or "/" in name:
        msg = (
            f"the name of {of} is a text of 1 to {NAME_CHARS_MAX} characters without '/', not"
            f" {name!r:.100}"
        )
        raise ConfigurationError(msg)
