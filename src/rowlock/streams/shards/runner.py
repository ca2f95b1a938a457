"""The loop of one replica over the shards of a flow that it holds, and its rounds: look, release,
divide, do steps, cut.

The one idea: all shards here take their steps together, round by round, so a step costs one
transaction that reads and one that writes, however many shards there are. Pure functions decide
what is done next (``steps.py``).

Nothing waits within a round. Steps whose messages are not all there, or whose handler hangs, stay
under way until a later one; meanwhile further shards are opened, and those that the others wait for
do their part. The next round comes at once, after a rest, or when woken.

`hold` is what `process` of a lease waits for; the loop runs as long as anything is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from typing import Any

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock import Apply, Outcome, Park, PipelineItem, pipeline_hinter
from rowlock.clock import exponential, monotonic, rest, sleep
from rowlock.errors import PipelineError
from rowlock.logs import get_logger
from rowlock.spi import PipelineContext, Wake, is_transient
from rowlock.streams.computing.hashing import BucketRange
from rowlock.streams.cut_plan import NoCut
from rowlock.streams.cutter import Cutter, FlowFacts, KnownFlow
from rowlock.streams.flow_view import check_shards
from rowlock.streams.key_states import STATES_COUNTED_MAX, ShardCache, count_states
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.dividing import Dividing
from rowlock.streams.shards.replicas import OwnShard, Replicas
from rowlock.streams.shards.slow_calls import SlowCalls
from rowlock.streams.shards.step_work import StepWork, open_timers
from rowlock.streams.shards.steps import NextAction, ShardDid, lowest, new_steps, next_action, steer
from rowlock.streams.shards.writing import StepWriter, Telling, topics_of
from rowlock.streams.tables import StreamDatabase
from rowlock.tasks import as_ordinary

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
    def __init__(
        self, program: FlowProgram, context: PipelineContext[Any], replicas: Replicas, *, wake: Wake
    ) -> None:
        self.shards: dict[Any, OwnShard] = {}
        self._wake = wake
        self._program = program
        self._context = context
        self._replicas = replicas
        self._database = StreamDatabase(context.transact)
        self._known = KnownFlow(program)
        self._cutter = Cutter(program, context.transact)
        calls = SlowCalls(program, context, replica=replicas.id)
        self._work = StepWork(program, context, calls=calls, wake=wake)
        self._telling = Telling(context.name, program.name)
        self._writer = StepWriter(program, context, self._telling, replica=replicas.id)
        self._dividing = Dividing(program, context, self._writer, replicas=replicas)
        self._looks_at = 0.0

    def new_cache(self) -> ShardCache:
        return ShardCache(stage.name for stage in self._program.stages)

    def look_anew(self) -> None:
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
        # After an error, what is in memory may be newer than what was written, or older.
        facts = await self._look()
        if facts is None:
            return Left.SOMETHING
        for shard in self.shards.values():
            if shard.is_open and not shard.item.is_trusted():
                shard.drop()
        actions = self._actions(facts)
        for shard, action in actions.items():
            if action is NextAction.LEAVE:
                self._leave(shard)
        if await self._go_on(actions, is_running=facts.state == "running"):
            return Left.MORE
        if any(shard.doing is not None for shard in actions):
            return Left.MESSAGES
        are_all_here = len(actions) == len(self.shards) == len(self._context.in_progress)
        is_nothing = {NextAction.CUT, NextAction.WAIT}.issuperset(actions.values())
        return Left.NOTHING if are_all_here and is_nothing else Left.SOMETHING

    async def _go_on(self, actions: Mapping[OwnShard, NextAction], *, is_running: bool) -> bool:
        """Divide, do steps and cut; return whether there was something to do."""
        # Others may wait in a step for a shard that is to be divided before it.
        is_first = self._program.has_exchange

        async def divide() -> bool:
            return await self._dividing.write_and_divide(actions, may_join=is_running)

        return (
            (is_first and await divide())
            or await self._do_steps(actions)
            or (not is_first and await divide())
            or self._give_up_waiting()
            or (NextAction.CUT in actions.values() and await self._cut())
        )

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
        """Request a checkpoint if there are too many unwritten states here."""
        first = lowest(self.shards.values())
        dirty = sum(shard.cache.dirty for shard in self.shards.values() if shard.is_open)
        is_much = dirty >= self._program.settings.dirty_keys_max
        if first is None or not is_much or self._known.has_checkpoint(first=first):
            return
        flows = self._program.tables.flows
        own = update(flows).where(flows.c.id == self._program.id)
        request = own.values(checkpoint_requested=True)
        await self._database.write("request a checkpoint", lambda one: one.execute(request))
        self._known.is_checkpoint_requested()
        self._hint_others()

    def _give_up_waiting(self) -> bool:
        """Have shards that are to leave stop waiting for others; return whether there are such."""
        # One that has done its step in part begins anew and leaves before it: its messages are
        # recorded, and its next holder sends the same. What is done again is as good elsewhere.
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
        """Read the rows of shards that are not open, and the flow's row and new cuts if due."""
        closed = [
            shard for shard in self.shards.values() if not shard.is_open and not shard.is_leaving
        ]
        for begin in range(0, len(closed), OPENED_AT_ONCE):
            some = closed[begin : begin + OPENED_AT_ONCE]
            await self._database.write("open shards", partial(self._open, closed=some))
        known = self._known
        if closed or known.facts is None or monotonic() >= self._looks_at:
            await self._database.read("look at a flow", self._see)
            self._looks_at = monotonic() + LOOK_EVERY_S
            if known.moment is not None:
                self._replicas.saw(known.moment.crowd)
        for shard in closed:
            if shard.is_open:
                self._telling.opened(shard)
        return known.facts

    async def _see(self, connection: AsyncConnection) -> None:
        program, known = self._program, self._known
        first = lowest(self.shards.values())
        await known.look(connection, first=first or 0)
        if known.moment is not None and not known.moment.is_whole:
            await check_shards(connection, program.tables, program.name)
        if first is not None and (lost := known.lost_step(first)) is not None:
            raise PipelineError(
                f"the flow {program.name!r} has no row of step {lost} in"
                f" {program.tables.steps.name}, and needs it: restore all tables of streams"
                " from a backup of one moment"
            )

    async def _open(self, connection: AsyncConnection, closed: Sequence[OwnShard]) -> None:
        """Read the rows of shards that are held still, and write there who holds them."""
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
            await self._work.exchange.read_sent(connection, closed)

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
        """Return what each shard does next, after what is requested of it."""
        actions = {}
        for key, shard in list(self.shards.items()):
            if shard.is_leaving or not shard.is_open or shard.is_computed:
                continue
            steer(shard, facts, leaves=self._is_to_leave(key, shard))
            actions[shard] = next_action(shard, facts, wanted=self._replicas.wanted)
        return actions

    async def _end_steps(self, done: Sequence[Any]) -> None:
        """Hint at steps and results, and forget states that are too many."""
        for topic in topics_of(self._program, done):
            # Of the whole process: consumers and services that wait know no manager.
            if pipeline_hinter.reaches(topic):
                pipeline_hinter.hint_fetch(topic)
        most = self._program.settings.cached_keys_max // max(1, len(self.shards))
        for shard in self.shards.values():
            if not shard.is_computed:
                shard.cache.shrink(most)


logger = get_logger(__name__)

MESSAGES_DELAY_S = 0.005
"""First rest before it is looked again for messages that are not all there, in seconds."""
RESTS_GROW = 4
"""The first rest behind something is this part of `poll_interval`; they double up to that."""
TIMER_REST_S_MIN = 0.01
"""Least rest before a timer, in seconds."""
RETRY_DELAY_S = 0.05
RETRY_DELAY_S_MAX = 1.0
"""First and longest rest after an error of the database that passes, in seconds."""


class FlowRunner:
    def __init__(
        self, program: FlowProgram, context: PipelineContext[Any], replicas: Replicas
    ) -> None:
        self.context = context
        self._program = program
        self._replicas = replicas
        self._rounds = FlowRounds(program, context, replicas, wake=self.wake_from_anywhere)
        self.shards = self._rounds.shards
        self._woken = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_running = False
        self.wakes = self._hinted = 0
        self._found_nothing = self._waits = self._rests = self._failures_in_a_row = 0
        self._asked: int | None = None

    def wake(self) -> None:
        """Look at once: there may be something to do."""
        self._look()
        self._hinted = self.wakes

    def _look(self) -> None:
        self.wakes += 1
        self._rounds.is_hinted()
        self._woken.set()

    def has_nothing_left(self) -> bool:
        """Whether a whole look since the last call found nothing, without a hint; look again."""
        asked = self._asked
        self._look()
        self._asked = self.wakes
        if asked is None or self._hinted > asked:
            # What this replica found nothing of may have come behind its look.
            return False
        are_on_their_way = len(self.context.queue) + len(self.context.in_progress)
        return not (self.shards or are_on_their_way) or self._found_nothing >= asked

    async def hold(self, item: PipelineItem[Any]) -> Outcome:
        """Do the steps of a shard until it is to be released; return the outcome of its lease."""
        row = item.row
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        shard = OwnShard(item, BucketRange(row.lo, row.hi), outcome, self._rounds.new_cache())
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

    async def _run(self) -> None:
        leaving = asyncio.create_task(self._leave_at_stop(), name="rowlock: leave a flow")
        try:
            with self._listening():
                while self.shards:
                    await self._round()
        except BaseException as error:
            # A cancellation, too: nothing else would end what waits in `hold`.
            for shard in self.shards.values():
                shard.fail(as_ordinary(error))
            raise
        finally:
            self._is_running = False
            if not self.context.stop.is_set():
                leaving.cancel()
            await asyncio.wait([leaving])

    async def disappear(self) -> None:
        """Report that this replica leaves: its shards are others' as it releases them."""
        # If the database does not hear of it, they see it soon.
        try:
            database = StreamDatabase(self.context.transact)
            await database.write("say that a replica is gone", self._replicas.disappear)
        except Exception as error:
            text = "%(flow)s: the other replicas are not told that this one is gone"
            logger.debug(text, {"flow": self._program.name}, exc_info=error)
        else:
            self.context.hinter.hint_fetch(self._program.shards_topic)

    async def _leave_at_stop(self) -> None:
        await self.context.stop.wait()
        self.wake()
        await self.disappear()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Be woken by hints for new rows, steps and requests."""
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
        with suppress(RuntimeError):  # a closed loop has no waiter to wake
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self.wake)

    async def _round(self) -> None:
        wakes = self.wakes
        try:
            left = await self._rounds.make()
        except Exception as error:
            # What is in memory may be newer than what was written, or older.
            for shard in self.shards.values():
                shard.drop()
            if not is_transient(error):
                raise
            await self._rest_after(error)
            return
        self._failures_in_a_row = 0
        self._waits = self._waits + 1 if left is Left.MESSAGES else 0
        if left is Left.NOTHING:
            self._found_nothing = wakes
        if left is Left.MORE:
            self._rests = 0
        elif self.wakes == wakes:
            self._rests += 1
            await rest(self._woken, self._rest_s())
            self._rounds.look_anew()

    def _rest_s(self) -> float:
        """Return the rest; short where messages or a timer are about to come."""
        most = self._program.settings.poll_interval.total_seconds()
        if not self._waits:
            first_s = most / RESTS_GROW
            rest_s = min(most, first_s * 2.0 ** min(self._rests - 1, RESTS_GROW))
            timer_s = self._rounds.timer_in_s()
            return rest_s if timer_s is None else min(rest_s, max(timer_s, TIMER_REST_S_MIN))
        return exponential(self._waits, first_s=min(MESSAGES_DELAY_S, most), most_s=most)

    async def _rest_after(self, error: Exception) -> None:
        self._failures_in_a_row += 1
        text = "%(flow)s: the steps of %(shards)s shards are tried again"
        extra = {"flow": self._program.name, "shards": len(self.shards)}
        logger.warning(text, extra, exc_info=error)
        self._rounds.look_anew()
        await sleep(
            exponential(self._failures_in_a_row, first_s=RETRY_DELAY_S, most_s=RETRY_DELAY_S_MAX)
        )
