"""Writes the steps of many shards in one transaction, each under the token of its own lease; emits
the events of it; and releases or parks shards whose steps failed.

The one idea: exactly once is one transaction. The guard comes first and locks the shards' rows
until the commit; then results, states, parts and the step that each shard does next are written, or
nothing is. A shard whose lease was lost is left out, and the others are written without it.

A step that fails is tried again by the next holder of the shard, later each time; after
`failures_max` attempts at one step the shard is parked. The others go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import Outcome, Park, Retry
from rowlock.errors import describe
from rowlock.events import emit, has_listeners
from rowlock.logs import get_logger
from rowlock.spi import BULK, Fenced, LeasedTable, fence, is_transient
from rowlock.stream_errors import ReplayMismatchError, RowsChanged
from rowlock.streams import events
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.cut_plan import Cut
from rowlock.streams.flow_view import Transact
from rowlock.streams.folds import FoldedRow
from rowlock.streams.key_states import StateWrite, write_states
from rowlock.streams.outputs import ResultRow
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.replicas import OwnShard, StepFailures
from rowlock.streams.shards.steps import ShardDid, StepWrite

_PART = (
    "flow_id",
    "step",
    "lo",
    "hi",
    "rows",
    "input_digest",
    "outputs",
    "output_digest",
    "seconds",
)


class Committer:
    def __init__(self, program: FlowProgram, leased: LeasedTable, transact: Transact) -> None:
        self._program = program
        self._leased = leased
        self._transact = transact
        column = leased.column
        self._step = column("step")
        own = (
            *("step", "version", "snapshot", "replica", "failures", "failed_step", "last_error"),
            *("state_keys", "state_keys_at"),
        )
        self._columns = [column(name) for name in own]

    async def commit(self, writes: Sequence[StepWrite]) -> frozenset[UUID]:
        """Write steps of shards in one transaction; return the tokens of those written."""
        # The others are held no longer, or their rows say that they do another step next: nothing
        # is written for them.

        async def work(session: AsyncSession, connection: AsyncConnection) -> frozenset[UUID]:
            return await self._write(connection, writes)

        return await self._transact(work, purpose="write steps")

    async def _write(
        self, connection: AsyncConnection, writes: Sequence[StepWrite]
    ) -> frozenset[UUID]:
        # Before anything else: what follows counts for those alone that are held until the commit.
        tokens = await fence(
            connection, self._leased, [self._fenced(one) for one in writes], waits=True
        )
        held = [one for one in writes if one.item.lock_token in tokens]
        await self._write_parts(connection, held)
        for name, rows in _results_of(held).items():
            await self._program.outputs[name].write(connection, rows)
        states = [state for one in held for state in one.states]
        if states:
            table = self._program.tables.state
            await write_states(connection, table, self._program.id, states=states)
        for name, fold in self._program.folds.items():
            folded = [row for one in held for row in one.rows.get(name, ())]
            await fold.write(connection, folded)
        return tokens

    def _fenced(self, write: StepWrite) -> Fenced:
        failures = write.failures
        values = (
            write.step,
            write.version,
            write.snapshot,
            write.replica,
            failures.failures,
            failures.failed_step,
            None,  # What it has failed of before is over.
            write.state_keys,
            write.version,
        )
        assigned = dict(zip(self._columns, values, strict=True))
        return Fenced(write.item, assigned, unless_changed={self._step: write.before})

    async def _write_parts(self, connection: AsyncConnection, writes: Sequence[StepWrite]) -> None:
        rows: list[tuple[Any, ...]] = [
            (
                self._program.id,
                part.step,
                one.range.lo,
                one.range.hi,
                part.rows,
                part.input_digest,
                part.outputs,
                part.output_digest,
                part.seconds,
            )
            for one in writes
            for part in one.parts
        ]
        if rows:
            dialect = BULK.of(connection)
            statement = dialect.insert(self._program.tables.parts, _PART)
            await connection.execute(statement, dialect.insert_parameters(_PART, rows))


def _results_of(writes: Sequence[StepWrite]) -> dict[str, list[ResultRow]]:
    results: dict[str, list[ResultRow]] = {}
    for one in writes:
        for name, rows in one.results.items():
            results.setdefault(name, []).extend(rows)
    return results


# ---------------------------------------------------------------- events


class Telling:
    def __init__(self, pipeline: str, flow: str) -> None:
        self._of = (pipeline, flow)

    def cut(self, cut: Cut) -> None:
        if has_listeners(events.StepCut):
            flags = (cut.is_checkpoint, cut.is_snapshot)
            emit(events.StepCut(*self._of, cut.step, cut.rows, *flags))

    def opened(self, shard: OwnShard) -> None:
        if has_listeners(events.ShardOpened):
            emit(events.ShardOpened(*self._shard(shard), shard.version, shard.step))

    def released(self, shard: OwnShard) -> None:
        if has_listeners(events.ShardReleased):
            emit(events.ShardReleased(*self._shard(shard), shard.step))

    def replayed(self, shard: OwnShard, first: int, end: int) -> None:
        """Emit that a shard has repeated the steps from `first` to one below `end`."""
        if has_listeners(events.ShardReplayed) and first < end:
            emit(events.ShardReplayed(*self._shard(shard), first, end - 1))

    def failed(self, shard: OwnShard, step: int, error: str, *, is_parked: bool) -> None:
        if has_listeners(events.StepFailed):
            failures = shard.failures.with_failure(step).failures
            emit(events.StepFailed(*self._shard(shard), step, error, failures, is_parked))

    def written(self, shard: OwnShard, write: StepWrite) -> None:
        if has_listeners(events.StepDone):
            self._done(shard, write)
        if write.version == write.step and has_listeners(events.CheckpointWritten):
            emit(events.CheckpointWritten(*self._shard(shard), write.version, len(write.states)))

    def _done(self, shard: OwnShard, write: StepWrite) -> None:
        parts = {part.step: part for part in write.parts}
        for step in range(write.before, write.step):
            part = parts.get(step)
            rows, outputs = (0, 0) if part is None else (part.rows, part.outputs)
            emit(events.StepDone(*self._shard(shard), step, rows, outputs))

    def _shard(self, shard: OwnShard) -> tuple[str, str, int, int]:
        return (*self._of, shard.range.lo, shard.range.hi)


# ---------------------------------------------------------------- results and failures


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
        self, program: FlowProgram, committer: Committer, *, replica: UUID, telling: Telling
    ) -> None:
        self._program = program
        self._committer = committer
        self._replica = replica
        self._telling = telling

    async def write(self, done: Sequence[ShardDid]) -> None:
        """Write what shards did, and have those leave that failed."""
        # After an error of the database, which passes, it may have been written.
        for did in (one for one in done if one.is_replay):
            first, did.shard.at = did.shard.at, did.step
            self._telling.replayed(did.shard, first, did.step)
        writes = {did.shard: self._write_of(did) for did in done if did.step > did.shard.step}
        if writes:
            await self._commit(writes)
        for did in done:
            if did.has_failed and did.shard.is_open:
                self._has_failed(did)

    def _has_failed(self, did: ShardDid) -> None:
        if did.poisoned is not None:
            self.failed(did.shard, did.step, did.poisoned.text)
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

    async def write_versions(self, shards: Sequence[OwnShard]) -> None:
        """Write the states of shards as of the step that each does next."""
        writes = {shard: self._empty(shard, shard.step) for shard in shards}
        for shard, write in writes.items():
            self._with_states(write, shard)
        await self._commit(writes)

    def failed(self, shard: OwnShard, step: int, text: str) -> None:
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
        writes_states = any(cut.is_checkpoint for cut in own)
        snapshots = [cut.step + 1 for cut in own if cut.is_snapshot]
        write = self._empty(shard, did.step)
        write.snapshot = snapshots[-1] if snapshots else shard.snapshot
        write.parts, write.results = did.parts, did.results
        if writes_states:
            self._with_states(write, shard)
            write.rows = self._folded(shard)
        return write

    def _empty(self, shard: OwnShard, step: int) -> StepWrite:
        return StepWrite(
            shard.item,
            shard.range,
            before=shard.step,
            step=step,
            version=shard.version,
            snapshot=shard.snapshot,
            replica=self._replica,
            state_keys=shard.state_keys,
        )

    def _with_states(self, write: StepWrite, shard: OwnShard) -> None:
        """Add the states that are not written yet, as of the step that comes next."""
        write.version = write.step
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

    async def _commit(self, writes: Mapping[OwnShard, StepWrite]) -> None:
        try:
            tokens = await self._committer.commit(list(writes.values()))
        except Exception as error:
            if is_transient(error):
                raise
            if not (isinstance(error, RowsChanged) and self._redo(writes)):
                await self._refused(writes, error)
            return
        for shard, write in writes.items():
            if write.item.lock_token in tokens:
                self._written(shard, write)
            else:
                shard.drop()

    def _redo(self, writes: Mapping[OwnShard, StepWrite]) -> bool:
        """Redo a step over rows that the host changed; return whether it may be redone again."""
        if len(writes) > 1:
            return False
        (shard,) = writes
        shard.drop()
        shard.redone = (shard.redone + 1) % REDONE_MAX
        return shard.redone > 0

    async def _refused(self, writes: Mapping[OwnShard, StepWrite], error: Exception) -> None:
        """Find the shard whose results the database refuses, and write the others without it."""
        if len(writes) == 1:
            ((shard, write),) = writes.items()
            text = "%(flow)s: step %(step)s of the shard %(shard)s was refused by the database"
            extra = {"flow": self._program.name, "step": write.before, "shard": write.range}
            logger.warning(text, extra, exc_info=error)
            self.failed(shard, write.before, f"step {write.before}: {describe(error)}")
            return
        for shard, write in writes.items():
            await self._commit({shard: write})

    def _written(self, shard: OwnShard, write: StepWrite) -> None:
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
        self._telling.written(shard, write)
