"""Writes the steps of many shards in one transaction, each under the token of its own lease; emits
the events of it; and releases or parks shards whose steps failed.

The one idea: exactly once is one transaction. The guard comes first and locks the shards' rows
until the commit; then results, states, parts and the step that each shard does next are written, or
nothing is. A shard whose lease was lost is left out, and the others are written without it.

A step that fails is tried again by the next holder of the shard, later each time; after
`failures_max` attempts at one step the shard is parked. The others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, cast
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import Outcome, Park, Retry
from rowlock.errors import describe
from rowlock.events import Event, emit, has_listeners
from rowlock.logs import get_logger
from rowlock.spi import ROWS, Fenced, PipelineContext, fence, is_transient
from rowlock.stream_errors import ReplayMismatchError, RowsChanged
from rowlock.streams import events
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.cut_plan import Cut
from rowlock.streams.folds import FoldedRow
from rowlock.streams.key_states import StateWrite, write_states
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.replicas import OwnShard, StepFailures
from rowlock.streams.shards.steps import PartRow, ShardDid, StepWrite
from rowlock.streams.tables import StreamDatabase

_PART = ("flow_id", "lo", "hi", *PartRow._fields)


P = ParamSpec("P")


def emit_if_heard(kind: Callable[P, Event], *facts: P.args, **more: P.kwargs) -> None:
    if has_listeners(cast("type[Event]", kind)):
        emit(kind(*facts, **more))


class Telling:
    """Emits what happens to the shards of one flow."""

    def __init__(self, pipeline: str, flow: str) -> None:
        self._of = (pipeline, flow)

    def cut(self, cut: Cut) -> None:
        flags = (cut.is_checkpoint, cut.is_snapshot)
        emit_if_heard(events.StepCut, *self._of, cut.step, cut.rows, *flags)

    def opened(self, shard: OwnShard) -> None:
        emit_if_heard(events.ShardOpened, *self._shard(shard), shard.version, shard.step)

    def released(self, shard: OwnShard) -> None:
        emit_if_heard(events.ShardReleased, *self._shard(shard), shard.step)

    def replayed(self, shard: OwnShard, first: int, end: int) -> None:
        """Emit that a shard has repeated the steps from `first` to one below `end`."""
        if first < end:
            emit_if_heard(events.ShardReplayed, *self._shard(shard), first, end - 1)

    def failed(self, shard: OwnShard, step: int, error: str, *, is_parked: bool) -> None:
        failures = shard.failures.with_failure(step).failures
        emit_if_heard(events.StepFailed, *self._shard(shard), step, error, failures, is_parked)

    def written(self, write: StepWrite) -> None:
        """Emit what was written; call it before `shard.step` moves on."""
        of, parts = self._shard(write.shard), {part.step: part for part in write.parts}
        for step in range(write.shard.step, write.step):
            part = parts.get(step)
            rows, outputs = (0, 0) if part is None else (part.rows, part.outputs)
            emit_if_heard(events.StepDone, *of, step, rows, outputs)
        if write.version == write.step:
            emit_if_heard(events.CheckpointWritten, *of, write.version, len(write.states))

    def _shard(self, shard: OwnShard) -> tuple[str, str, int, int]:
        return (*self._of, shard.range.lo, shard.range.hi)


logger = get_logger(__name__)

REDONE_MAX = 5
"""So often in a row a step is begun again whose rows the host has changed; then it has failed."""


def topics_of(program: FlowProgram, done: Sequence[ShardDid]) -> list[str]:
    """Return the topics of hints that these steps are done."""
    emitted = {name for did in done for name in did.results}
    # Results that are kept are shown once the slowest shard has done their step, and that may be
    # one that has none.
    outputs = [one for name, one in program.outputs.items() if one.is_kept or name in emitted]
    folds = program.folds.values() if any(did.parts for did in done) else ()
    return [program.frontier_topic, *dict.fromkeys(one.topic for one in (*outputs, *folds))]


class StepWriter:
    def __init__(
        self,
        program: FlowProgram,
        context: PipelineContext[Any],
        telling: Telling,
        *,
        replica: UUID,
    ) -> None:
        self._program = program
        self._leased = context.leased
        self._database = StreamDatabase(context.transact)
        self._telling = telling
        self._replica = replica

    async def write(self, done: Sequence[ShardDid]) -> None:
        """Write what shards did, and have those leave that failed."""
        # After an error of the database, which passes, it may have been written.
        for did in (one for one in done if one.is_replay):
            first, did.shard.at = did.shard.at, did.step
            self._telling.replayed(did.shard, first, did.step)
        writes = [self._write_of(did) for did in done if did.step > did.shard.step]
        if writes:
            await self._write_all(writes)
        for did in done:
            if did.has_failed and did.shard.is_open:
                self._has_failed(did)

    async def write_versions(self, shards: Sequence[OwnShard]) -> None:
        """Write the states of shards as of the step that each does next."""
        writes = [StepWrite(shard, shard.step) for shard in shards]
        for write in writes:
            self._add_states(write)
        await self._write_all(writes)

    async def commit(self, writes: Sequence[StepWrite]) -> frozenset[UUID]:
        """Write steps of shards in one transaction; return the tokens of those written."""
        # The others are held no longer, or their rows say that they do another step next: nothing
        # is written for them.
        return await self._database.write("write steps", lambda one: self._write(one, writes))

    async def _write(
        self, connection: AsyncConnection, writes: Sequence[StepWrite]
    ) -> frozenset[UUID]:
        program = self._program
        # Before anything else: what follows counts for those alone that are held until the commit.
        fenced = [self._fenced(one) for one in writes]
        tokens = await fence(connection, self._leased, fenced, waits=True)
        held = [one for one in writes if one.shard.item.lock_token in tokens]
        parts = [
            (program.id, one.shard.range.lo, one.shard.range.hi, *part)
            for one in held
            for part in one.parts
        ]
        if parts:
            dialect = ROWS.of(connection)
            statement = dialect.insert(program.tables.parts, _PART)
            await connection.execute(statement, dialect.insert_parameters(_PART, parts))
        for name, output in program.outputs.items():
            results = [row for one in held for row in one.results.get(name, ())]
            if results:
                await output.write(connection, results)
        states = [state for one in held for state in one.states]
        if states:
            await write_states(connection, program.tables.state, program.id, states=states)
        for name, fold in program.folds.items():
            await fold.write(connection, [row for one in held for row in one.rows.get(name, ())])
        return tokens

    def _fenced(self, write: StepWrite) -> Fenced:
        column = self._leased.column
        values = {
            "step": write.step,
            "version": write.version,
            "snapshot": write.snapshot,
            "replica": self._replica,
            # What it has failed of before is over.
            "failures": 0,
            "failed_step": None,
            "last_error": None,
            "state_keys": write.state_keys,
            "state_keys_at": write.version,
        }
        return Fenced(
            write.shard.item,
            {column(name): value for name, value in values.items()},
            unless_changed={column("step"): write.shard.step},
        )

    def _has_failed(self, did: ShardDid) -> None:
        if did.poisoned is not None:
            self._fail(did.shard, did.step, did.poisoned.text)
        else:
            # Nothing but a checkpoint stands between the states here and those in the database.
            error = ReplayMismatchError(
                flow=self._program.name,
                shard=str(did.shard.range),
                step=did.step,
                sources=tuple(self._program.sources),
                differs=str(did.differs),
            )
            text = describe(error)
            self._telling.failed(did.shard, did.step, text, is_parked=True)
            self._leave(did.shard, Park(text))

    def _fail(self, shard: OwnShard, step: int, text: str) -> None:
        """Have a shard leave that cannot do `step`."""
        failures = shard.failures.with_failure(step)
        is_parked = failures.at(step) >= self._program.settings.failures_max
        self._telling.failed(shard, step, text, is_parked=is_parked)
        if is_parked:
            self._leave(shard, Park(text))
        else:
            values = {"failures": failures.failures, "failed_step": failures.failed_step}
            self._leave(shard, Retry(error=text, values=values))

    def _leave(self, shard: OwnShard, outcome: Outcome) -> None:
        shard.drop()
        shard.leave(outcome)

    def _write_of(self, did: ShardDid) -> StepWrite:
        shard = did.shard
        own = [cut for cut in did.steps.cuts if shard.step <= cut.step < did.step]
        write = StepWrite(shard, did.step, parts=did.parts, results=did.results)
        for cut in own:
            if cut.is_snapshot:
                write.snapshot = cut.step + 1
        if any(cut.is_checkpoint for cut in own):
            self._add_states(write)
            write.rows = self._folded(shard)
        return write

    def _add_states(self, write: StepWrite) -> None:
        """Add the states that are not written yet, as of the step that comes next."""
        shard, write.version = write.shard, write.step
        stages = [(name, one) for name, one in shard.cache if name not in self._program.folds]
        write.state_keys += sum(stage.grown for _, stage in stages)
        # What is written belongs to the step behind an earlier snapshot, whose values stay.
        write.states = [
            StateWrite(name, key, bucket_of(key), write.version, state, shard.snapshot)
            for name, stage in stages
            for key, state in stage.states(sorted(stage.dirty)).items()
        ]

    def _folded(self, shard: OwnShard) -> dict[str, list[FoldedRow]]:
        return {
            name: [state.value for state in shard.cache[name].states(sorted(dirty)).values()]
            for name in self._program.folds
            if (dirty := shard.cache[name].dirty)
        }

    async def _write_all(self, writes: Sequence[StepWrite]) -> None:
        try:
            tokens = await self.commit(writes)
        except Exception as error:
            if is_transient(error):
                raise
            if not (isinstance(error, RowsChanged) and self._redo(writes)):
                await self._refused(writes, error)
            return
        for write in writes:
            if write.shard.item.lock_token in tokens:
                self._is_written(write)
            else:
                write.shard.drop()

    def _redo(self, writes: Sequence[StepWrite]) -> bool:
        """Redo a step over rows that the host changed; return whether it may be redone again."""
        if len(writes) > 1:
            return False
        shard = writes[0].shard
        shard.drop()
        shard.redone = (shard.redone + 1) % REDONE_MAX
        return shard.redone > 0

    async def _refused(self, writes: Sequence[StepWrite], error: Exception) -> None:
        """Find the shard whose results the database refuses, and write the others without it."""
        if len(writes) > 1:
            for write in writes:
                await self._write_all([write])
            return
        shard = writes[0].shard
        text = "%(flow)s: step %(step)s of the shard %(shard)s was refused by the database"
        extra = {"flow": self._program.name, "step": shard.step, "shard": shard.range}
        logger.warning(text, extra, exc_info=error)
        self._fail(shard, shard.step, f"step {shard.step}: {describe(error)}")

    def _is_written(self, write: StepWrite) -> None:
        self._telling.written(write)
        shard = write.shard
        shard.at = shard.step = write.step
        shard.version, shard.snapshot = write.version, write.snapshot
        shard.failures, shard.redone = StepFailures(), 0
        shard.sent = {(step, stage) for step, stage in shard.sent if step >= write.step}
        if shard.version == shard.step:
            for _, stage in shard.cache:
                stage.grown = 0
        shard.state_keys = write.state_keys
        for state in write.states:
            shard.cache[state.name].dirty.discard(state.key)
        for name, fold in self._program.folds.items():
            fold.is_written(shard.cache[name])
