"""What one replica does over and over with the shards of a flow that it holds: look, release,
divide, do steps, cut.

The one idea: nothing waits within a round. Steps whose messages are not all there, or whose handler
hangs, stay under way until a later one; meanwhile further shards are opened, and those that the
others wait for do their part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.clock import monotonic
from rowlock.errors import PipelineError
from rowlock.hints.hinter import Wake, pipeline_hinter
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.outcomes import Apply, Park
from rowlock.streams.committing.committer import Committer
from rowlock.streams.cutting.cutter import Cutter
from rowlock.streams.cutting.flow_view import FlowFacts, KnownFlow
from rowlock.streams.cutting.plan import NoCut
from rowlock.streams.frontier import check_shards
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.dividing import Dividing
from rowlock.streams.shards.next_action import FlowView, NextAction, next_action
from rowlock.streams.shards.own_shard import OwnShard
from rowlock.streams.shards.replicas import Replicas
from rowlock.streams.shards.steering import lowest, new_steps, steered, to_reopen
from rowlock.streams.shards.steps.slow_calls import SlowCalls
from rowlock.streams.shards.steps.step_work import StepWork
from rowlock.streams.shards.steps.steps_of import ShardDid
from rowlock.streams.shards.steps.timers import open_timers
from rowlock.streams.shards.telling import Telling
from rowlock.streams.shards.writing import StepWriter, topics_of
from rowlock.streams.state.cache import ShardCache
from rowlock.streams.state.store import STATES_COUNTED_MAX, count_states

OPENED_AT_ONCE = 64
"""So many shards are opened in one transaction, which has a statement for each."""
LOOK_EVERY_S = 0.5
"""How long a replica that is busy goes by what it knows of the flow, in seconds."""


class Left(Enum):
    """What there is to do behind a round.

    MORE: something, at once.
    MESSAGES: there is something as soon as other replicas have sent.
    SOMETHING: not now; some shards are not open, or do other things.
    NOTHING: all shards here have done all there is.
    """

    MORE = "more"
    MESSAGES = "messages"
    SOMETHING = "something"
    NOTHING = "nothing"


class FlowRounds:
    """Makes rounds over the shards of one flow that are held here.

    Args:
        program: the flow.
        context: of the pipeline whose leases these are.
        replicas: which shards are this replica's.
        wake: has a round made here, at a hint.

    Attributes:
        shards: that are held here, by the key of the row.
    """

    def __init__(
        self,
        program: FlowProgram,
        context: PipelineContext[Any],
        replicas: Replicas,
        *,
        wake: Wake,
    ) -> None:
        self.shards: dict[Any, OwnShard] = {}
        self._wake = wake
        self._program = program
        self._context = context
        self._replicas = replicas
        transact = context.transact
        self._known = KnownFlow(
            program.tables,
            program.id,
            [one.newest() for one in program.sources.values()],
            rows_per_position={
                name: source.rows_per_position for name, source in program.sources.items()
            },
        )
        self._cutter = Cutter(program, transact)
        calls = SlowCalls(program, transact, replica=replicas.id, background=context.background)
        self._work = StepWork(program, context.leased, transact, calls=calls, wake=wake)
        self._telling = Telling(context.name, program.name)
        committer = Committer(program, context.leased, transact)
        self._writer = StepWriter(program, committer, replica=replicas.id, telling=self._telling)
        self._dividing = Dividing(program, context, self._writer, replicas=replicas)
        self._looks_at = 0.0

    def __repr__(self) -> str:
        return f"<FlowRounds of {self._program.name}, {len(self.shards)} shards>"

    def new_cache(self) -> ShardCache:
        """Return a cache in which nothing is."""
        return ShardCache(stage.name for stage in self._program.stages)

    def look_anew(self) -> None:
        """Have the next round read what the flow is."""
        self._looks_at = 0.0

    def is_hinted(self) -> None:
        """Have the next round look for rows, whatever is known of the sources."""
        self.look_anew()
        self._cutter.looks_next()

    def timer_in_s(self) -> float | None:
        """Return how long it is until the next timer, in seconds; None if none is to come."""
        moment = self._known.moment
        if moment is None:
            return None
        timers = [one.timer_at for one in self._progress() if one.timer_at is not None]
        lefts = [(at - moment.clock).total_seconds() for at in timers if at > moment.clock]
        return min(lefts, default=None)

    async def make(self) -> Left:
        """Do what is to be done now; return what is left to do.

        Raises:
            Exception: as of the database. What is in memory may be newer than what was written, or
                older.
        """
        facts = await self._look()
        if facts is None:
            return Left.SOMETHING
        if self._drop_lost():
            return Left.MORE
        actions = self._actions(facts)
        self._release(actions)
        if await self._go_on(actions):
            return Left.MORE
        if any(shard.doing is not None for shard in actions):
            return Left.MESSAGES
        are_all_here = len(actions) == len(self.shards) == len(self._context.in_progress)
        is_nothing = {NextAction.CUT, NextAction.WAIT}.issuperset(actions.values())
        return Left.NOTHING if are_all_here and is_nothing else Left.SOMETHING

    async def _go_on(self, actions: Mapping[OwnShard, NextAction]) -> bool:
        """Divide, do steps and cut; return whether there was something to do."""
        # Others may wait in a step for a shard that is to be divided before it.
        is_first = self._program.has_exchange
        return (
            (is_first and await self._dividing.write_and_divide(actions))
            or await self._do_steps(actions)
            or (not is_first and await self._dividing.write_and_divide(actions))
            or self._give_up_waiting()
            or (NextAction.CUT in actions.values() and await self._cut())
        )

    def _drop_lost(self) -> bool:
        """Drop shards whose lease may be lost, and those that must begin anew without them; return
        whether there are such.
        """
        opened = [shard for shard in self.shards.values() if shard.is_open]
        for shard in opened:
            if not shard.item.is_trusted():
                shard.drop()
        anew = to_reopen(shard for shard in opened if shard.is_open)
        for shard in anew:
            shard.drop()
        return bool(anew)

    def _release(self, actions: Mapping[OwnShard, NextAction]) -> None:
        for shard, action in actions.items():
            if action is NextAction.LEAVE:
                self._leave(shard)

    def _leave(self, shard: OwnShard) -> None:
        self._telling.released(shard)
        shard.drop()
        # Its next holder looks at once.
        shard.leave(Apply(hint=self._program.shards_topic))

    async def _do_steps(self, actions: Mapping[OwnShard, NextAction]) -> bool:
        """Do steps as far as what they need is there; return whether there was something to do."""
        new = new_steps(
            {shard: action for shard, action in actions.items() if shard.is_open},
            self._known,
            has_exchange=self._program.has_exchange,
            memory_from=self._writer.memory_from,
        )
        for steps in new:
            self._work.begin(steps)
        done: list[ShardDid] = []
        has_moved = bool(new)
        for steps in list(self._work.under_way):
            stage = steps.stage
            done += await self._work.advance(steps)
            has_moved |= steps.stage > stage
        if done:
            await self._writer.write(done)
            await self._end_steps(done)
            await self._relieve()
        if has_moved and self._program.has_exchange:
            # There may be messages for others.
            self._hint_others()
        return has_moved or bool(done)

    async def _relieve(self) -> None:
        """Request a checkpoint if there are too many states here that are not written: all shards
        write theirs with the next cut.
        """
        opened = [shard for shard in self.shards.values() if shard.is_open]
        first, dirty = lowest(opened), sum(shard.cache.dirty for shard in opened)
        is_much = dirty >= self._program.settings.dirty_keys_max
        if first is None or not is_much or self._known.has_checkpoint(first=first):
            return
        flows = self._program.tables.flows

        async def request(session: AsyncSession, connection: AsyncConnection) -> None:
            own = update(flows).where(flows.c.id == self._program.id)
            await connection.execute(own.values(checkpoint_requested=True))

        await self._context.transact(request, purpose="request a checkpoint")
        self._known.is_checkpoint_requested()
        self._hint_others()

    def _give_up_waiting(self) -> bool:
        """Have shards that are to leave stop waiting for others; return whether there are such.

        One that has done its step in part begins anew and leaves before it: its messages are
        recorded, and its next holder sends the same. What is done again is as good elsewhere.
        """
        waiting = [
            shard
            for key, shard in self.shards.items()
            if shard.doing is not None and self._is_to_leave(key, shard)
        ]
        for shard in waiting:
            if shard.at < shard.step:
                self._leave(shard)
            else:
                shard.drop()
        return bool(waiting)

    def _is_to_leave(self, key: Any, shard: OwnShard) -> bool:
        return shard.item.stop_requested or key not in self._replicas.mine

    async def _cut(self) -> bool:
        """Cut the next steps; return whether there are some."""
        cuts = await self._cutter.cut(self._known, self._progress())
        if isinstance(cuts, NoCut):
            return False
        if cuts is None:
            # Another replica was first.
            self._looks_at = 0.0
        else:
            for cut in cuts:
                self._telling.cut(cut)
            self._hint_others()
        return True

    def _hint_others(self) -> None:
        # What is hinted of is known here, and a hint has this replica look at all anew.
        self._context.hinter.hint_fetch(self._program.topic, but=self._wake)

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
        last = await self._open_all_but_last(closed)

        async def look(session: AsyncSession, connection: AsyncConnection) -> None:
            if last:
                await self._open(connection, last)
            opened = [shard for shard in self.shards.values() if shard.is_open]
            first = lowest(opened)
            await known.look(connection, first=0 if first is None else first)
            program = self._program
            if known.moment is not None and not known.moment.is_whole:
                await check_shards(connection, program.tables, program.name)
            if first is not None and (lost := known.lost_step(first)) is not None:
                raise PipelineError(
                    f"the flow {program.name!r} has no row of step {lost} in"
                    f" {program.tables.steps.name}, and needs it: restore all tables of streams"
                    " from a backup of one moment"
                )

        await self._context.transact(look, purpose="look at a flow", writes=bool(closed))
        for shard in closed:
            if shard.is_open:
                self._telling.opened(shard)
        self._looks_at = monotonic() + LOOK_EVERY_S
        if known.moment is not None:
            self._replicas.saw(known.moment.crowd)
        return known.facts

    async def _open_all_but_last(self, closed: Sequence[OwnShard]) -> Sequence[OwnShard]:
        """Open shards, some in each transaction; return those that are left for the last one."""
        while len(closed) > OPENED_AT_ONCE:
            some, closed = closed[:OPENED_AT_ONCE], closed[OPENED_AT_ONCE:]

            async def work(
                session: AsyncSession,
                connection: AsyncConnection,
                some: Sequence[OwnShard] = some,
            ) -> None:
                await self._open(connection, some)

            await self._context.transact(work, purpose="open shards")
        return closed

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
            shard.open(row, self.new_cache())
            if (text := await self._without_states(connection, shard, row)) is not None:
                self._telling.failed(shard, row.step, text, is_parked=True)
                shard.drop()
                shard.leave(Park(text))
                continue
            await open_timers(connection, self._program, shard)
        if self._program.has_exchange:
            await self._work.read_sent(connection, closed)

    async def _without_states(
        self, connection: AsyncConnection, shard: OwnShard, row: Any
    ) -> str | None:
        """Count the states of a shard; return what is wrong with them, None if nothing is."""
        program, known = self._program, 0
        table = program.tables.state
        found = await count_states(connection, table, program.id, buckets=shard.range)
        # A replica of an older version of rowlock does not count.
        if row.state_keys is not None and row.state_keys_at == row.version:
            known = row.state_keys
        shard.state_keys = max(known, found.keys)
        if found.keys >= min(known, STATES_COUNTED_MAX) and found.newest <= row.version:
            return None
        return (
            f"step {row.step}: {table.name} is of another moment than its shard: it has states of"
            f" {found.keys} keys up to step {found.newest}, and had those of {known} keys at step"
            f" {row.version}: restore all tables of streams from a backup of one moment; unpark()"
            " goes on with the states that are there"
        )

    def _actions(self, facts: FlowFacts) -> dict[OwnShard, NextAction]:
        """Return what each shard does next, after what is wished of it."""
        view = FlowView(
            facts.next_step,
            may_cut=facts.state == "running",
            shards_wanted=self._replicas.wanted,
        )
        actions = {}
        for key, shard in list(self.shards.items()):
            if shard.is_leaving or not shard.is_open or shard.is_computed:
                continue
            shard.state = steered(shard, facts, leaves=self._is_to_leave(key, shard))
            actions[shard] = next_action(shard.state, view, shard.view)
        return actions

    async def _end_steps(self, done: Sequence[Any]) -> None:
        """Tell those who wait for steps and results, and forget states that are too many."""
        for topic in topics_of(self._program, done):
            # Of the whole process: consumers and services that wait know no manager.
            if pipeline_hinter.reaches(topic):
                pipeline_hinter.hint_fetch(topic)
        most = self._program.settings.cached_keys_max // max(1, len(self.shards))
        for shard in self.shards.values():
            if not shard.is_computed:
                shard.cache.shrink(most)
