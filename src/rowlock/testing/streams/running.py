"""Runs a flow until nothing is left to do, and reads what it has come to.

    async def test_balances(rowlock_session_factory):
        await pay(rowlock_session_factory, "ada", 5)
        record = await run_flow(rowlock_session_factory, balances)
        assert record.states["add"] == {"ada": 5}
        assert record.differences(await reference(rowlock_session_factory, balances)) == []

Each opens sessions of its own. Not here: replicas that die (`crashes`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.errors import PipelineError
from rowlock.streams.computing.compute import NO_STATE, Computed, KeyState, compute, keys_of
from rowlock.streams.computing.handlers import NOTHING_YET, HandedOut, StageHandler, StepTime
from rowlock.streams.computing.hashing import BucketRange, bucket_of
from rowlock.streams.computing.rows import EventBatch, SentMessages, SourceRows, divide
from rowlock.streams.cut_plan import Checkpoint, Cut
from rowlock.streams.exchanging import ReceivingStage, arrived
from rowlock.streams.flow import StreamFlow
from rowlock.streams.flow_view import BEFORE_FIRST
from rowlock.streams.inputs.step_inputs import cuts_of, rows_of
from rowlock.streams.outputs import DEDUP_KEY, TableOutput
from rowlock.streams.program import FlowProgram, check_fold
from rowlock.streams.shards.layout import check_number, even_layout
from rowlock.streams.shards.pipeline import FlowPipeline
from rowlock.streams.shards.step_work import receiving_stages
from rowlock.testing.stepping import run_until_settled
from rowlock.testing.streams.recorded import (
    ExpectedRows,
    FlowRecord,
    FlowResult,
    check_at_one_step,
    read_recorded,
    read_shards,
    results_of,
    states_of,
)


async def read_reference(
    connection: AsyncConnection,
    program: FlowProgram,
    *,
    before: int | None = None,
    shards: int = 1,
    versions: Mapping[BucketRange, int] | None = None,
) -> FlowRecord:
    """Return what the recorded steps come to; joins the caller's transaction.

    `before` is the first step that is left out; None: all cut steps are done. `shards` is the
    number of parts into which keys are divided. `versions` has, for ranges that cover every bucket,
    the step at whose start their states are read; None: behind the last step. Raises PipelineError
    if a step cannot be computed, or the first ones are kept no more.
    """
    loop = _Loop(program, even_layout(shards))
    last: Cut | None = None
    next_step = 0
    end = None if before is None else max([before, *(versions or {}).values()])
    for expected, cut in enumerate(await cuts_of(connection, program.readable), BEFORE_FIRST):
        if cut.step != expected:
            msg = f"step {expected} of {program.name!r} is not kept any more; step {cut.step} is"
            raise PipelineError(msg)
        if end is not None and cut.step >= end:
            break
        if last is not None:
            if before is None or cut.step < before:
                next_step = cut.step + 1
            loop.do(cut, await rows_of(connection, program.sources, before=last, cut=cut))
        loop.keep_states([each for each, step in (versions or {}).items() if step == cut.step + 1])
        last = cut
    if last is None:
        raise PipelineError(f"the flow {program.name!r} has no steps: was it ever started?")
    return loop.record(next_step)


class _Loop:
    def __init__(self, program: FlowProgram, ranges: Sequence[BucketRange]) -> None:
        self._program = program
        self._ranges = ranges
        self._receiving = receiving_stages(program)
        self._states: dict[str, dict[str, KeyState]] = {one.name: {} for one in program.stages}
        self._kept: dict[str, dict[str, KeyState]] | None = None
        self._messages: dict[str, list[FlowResult]] = {one.name: [] for one in self._receiving}
        self._digests: dict[str, list[tuple[int, str]]] = {one.name: [] for one in program.stages}
        self._folds = {name: ExpectedRows(fold) for name, fold in program.folds.items()}
        self._results: dict[str, list[tuple[int, str | None, Any]]] = {
            name: [] for name in program.outputs
        }

    def do(self, cut: Cut, rows: Sequence[SourceRows]) -> None:
        events = [divide(one, self._ranges) for one in rows]
        parts = [[own[index] for own in events] for index in range(len(self._ranges))]
        sent: dict[str, dict[int, dict[int, SentMessages]]] = {}
        handed_out = [NOTHING_YET] * len(self._ranges)
        for number, stage in enumerate(self._program.stages):
            if number:
                receiving = self._receiving[number - 1]
                parcels = {lo: [own] for lo, own in sent.get(receiving.name, {}).items()}
                parts = arrived(parcels, self._ranges, receiving)
                self._note_messages(cut.step, receiving, parts)
            for index, shard in enumerate(self._ranges):
                batch: EventBatch[Any] = EventBatch(parts[index])
                done = self._do_part(stage, cut, shard, batch=batch, before=handed_out[index])
                if done is None:
                    continue
                handed_out[index] = done.handed_out
                for name, messages in done.messages.items():
                    sent.setdefault(name, {}).setdefault(shard.lo, {})[number] = messages

    def _do_part(
        self,
        stage: StageHandler,
        cut: Cut,
        shard: BucketRange,
        *,
        batch: EventBatch[Any],
        before: HandedOut,
    ) -> Computed | None:
        known = self._states[stage.name]
        states = {key: known.get(key, NO_STATE) for key in keys_of(stage, batch)}
        states |= {
            key: state
            for key, state in known.items()
            if state.timer_at is not None and state.timer_at <= cut.now and bucket_of(key) in shard
        }
        if not len(batch) and not states:
            return None
        done = compute(
            stage,
            batch,
            states,
            step=StepTime(self._program.name, cut.step, cut.now),
            shard=shard,
            is_last_attempt=True,
            before=before,
        )
        if not isinstance(done, Computed):
            raise PipelineError(f"the reference of {self._program.name!r} fails: {done.text}")
        if stage.name in self._folds:
            self._folds[stage.name].changed(states, done.states)
        known.update(done.states)
        self._digests[stage.name].append((cut.step, done.output_digest))
        for result in done.results:
            self._results[result.output].append((cut.step, result.key, result.stored))
        return done

    def _note_messages(
        self, step: int, to: ReceivingStage, parts: Sequence[Sequence[SourceRows]]
    ) -> None:
        rows = [one for own in parts for one in own]
        keys = [key for one in rows for key in one.keys]
        texts = [text for one in rows for text in one.raw]
        values = to.decoder.build(to.decoder.parse(texts))
        sent = map(FlowResult, [step] * len(keys), keys, values, texts)
        self._messages[to.name] += sorted(sent, key=lambda one: one.key or "")

    def keep_states(self, ranges: Sequence[BucketRange]) -> None:
        """Record the states of keys in `ranges` as they are now."""
        if not ranges:
            return
        if self._kept is None:
            self._kept = {name: {} for name in self._states}
        for name, own in self._states.items():
            fold = self._folds.get(name)
            bucket = bucket_of if fold is None else fold.bucket_of
            here = {key: bucket(key) for key in own}
            self._kept[name] |= {
                key: own[key] for key, at in here.items() if any(at in each for each in ranges)
            }

    def record(self, next_step: int) -> FlowRecord:
        states = self._states if self._kept is None else self._kept
        stored = {
            name: {key: state.value for key, state in own.items() if state.value is not None}
            for name, own in states.items()
            if name not in self._folds
        }
        timers = {
            name: {
                key: state.timer_at
                for key, state in states[name].items()
                if state.timer_at is not None
            }
            for name in stored
        }
        results = {
            name: [one for one in own if one[0] < next_step] for name, own in self._results.items()
        }
        outputs = self._program.outputs.items()
        return FlowRecord(
            next_step,
            {
                name: results_of(output, results[name])
                for name, output in outputs
                if not isinstance(output, TableOutput)
            },
            {
                name: _inserted(output, [row for _, _, row in results[name]])
                for name, output in outputs
                if isinstance(output, TableOutput)
            },
            states_of(self._program, stored),
            timers,
            {name: fold.rows(states[name]) for name, fold in self._folds.items()},
            {
                name: [one for one in own if one.step < next_step]
                for name, own in self._messages.items()
            },
            {
                name: [digest for step, digest in own if step < next_step]
                for name, own in self._digests.items()
            },
        )


def _inserted(
    output: TableOutput[Any], rows: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the rows that are stored: of each key of an outbox, the first one."""
    if not output.is_outbox:
        return list(rows)
    first: dict[Any, Mapping[str, Any]] = {}
    for row in rows:
        first.setdefault(row[DEDUP_KEY], row)
    return list(first.values())


T = TypeVar("T")
Sessions = async_sessionmaker[AsyncSession]


async def run_flow(
    session_factory: Sessions,
    flow: StreamFlow[Any],
    *,
    shards: int | None = None,
    checkpoint: Checkpoint | None = None,
) -> FlowRecord:
    """Do all steps for which there is something now, write the states, and return what the flow has
    come to since it was created.

    Timers that are due later stay: let time pass, and call it again.

    Args:
        session_factory: the host's.
        flow: as the host declares it.
        shards: how many shards there are, where the flow is created by this; by default as
            declared.
        checkpoint: how often states are written; by default as declared. They are written at the
            end in any case.

    Raises:
        PipelineError: a shard was parked; the text says at which step, and why.
        ConfigurationError: the flow folds, and `checkpoint` is not every step.
        ValueError: the number of shards is no power of two.
    """
    pipeline = flow_pipeline(flow, shards=shards, checkpoint=checkpoint)
    await run_until_settled(session_factory, [pipeline])
    return await recorded(session_factory, flow)


async def recorded(session_factory: Sessions, flow: StreamFlow[Any]) -> FlowRecord:
    """Return what is stored of a flow that has ended in order: its results, states and timers.

    Raises:
        PipelineError: a shard is parked, behind the others, or has not written its states.
    """
    program = flow.program

    async def read(connection: AsyncConnection) -> FlowRecord:
        shards = await read_shards(connection, program)
        check_at_one_step(program, shards)
        return await read_recorded(connection, program, shards)

    return await connected(session_factory, program, read)


async def reference(
    session_factory: Sessions, flow: StreamFlow[Any], *, before: int | None = None, shards: int = 1
) -> FlowRecord:
    """Return what a flow must have come to: its handlers are called for each recorded step in one
    loop, without leases, replays, caches or transactions.

    Args:
        session_factory: the host's.
        flow: as the host declares it; it was run before.
        before: the first step that is left out; by default none that is cut.
        shards: into how many parts the keys are divided for each step. A handler that treats its
            keys separately gives the same for any number.

    Raises:
        PipelineError: the flow was never run, a handler fails, or the first steps are kept no more.
        ValueError: the number of shards is no power of two.
    """
    program = flow.program
    return await connected(
        session_factory,
        program,
        lambda connection: read_reference(connection, program, before=before, shards=shards),
    )


def flow_pipeline(
    flow: StreamFlow[Any],
    *,
    shards: int | None = None,
    checkpoint: Checkpoint | None = None,
    **changes: Any,
) -> FlowPipeline:
    """Return a new pipeline of a flow; `changes` of its program do not change what is stored."""
    program: FlowProgram = flow.program
    if shards is not None:
        changes["shards"] = check_number(shards)
    if checkpoint is not None:
        if program.folds:
            check_fold(program.name, checkpoint)
        changes["checkpoint"] = checkpoint
    return FlowPipeline(replace(program, **changes), **flow.pipeline_settings)


async def connected(
    session_factory: Sessions, program: FlowProgram, read: Callable[[AsyncConnection], Awaitable[T]]
) -> T:
    """Return the answer of `read`, with a connection to the flow's database."""
    async with session_factory() as session:
        return await read(await program.tables.connection(session))
