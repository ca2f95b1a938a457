"""A flow, as a host declares it: sources, handlers, outputs; and the way to its commands
(``flow_row.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import hint_after_commit
from rowlock.errors import ConfigurationError
from rowlock.streams import flow_row
from rowlock.streams.computing.compute import DEAD_LETTERS, DeadEvent
from rowlock.streams.folds import FoldModel
from rowlock.streams.inputs.event_log import Appended
from rowlock.streams.inputs.step_inputs import (
    StepInputs,
    StepPart,
    Verification,
    inputs_of,
    parts_of,
    verify,
)
from rowlock.streams.outputs import Output, TableOutput
from rowlock.streams.program import FlowProgram, Stages, StreamStage, check_name
from rowlock.streams.snapshots import StateSnapshot, snapshot_of
from rowlock.streams.status import StreamStatus, status_of
from rowlock.streams.waits import FlowWaits

E = TypeVar("E")
O = TypeVar("O")  # noqa: E741 - of an output

OUTPUTS_MAX = 64
"""Most outputs of a flow."""
SOURCES_MAX = 16
"""Most sources of a flow."""


class StreamFlow(StreamStage[E]):
    """A computation over streams, in numbered steps; made by `Streams.flow`.

    Attributes:
        name: its own; results and states belong to it.
        sources: what it reads, by name.
        outputs: of results, by name.
        dead_letters: the events of keys that failed again and again, if a handler is registered
            with ``poison="dead_letter"``: another output, to be consumed like these.
    """

    def __init__(self, declared: FlowProgram, pipeline_settings: Mapping[str, Any]) -> None:
        """Declare a flow."""
        super().__init__(declared.name, Stages(declared.name, declared.checkpoint))
        if not 1 <= len(declared.sources) <= SOURCES_MAX:
            count = len(declared.sources)
            msg = f"the flow {declared.name!r} has {count} sources; it must be 1 to {SOURCES_MAX}"
            raise ConfigurationError(msg)
        self.name = declared.name
        self.sources = declared.sources
        self.outputs: dict[str, Output[Any]] = {}
        self.pipeline_settings = dict(pipeline_settings)
        self._waits = FlowWaits(declared)
        self.dead_letters: Output[DeadEvent] = Output(
            declared.name,
            DEAD_LETTERS,
            DeadEvent,
            tables=declared.tables,
            sources=declared.sources,
            waits=self._waits,
        )
        self._declared = declared
        self._program: FlowProgram | None = None

    def __repr__(self) -> str:
        return f"<StreamFlow {self.name}>"

    @property
    def topic(self) -> str:
        """The topic of hints that the flow has a new step or a request."""
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
        if name in self.outputs or name == DEAD_LETTERS:
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
            Output(self.name, name, type, tables=tables, sources=self.sources, waits=self._waits)
            if into is None
            else TableOutput(self.name, name, into, tables=tables)
        )
        self.outputs[name] = output
        return output

    def _check_room(self, rows: FoldModel) -> None:
        for source in self.sources.values():
            rows.check_room(source.key_chars_max, of=f"the stream {source.name!r}")

    @property
    def program(self) -> FlowProgram:
        """What replicas run; from now on nothing can be added to it.

        Raises:
            ConfigurationError: a stage has no handler, or two have handlers of one name.
        """
        if self._program is None:
            outputs = dict(self.outputs)
            if self._stages.have_dead_letters:
                outputs[DEAD_LETTERS] = self.dead_letters
            self._program = replace(
                self._declared,
                stages=self._stages.complete(outputs),
                exchanges=self._stages.exchanges,
                outputs=outputs,
            )
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
        return await flow_row.change(session, self._declared, {"state": "paused"})

    async def resume(self, session: AsyncSession) -> int:
        """Go on after a pause or a stop; joins the caller's transaction. Returns the next step.

        Raises:
            PipelineError: as `pause`.
        """
        return await flow_row.change(session, self._declared, {"state": "running"})

    async def stop(self, session: AsyncSession) -> int:
        """Cut no more steps, do those that are cut, write all states and release the shards, until
        `start`; joins the caller's transaction. Returns the first step that is not done then.

        Raises:
            PipelineError: as `pause`.
        """
        return await flow_row.change(session, self._declared, {"state": "stopped"})

    async def start(self, session: AsyncSession) -> int:
        """Go on after a stop or a pause; joins the caller's transaction. Returns the next step.

        Raises:
            PipelineError: as `pause`.
        """
        return await flow_row.change(session, self._declared, {"state": "running"})

    async def checkpoint(self, session: AsyncSession) -> int:
        """Have all states written with the next step, which is cut for it; joins the caller's
        transaction. Returns that step.

        Raises:
            PipelineError: as `pause`.
        """
        return await flow_row.change(session, self._declared, {"checkpoint_requested": True})

    async def reshard(self, session: AsyncSession, shards: int) -> int:
        """Have so many shards, a power of two; they are split and joined while steps go on. Joins
        the caller's transaction. Returns the next step.

        Raises:
            ValueError: the number is none that a flow can have.
            ConfigurationError: the number follows that of the replicas (`DynamicShards`).
            ShardsMissingError: the shards that there are do not have each bucket once.
            PipelineError: as `pause`.
        """
        return await flow_row.reshard(session, self._declared, shards)

    async def unpark(self, session: AsyncSession, shard: int | None = None) -> int:
        """Have parked shards tried again; joins the caller's transaction.

        Args:
            session: of the flow's database.
            shard: the first bucket of the one; None: all.

        Returns:
            How many there were.

        Raises:
            ConfigurationError: it is no number of a bucket.
        """
        return await flow_row.unpark(session, self._declared, shard)

    async def wait_for(
        self,
        sessions: async_sessionmaker[AsyncSession],
        at: Appended | object,
        *,
        timeout: timedelta | float,
    ) -> int:
        """Wait until the flow has done what was added, so that its results may be read: read your
        own write. Any process may wait, also one that has no pipelines of the flow.

        Waiting keeps no session. All waits of a process for a flow share one look at a time, which
        hints wake; without them the flow is polled.

        Args:
            sessions: of the flow's database.
            at: a row of a source, or what `EventLog.append` returned; behind its commit. Where the
                flow reads results of another one, also of a source of that one.
            timeout: how long to wait; a number is seconds. The flow is looked at once at least.

        Returns:
            The first step that is not done: what was added belongs to an earlier one.

        Raises:
            NotProcessedYet: the time is over; the text says what the flow waits for.
            ShardsMissingError: the row of a shard is missing, so what is done cannot be known.
            ConfigurationError: the flow reads no such thing, or begins behind it; or the time is no
                number.
        """
        return await self._waits.wait_for(sessions, at, timeout=timeout)

    async def status(self, session: AsyncSession) -> StreamStatus:
        """Return how far the flow is, and what it waits for; joins the caller's transaction."""
        # A process that only reads has no handlers, so as the flow is declared there.
        connection = await self._declared.tables.connection(session)
        return await status_of(connection, self._program or self._declared)

    async def inputs_of(self, session: AsyncSession, step: int) -> StepInputs[E]:
        """Return the events of a step; joins the caller's transaction.

        Raises:
            NotProcessedYet: there is no such step yet.
            StepExpired: the step, or an event of it, is kept no longer.
            ValueError: an event cannot be read any more.
            ConfigurationError: it is no number of a step.
        """
        connection = await self._declared.tables.connection(session)
        return await inputs_of(connection, self._declared.readable, step)

    async def parts_of(self, session: AsyncSession, step: int) -> list[StepPart]:
        """Return what is recorded of a step, shard by shard; joins the caller's transaction.

        Raises:
            ConfigurationError: it is no number of a step.
        """
        connection = await self._declared.tables.connection(session)
        return await parts_of(connection, self._declared.readable, step)

    async def verify(
        self, sessions: async_sessionmaker[AsyncSession], first: int, last: int
    ) -> Verification:
        """Count and digest the events of steps once more, and compare them with what was recorded
        when the steps were done: rows that were changed or deleted since then are found.

        Args:
            sessions: of the flow's database; each step is read in a transaction of its own.
            first: the first step.
            last: the last one.

        Raises:
            NotProcessedYet: not all shards have done these steps.
            ShardsMissingError: as `wait_for`.
            StepExpired: one of the steps, or an event of it, is kept no longer.
            ConfigurationError: these are no steps, or the last one is before the first.
        """
        return await verify(sessions, self._declared.readable, first=first, last=last)

    def snapshot(
        self, sessions: async_sessionmaker[AsyncSession], *, timeout: timedelta | float = 10
    ) -> AbstractAsyncContextManager[StateSnapshot]:
        """Have the states of all shards kept as they are at the start of one step, which is cut for
        it, and read them while the flow goes on. Any process may do that.

        The snapshot has all that was done before it was asked for. It is kept as long as the block
        lasts, and for 60 seconds at most. Readers that ask at the same time share one; others wait
        for those before them.

        Args:
            sessions: of the flow's database.
            timeout: how long to wait for the snapshot; a number is seconds.

        Raises:
            NotProcessedYet: the time is over; the text says what the flow waits for.
            VersionNotFoundError: the snapshot was there, and is kept no longer.
            ShardsMissingError: as `wait_for`.
            ConfigurationError: the time is no number.
            PipelineError: as `pause`.
        """
        handlers = self._stages.handlers
        return snapshot_of(sessions, self._declared, handlers=handlers, timeout=timeout)
