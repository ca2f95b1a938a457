"""Writes what shards did, and sees to those whose steps failed.

A step that fails is tried again by whoever claims the shard next, later each time; after
`failures_max` attempts at one step the shard is parked. The others go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from rowlock.database.faults import is_transient
from rowlock.errors import describe
from rowlock.logs import get_logger
from rowlock.pipelines.outcomes import Outcome, Park, Retry
from rowlock.streams.committing.committer import Committer
from rowlock.streams.committing.step_write import StepWrite
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.cutting.flow_view import RecordedCut
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.failures import StepFailures, is_to_park
from rowlock.streams.shards.own_shard import OwnShard
from rowlock.streams.shards.states import HeldState, StepDid, advance
from rowlock.streams.shards.steps.steps_of import ShardDid, StepsOf
from rowlock.streams.state.store import StateWrite

logger = get_logger(__name__)


class StepWriter:
    """Writes the steps of shards of one flow.

    Args:
        program: the flow.
        committer: writes.
        replica: whose shards they are.
    """

    def __init__(self, program: FlowProgram, committer: Committer, *, replica: UUID) -> None:
        self._program = program
        self._committer = committer
        self._replica = replica

    def __repr__(self) -> str:
        return f"<StepWriter of {self._program.name}>"

    async def write(self, steps: Sequence[StepsOf], done: Sequence[ShardDid]) -> None:
        """Write what shards did, and have those leave that failed.

        Raises:
            Exception: an error of the database that passes; it may have been written.
        """
        cuts = {cut.step: cut for each in steps for cut in each.cuts}
        replays = {shard for each in steps if each.is_replay for shard in each.shards}
        writes = {}
        for did in done:
            shard = did.shard
            if shard in replays:
                self._replayed(did)
            elif did.step > shard.step:
                writes[shard] = self._write_of(did, cuts)
        if writes:
            await self._commit(writes)
        for did in done:
            if did.poisoned is not None and did.shard.is_open:
                self.failed(did.shard, did.step, did.poisoned.text)

    async def write_versions(self, shards: Sequence[OwnShard]) -> None:
        """Write the states of shards as of the step that each does next.

        Raises:
            Exception: as `write`.
        """
        await self._commit(
            {shard: self._write_of(ShardDid(shard, shard.step), {}) for shard in shards}
        )

    def failed(self, shard: OwnShard, step: int, text: str) -> None:
        """Have a shard leave that cannot do `step`."""
        failures = shard.failures.with_failure(step)
        most = self._program.settings.failures_max
        if is_to_park(failures, step, failures_max=most):
            self._leave(shard, Park(text))
        else:
            values = {"failures": failures.failures, "failed_step": failures.failed_step}
            self._leave(shard, Retry(error=text, values=values))

    def _leave(self, shard: OwnShard, outcome: Outcome) -> None:
        shard.drop()
        shard.leave(outcome)

    def _replayed(self, did: ShardDid) -> None:
        shard, state = did.shard, did.shard.state
        assert isinstance(state, HeldState)
        for step in range(state.at, did.step):
            shard.state = advance(shard.state, StepDid(step))
        # Nothing but a checkpoint stands between the states here and those in the database.
        if did.differs is not None:
            text = f"step {did.step}: its replay came out otherwise: {did.differs}"
            self._leave(shard, Park(text))

    def _write_of(self, did: ShardDid, cuts: Mapping[int, RecordedCut]) -> StepWrite:
        shard = did.shard
        own = [cuts[step] for step in range(shard.step, did.step)]
        writes_states = not own or any(cut.is_checkpoint for cut in own)
        snapshots = [cut.step + 1 for cut in own if cut.is_snapshot]
        write = StepWrite(
            shard.item,
            shard.range,
            before=shard.step,
            step=did.step,
            version=did.step if writes_states else shard.version,
            snapshot=snapshots[-1] if snapshots else shard.snapshot,
            replica=self._replica,
            parts=did.parts,
            results=did.results,
        )
        if writes_states:
            write.states = self._dirty(shard, version=did.step)
        return write

    def _dirty(self, shard: OwnShard, *, version: int) -> list[StateWrite]:
        # What is written belongs to the step behind an earlier snapshot, whose values stay.
        return [
            StateWrite(name, key, bucket_of(key), version, state, shard.snapshot)
            for name, stage in shard.cache
            for key, state in stage.states(sorted(stage.dirty)).items()
        ]

    async def _commit(self, writes: Mapping[OwnShard, StepWrite]) -> None:
        try:
            tokens = await self._committer.commit(list(writes.values()))
        except Exception as error:
            if is_transient(error):
                raise
            await self._refused(writes, error)
            return
        for shard, write in writes.items():
            if write.item.lock_token in tokens:
                self._written(shard, write)
            else:
                shard.drop()

    async def _refused(self, writes: Mapping[OwnShard, StepWrite], error: Exception) -> None:
        """Find the shard whose results the database refuses, and write the others without it."""
        if len(writes) == 1:
            ((shard, write),) = writes.items()
            logger.warning(
                "%s: step %s of the shard %s was refused by the database",
                self._program.name,
                write.before,
                write.range,
                extra={"flow": self._program.name, "step": write.before},
                exc_info=error,
            )
            self.failed(shard, write.before, f"step {write.before}: {describe(error)}")
            return
        for shard, write in writes.items():
            await self._commit({shard: write})

    def _written(self, shard: OwnShard, write: StepWrite) -> None:
        for step in range(write.before, write.step):
            shard.state = advance(shard.state, StepDid(step))
        shard.step, shard.version, shard.snapshot = write.step, write.version, write.snapshot
        shard.failures = StepFailures()
        for state in write.states:
            shard.cache[state.name].dirty.discard(state.key)
