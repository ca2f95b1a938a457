"""The loop of one replica over the shards of a flow that it holds.

The one idea: all shards here take their steps together, round by round, so a step costs one
transaction that reads and one that writes, however many shards there are. What is done next is
decided by pure functions (``steering.py``, ``next_action.py``), and done in ``rounds.py``; here is
when: at once, after a rest, or when woken.

`hold` is what `process` of a lease waits for; the loop runs as long as anything is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.backoff import exponential
from rowlock.clock import rest, sleep
from rowlock.containment import as_ordinary, contained_task
from rowlock.database.faults import is_transient
from rowlock.hints.hinter import pipeline_hinter
from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.outcomes import Apply, Outcome
from rowlock.streams.computing.buckets import BucketRange
from rowlock.streams.program import FlowProgram
from rowlock.streams.shards.own_shard import OwnShard
from rowlock.streams.shards.replicas import Replicas
from rowlock.streams.shards.rounds import FlowRounds, Left

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
    """Runs the shards of one flow that are held here.

    Args:
        program: the flow.
        context: of the pipeline whose leases these are.
        replicas: which shards are this replica's.

    Attributes:
        context: of the pipeline whose leases these are.
        shards: that are held here, by the key of the row.
        wakes: how often it was woken.
    """

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

    def __repr__(self) -> str:
        return f"<FlowRunner of {self._program.name}, {len(self.shards)} shards>"

    def wake(self) -> None:
        """Look at once: there may be something to do."""
        self._look()
        self._hinted = self.wakes

    def _look(self) -> None:
        self.wakes += 1
        self._rounds.is_hinted()
        self._woken.set()

    @property
    def is_idle(self) -> bool:
        """Whether a look that began after it was woken last found nothing to do."""
        return self._found_nothing >= self.wakes

    def has_nothing_left(self) -> bool:
        """Return whether there was nothing to do at a look that began after this was asked the
        last time, and no hint has come since then; and look again, for the next time.
        """
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
        leaving = contained_task(self._leave_at_stop(), name="rowlock: leave a flow")
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
            if not self.context.stop.is_given:
                leaving.cancel()
            await asyncio.wait([leaving])

    async def disappear(self) -> None:
        """Have the other replicas know that this one leaves: what it held is theirs from now on,
        shard by shard, as it releases them. If the database does not hear of it, they see it soon.
        """

        async def work(session: AsyncSession, connection: AsyncConnection) -> None:
            await self._replicas.disappear(connection)

        try:
            await self.context.transact(work, purpose="say that a replica is gone")
        except Exception as error:
            logger.debug(
                "%s: the other replicas are not told that this one is gone",
                self._program.name,
                extra={"flow": self._program.name},
                exc_info=error,
            )
        else:
            self.context.hinter.hint_fetch(self._program.shards_topic)

    async def _leave_at_stop(self) -> None:
        await self.context.stop.wait()
        self.wake()
        await self.disappear()

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
        """Return how long to rest if nothing is heard: not long, where others are about to send or
        a timer is about to come.
        """
        most = self._program.settings.poll_interval.total_seconds()
        if not self._waits:
            first_s = most / RESTS_GROW
            rest_s = min(most, first_s * 2.0 ** min(self._rests - 1, RESTS_GROW))
            timer_s = self._rounds.timer_in_s()
            return rest_s if timer_s is None else min(rest_s, max(timer_s, TIMER_REST_S_MIN))
        return exponential(self._waits, first_s=min(MESSAGES_DELAY_S, most), most_s=most)

    async def _rest_after(self, error: Exception) -> None:
        self._failures_in_a_row += 1
        logger.warning(
            "%s: the steps of %s shards are tried again",
            self._program.name,
            len(self.shards),
            extra={"flow": self._program.name, "shards": len(self.shards)},
            exc_info=error,
        )
        self._rounds.look_anew()
        await sleep(
            exponential(self._failures_in_a_row, first_s=RETRY_DELAY_S, most_s=RETRY_DELAY_S_MAX)
        )
