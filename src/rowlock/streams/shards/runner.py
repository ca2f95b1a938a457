"""The loop of one replica over the shards of a flow that it holds.

The one idea: all shards here take their steps together, round by round, so a step costs one
transaction that reads and one that writes, however many shards there are. What is done next is
decided by pure functions (``steering.py``, ``next_action.py``); here it is done.

`hold` is what `process` of a lease waits for; the loop runs as long as anything is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.backoff import exponential
from rowlock.clock import monotonic, rest, sleep
from rowlock.containment import as_ordinary, contained_task
from rowlock.database.faults import is_transient
from rowlock.hints.hinter import pipeline_hinter
from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.outcomes import Apply, Outcome
from rowlock.streams.committing.committer import Committer
from rowlock.streams.computing.buckets import BucketRange
from rowlock.streams.cutting.cutter import Cutter
from rowlock.streams.cutting.flow_view import FlowFacts, KnownFlow
from rowlock.streams.cutting.plan import NoCut
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.dividing import Dividing
from rowlock.streams.shards.next_action import FlowView, NextAction, next_action
from rowlock.streams.shards.own_shard import OwnShard
from rowlock.streams.shards.replicas import Replicas
from rowlock.streams.shards.steering import STEPS_TOGETHER_MAX, lowest, steered, steps_of
from rowlock.streams.shards.steps.step_work import StepWork
from rowlock.streams.shards.steps.timers import open_timers
from rowlock.streams.shards.writing import StepWriter
from rowlock.streams.state.cache import ShardCache

logger = get_logger(__name__)

LOOK_EVERY_S = 0.5
"""How long a replica that is busy goes by what it knows of the flow, in seconds."""
RETRY_DELAY_S = 0.05
RETRY_DELAY_S_MAX = 1.0
"""First and longest rest after an error of the database that passes, in seconds."""


class FlowRunner:
    """Runs the shards of one flow that are held here.

    Args:
        program: the flow.
        context: of the pipeline whose leases these are.
        replicas: which shards are this replica's.

    Attributes:
        context: of the pipeline whose leases these are.
        shards: that are held here, by the key of the row.
    """

    def __init__(
        self, program: FlowProgram, context: PipelineContext[Any], replicas: Replicas
    ) -> None:
        self.shards: dict[Any, OwnShard] = {}
        self._program = program
        self.context = context
        self._replicas = replicas
        transact = context.transact
        self._known = KnownFlow(program.tables, program.id)
        self._cutter = Cutter(program, transact)
        self._work = StepWork(program, transact)
        committer = Committer(program, context.leased, transact)
        self._writer = StepWriter(program, committer, replica=replicas.id)
        self._dividing = Dividing(program, context, self._writer, replicas=replicas)
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_running = False
        self._looks_at = self._failures_in_a_row = 0.0
        self._looks = 0
        self._found_nothing = 0
        self._asked: int | None = None

    def __repr__(self) -> str:
        return f"<FlowRunner of {self._program.name}, {len(self.shards)} shards>"

    def wake(self) -> None:
        """Look at once: there may be something to do."""
        self._looks += 1
        self._looks_at = 0.0
        self._woken.set()

    def has_nothing_left(self) -> bool:
        """Return whether there was nothing to do at a look that began after the last answer; wake
        the loop if there was no such look.
        """
        if self._asked is None:
            self.wake()
            self._asked = self._looks
        are_on_their_way = len(self.context.queue) + len(self.context.in_progress)
        if (self.shards or are_on_their_way) and self._found_nothing < self._asked:
            return False
        self._asked = None
        return True

    async def hold(self, item: PipelineItem[Any]) -> Outcome:
        """Do the steps of a shard until it is to be released; return the outcome of its lease."""
        row = item.row
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        shard = OwnShard(item, BucketRange(row.lo, row.hi), outcome, self._new_cache())
        former = self.shards.get(item.id)
        if former is not None:
            # Its lease was lost, and the row was claimed here again before that was noticed.
            former.drop()
            former.leave(Apply())
        self.shards[item.id] = shard
        if not self._is_running:
            self._is_running = True
            # As background work, it has ended before the pipeline has stopped.
            self.context.background.begin(self._run(), purpose="do steps")
        self.wake()
        try:
            return await outcome
        finally:
            if self.shards.get(item.id) is shard:
                del self.shards[item.id]
            self._woken.set()

    def _new_cache(self) -> ShardCache:
        return ShardCache(stage.name for stage in self._program.stages)

    async def _run(self) -> None:
        stop = contained_task(self._wake_at_stop(), name="rowlock: wait for the end of steps")
        try:
            with self._listening():
                while self.shards:
                    await self._round()
        except BaseException as error:
            for shard in self.shards.values():
                shard.fail(as_ordinary(error))
            raise
        finally:
            self._is_running = False
            stop.cancel()
        if self.context.stop.is_given:
            await self.disappear()

    async def disappear(self) -> None:
        """Have the other replicas know that this one is gone."""

        async def work(session: AsyncSession, connection: AsyncConnection) -> None:
            await self._replicas.disappear(connection)

        await self.context.transact(work, purpose="say that a replica is gone")

    async def _wake_at_stop(self) -> None:
        await self.context.stop.wait()
        self.wake()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Be woken by hints for new rows, steps and wishes."""
        self._loop = asyncio.get_running_loop()
        topics = {self._program.topic, *(one.topic for one in self._program.sources.values())}
        pairs = [
            (hinter, topic)
            for hinter in (self.context.hinter, pipeline_hinter)
            for topic in sorted(topics)
        ]
        for hinter, topic in pairs:
            hinter.attach(topic, self.wake_from_anywhere)
        try:
            yield
        finally:
            for hinter, topic in pairs:
                hinter.detach(topic, self.wake_from_anywhere)

    def wake_from_anywhere(self) -> None:
        """Do as `wake`, from any thread."""
        with suppress(RuntimeError):  # a closed loop has nobody to wake
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self.wake)

    async def _round(self) -> None:
        looks = self._looks
        try:
            is_busy = await self._act(looks)
        except Exception as error:
            # What is in memory may be newer than what was written, or older.
            for shard in self.shards.values():
                shard.drop()
            if not is_transient(error):
                raise
            await self._rest_after(error)
            return
        self._failures_in_a_row = 0
        if not is_busy and self._looks == looks:
            await rest(self._woken, self._program.settings.poll_interval.total_seconds())
            self._looks_at = 0.0

    async def _rest_after(self, error: Exception) -> None:
        self._failures_in_a_row += 1
        logger.warning(
            "%s: the steps of %s shards are tried again",
            self._program.name,
            len(self.shards),
            extra={"flow": self._program.name, "shards": len(self.shards)},
            exc_info=error,
        )
        self._looks_at = 0.0
        await sleep(
            exponential(
                int(self._failures_in_a_row), first_s=RETRY_DELAY_S, most_s=RETRY_DELAY_S_MAX
            )
        )

    async def _act(self, looks: int) -> bool:
        """Do what is to be done now; return whether there may be more.

        Args:
            looks: how often somebody had asked for a look when this one began.
        """
        facts = await self._look()
        if facts is None:
            return False
        actions = self._actions(facts)
        for shard, action in actions.items():
            if action is NextAction.LEAVE:
                shard.drop()
                # Whoever is to have it looks at once.
                shard.leave(Apply(hint=self._program.shards_topic))
        steps = steps_of(actions, self._known, together_max=STEPS_TOGETHER_MAX)
        if steps:
            done = [did for each in steps for did in await self._work.do(each)]
            await self._writer.write(steps, done)
            await self._end_steps(done)
            return True
        if await self._dividing.write_and_divide(actions):
            return True
        if NextAction.CUT in actions.values() and await self._cut():
            return True
        self._note_nothing(actions, looks)
        return False

    async def _cut(self) -> bool:
        """Cut the next step; return whether there is one."""
        cut = await self._cutter.cut(self._known, self._progress())
        if isinstance(cut, NoCut):
            return False
        if cut is None:
            # Another replica was first.
            self._looks_at = 0.0
        else:
            self.context.hinter.hint_fetch(self._program.topic)
        return True

    def _note_nothing(self, actions: dict[OwnShard, NextAction], looks: int) -> None:
        are_all_here = len(actions) == len(self.shards) == len(self.context.in_progress)
        if are_all_here and {NextAction.CUT, NextAction.WAIT}.issuperset(actions.values()):
            self._found_nothing = looks

    def _progress(self) -> list[Any]:
        return [shard.progress for shard in self.shards.values() if shard.is_open]

    async def _look(self) -> FlowFacts | None:
        """Read the flow's row and new cuts if that is due, and the rows of shards that are not
        open.
        """
        closed = [
            shard for shard in self.shards.values() if not shard.is_open and not shard.is_leaving
        ]
        known = self._known
        if not closed and known.facts is not None and monotonic() < self._looks_at:
            return known.facts

        async def look(session: AsyncSession, connection: AsyncConnection) -> None:
            if closed:
                await self._open(connection, closed)
            opened = [shard for shard in self.shards.values() if shard.is_open]
            first = lowest(opened)
            await known.look(connection, first=0 if first is None else first)

        await self.context.transact(look, purpose="look at a flow", writes=bool(closed))
        self._looks_at = monotonic() + LOOK_EVERY_S
        return known.facts

    async def _open(self, connection: AsyncConnection, closed: Sequence[OwnShard]) -> None:
        """Read the rows of shards that are held still, and write there who holds them; joins the
        caller's transaction.
        """
        shards = self._program.tables.shards
        tokens = [shard.item.lock_token for shard in closed]
        held = (
            update(shards)
            .where(shards.c.flow_id == self._program.id, shards.c.lock_token.in_(tokens))
            .values(replica=self._replicas.id)
            .returning(shards)
        )
        rows = {row.lock_token: row for row in await connection.execute(held)}
        for shard in closed:
            row = rows.get(shard.item.lock_token)
            if row is None:
                # The settler finds that it is held no longer, and says so.
                shard.leave(Apply())
                continue
            shard.open(row, self._new_cache())
            await open_timers(connection, self._program, shard)

    def _actions(self, facts: FlowFacts) -> dict[OwnShard, NextAction]:
        """Return what each shard does next, after what is wished of it."""
        view = FlowView(
            facts.next_step,
            may_cut=facts.state == "running",
            shards_wanted=self._replicas.wanted,
            has_exchange=self._program.has_exchange,
        )
        actions = {}
        for key, shard in list(self.shards.items()):
            if shard.is_leaving or not shard.is_open:
                continue
            if not shard.item.is_trusted():
                shard.drop()
                continue
            leaves = shard.item.stop_requested or key not in self._replicas.mine
            shard.state = steered(shard, facts, leaves=leaves)
            actions[shard] = next_action(shard.state, view, shard.view)
        return actions

    async def _end_steps(self, done: Sequence[Any]) -> None:
        """Tell those who wait for results, and forget states that are too many."""
        for name in {name for did in done for name in did.results}:
            output = self._program.outputs[name]
            self.context.hinter.hint_fetch(output.topic)
        most = self._program.settings.cached_keys_max // max(1, len(self.shards))
        for shard in self.shards.values():
            for _, stage in shard.cache:
                stage.shrink(most)
