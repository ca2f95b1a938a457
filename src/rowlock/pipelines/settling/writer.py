"""Writes outcomes: many workers' in one transaction, under each row's own guard.

Outcomes gather while a transaction is under way (``database/batcher.py``). A row that somebody else has locked, and
an outcome that brings its own statements or has related rows to free, get a transaction of their own, so that they hold up nobody.

An error that passes is waited out. If it hit the COMMIT, what became of it is unknown: the guarded write is tried
again, and if the guard no longer matches, the row is asked whether it carries the stamp of an earlier try. What the database
refused, on the other hand, is known not to have happened.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Generic

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.clock import monotonic
from rowlock.database.batcher import Batcher, Done
from rowlock.database.faults import is_after_an_error, is_transient, may_be_of_the_size
from rowlock.database.retries import Retries
from rowlock.errors import LeaseLost, OutcomeError, TransactionTimeout
from rowlock.leases.apply import (
    RowWrite,
    Written,
    apply,
    apply_locked,
    lock_for_apply,
    processed_at,
)
from rowlock.leases.patch import is_unchanged
from rowlock.leases.related.writes import release_related, write_related
from rowlock.logs import get_logger
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.host_code.call import contained
from rowlock.pipelines.outcomes import Apply, Reset, Retry
from rowlock.pipelines.settling.overruns import OVERRUNS_MAX, let_a_renewal_in, time_for
from rowlock.pipelines.settling.planner import Planner
from rowlock.pipelines.settling.submission import Submission
from rowlock.rows.assignments import PLAIN, is_like_no_other
from rowlock.rows.leased_table import ModelT

logger = get_logger(__name__)

ABORTS_MAX = 2
"""An outcome whose own transaction was ended so often, since the loop stood still in it, is written again; after that it failed."""

ENDED_BY_ALSO = "also ended the transaction that it is part of; it must neither commit nor roll back"
LOCK_TIMEOUTS_MAX = 10
"""So many times `lock_timeout` an outcome is tried whose own errors pass, while others of its pipeline are written."""


class Writer(Generic[ModelT]):
    """Settles outcomes in the database.

    Attributes:
        context: what the actors of the pipeline share.
    """

    def __init__(self, context: PipelineContext[ModelT]) -> None:
        self.context = context
        self._wrote_at = -math.inf
        self._batcher: Batcher[Submission[ModelT], Written | None] = Batcher(
            self._write_together,
            name=f"{context.name} writes outcomes",
            timeout=context.settings.database_timeout,
            statements_of=self._statements_of,
            is_grace_over=lambda: context.grace_over,
        )

    def submit_nowait(self, submission: Submission[ModelT], done: Done[Submission[ModelT], Written | None]) -> None:
        """Write an outcome together with others, and call `done` with what became of it, after the COMMIT was answered.

        It is called with None if that could not be done, or not in this way: then `write` is to be tried.
        """
        self._batcher.submit_nowait(submission, done)

    async def write(self, submission: Submission[ModelT]) -> Written:
        """Write an outcome under the guard and return what became of it, after the COMMIT was answered.

        A transient error is waited out for `lock_timeout` at most, counted while no outcome of this pipeline gets through; while
        others do, for `LOCK_TIMEOUTS_MAX` times as long. One that is itself too slow for its transaction is tried `OVERRUNS_MAX`
        times.

        Raises:
            Exception: the database refused the values, or did not come back in time.
        """
        item, aborts, overruns = submission.item, 0, 0
        retries = Retries(self._gives_up_at)
        while True:
            if submission.kept_from_batches and not submission.stamps:
                await let_a_renewal_in(item, self.context.settings)
            if not item.is_trusted() and not submission.stamps:
                return Written.STALE
            try:
                return await self._try(submission)
            except Exception as error:
                retries.failed()
                aborts += isinstance(error, TransactionTimeout) and error.was_aborted
                if submission.is_overrun(error):
                    overruns, submission.kept_from_batches = overruns + 1, True
                is_late = retries.are_over or aborts > ABORTS_MAX or overruns >= OVERRUNS_MAX
                if not is_transient(error) or is_late or self.context.grace_over:
                    return await self._learn(submission, error)
                logger.warning(
                    "%s: writing the outcome of row %s is tried again",
                    self.context.name,
                    item.id,
                    extra={"pipeline": self.context.name, "row_id": item.id, "tries": retries.count},
                    exc_info=error,
                )
            await retries.rest()

    async def _learn(self, submission: Submission[ModelT], error: Exception) -> Written:
        """Return what became of an outcome that is tried no more.

        Raises:
            Exception: `error`, since it was not written.
        """
        if not submission.stamps:
            raise error

        async def work(session: AsyncSession, connection: AsyncConnection) -> Written:
            return await self._earlier_try(connection, submission, waits=True)

        try:
            written = await self.context.transact(work, purpose="see what became of an outcome")
        except Exception:
            logger.warning(
                "%s: it could not be seen what became of the outcome of row %s",
                self.context.name,
                submission.item.id,
                extra={"pipeline": self.context.name, "row_id": submission.item.id},
                exc_info=error,
            )
            return Written.UNKNOWN
        if written is Written.STALE:
            submission.stamps = frozenset()
            raise error
        return written

    def _gives_up_at(self, failed_at: float) -> float:
        # What others' transactions achieve shows that the database is there, and that this result has yet to get its turn.
        wait_s = self.context.settings.lock_timeout.total_seconds()
        return min(max(failed_at, self._wrote_at) + wait_s, failed_at + LOCK_TIMEOUTS_MAX * wait_s)

    async def _try(self, submission: Submission[ModelT]) -> Written:
        submission.row_is_locked = False
        if not submission.needs_own_transaction and (written := await self._batcher.submit(submission)) is not None:
            return written
        return await self._write_in_own_transaction(submission)

    async def _write_together(self, submissions: Sequence[Submission[ModelT]]) -> list[Written | None]:
        async def work(session: AsyncSession, connection: AsyncConnection) -> list[Written | None]:
            self._batcher.begun()
            leased = self.context.leased
            # Asked here again, since the outcome may have waited for its turn; and before the rows are locked: a token that is
            # found then proves by itself that nobody has taken the row, however long the answer took.
            at = monotonic()
            trusted = [i for i, submission in enumerate(submissions) if at < submission.item.trusted_until]
            items = [submission.item for submission in submissions]
            now, stamps = await lock_for_apply(connection, leased, items)
            written: list[Written | None] = [None] * len(submissions)
            missing = [i for i, item in enumerate(items) if item.lock_token not in stamps]
            for i, earlier in (await self._earlier_tries(connection, [(i, submissions[i]) for i in missing])).items():
                # PostgreSQL may still be carrying out the COMMIT of what does not look committed: that is waited for alone.
                written[i] = None if earlier is Written.STALE else earlier
            if now is None:
                return written
            ours = [i for i in trusted if items[i].lock_token in stamps]
            planner = self._planner(now)
            writes, at_once = [], frozenset({now})
            for i in ours:
                stamp = stamps[items[i].lock_token]
                of_this = planner if stamp == now else self._planner(now, stamp)
                writes.append((items[i], of_this.plan(items[i], submissions[i].outcome)))
            for i, result in zip(ours, await apply_locked(connection, leased, writes), strict=True):
                written[i] = result
                stamp = stamps[items[i].lock_token]
                submissions[i].stamp(result, at_once if stamp == now else frozenset({stamp}))
            return written

        try:
            written = await self.context.transact(work, purpose="write outcomes")
        except Exception as error:
            if len(submissions) == 1:
                submissions[0].kept_from_batches = may_be_of_the_size(error)
            raise
        self._wrote_at = monotonic()
        return written

    async def _write_in_own_transaction(self, submission: Submission[ModelT]) -> Written:
        async def work(session: AsyncSession, connection: AsyncConnection) -> Written:
            leased, item, outcome = self.context.leased, submission.item, submission.outcome
            # Asked before the row is locked, as for many.
            asked = [item] if item.is_trusted() else []
            now, stamps = await lock_for_apply(connection, leased, asked, waits=True)
            submission.row_is_locked = now is not None
            written, write = Written.STALE, RowWrite({})
            if now is not None:
                write = self._planner(now, stamps[item.lock_token]).plan(item, outcome)
                written = await apply(connection, leased, item, write=write)
            # Before the related rows, as everywhere: two that lock them in different orders would wait for each other.
            earlier = await self._earlier_try(connection, submission, waits=True) if written is Written.STALE else None
            if written.is_made and isinstance(outcome, Apply) and item.held:
                await write_related(connection, item, write.related)
            else:
                await release_related(connection, item)
            if earlier is not None:
                return earlier
            assert now is not None
            stamp = stamps[item.lock_token]
            if written.is_made and submission.also is not None:
                await self._within(session, connection, submission, now=now, stamp=stamp)
            submission.stamp(written, frozenset({stamp}))
            return written

        time = time_for(submission.item, self.context.settings)
        try:
            written = await self.context.transact(work, purpose="write an outcome", timeout=time)
            self._wrote_at = monotonic()
            return written
        except OutcomeError as error:
            if submission.ended_with is None:
                raise
            return await self._see_what_also_left(submission, error)
        except LeaseLost:
            # Of a related row: what was computed while it was held may no longer be true.
            submission.stamps, submission.once_dropped = frozenset(), Written.RELATED_LOST
            written = await self._write_in_own_transaction(Submission(submission.item, Reset()))
            return Written.RELATED_LOST if written.is_made else written

    async def _earlier_try(
        self, connection: AsyncConnection, submission: Submission[ModelT], *, waits: bool = False
    ) -> Written:
        """Say whether an earlier try, whose end is unknown, was committed after all; stale if there was none."""
        tries = await self._earlier_tries(connection, [(0, submission)], waits=waits)
        return tries.get(0, submission.once_dropped)

    async def _earlier_tries(
        self,
        connection: AsyncConnection,
        submissions: Sequence[tuple[int, Submission[ModelT]]],
        *,
        waits: bool = False,
    ) -> dict[int, Written]:
        """Say by their numbers what became of those of which the end of an earlier try is unknown."""
        alike: dict[frozenset[datetime], list[tuple[int, Submission[ModelT]]]] = {}
        for number, submission in submissions:
            if submission.stamps:
                alike.setdefault(submission.stamps, []).append((number, submission))
        ends: dict[int, Written] = {}
        for stamps, members in alike.items():
            items = [submission.item for _, submission in members]
            there = await processed_at(connection, self.context.leased, items, stamps=stamps, waits=waits)
            for number, submission in members:
                end = there[submission.item.id]
                ends[number] = submission.once_written if end is Written.APPLIED else end
        return ends

    async def _within(
        self,
        session: AsyncSession,
        connection: AsyncConnection,
        submission: Submission[ModelT],
        *,
        now: datetime,
        stamp: datetime,
    ) -> None:
        """Run `also`, and see that the transaction is still one that can be committed, with the outcome in it.

        PostgreSQL answers a COMMIT after an error that somebody has swallowed as if all were well, and rolls back.
        """
        transaction, failure, is_rolled_back = session.sync_session.get_transaction(), None, False
        assert submission.also is not None
        try:
            await contained(submission.also, session, now)
            if session.sync_session.get_transaction() is transaction:
                await contained(session.flush)
                is_rolled_back = await is_unchanged(connection, self.context.leased, submission.item, values={})
        except Exception as error:  # noqa: BLE001 - raised again below
            failure = error
        if session.sync_session.get_transaction() is not transaction:
            submission.ended_with = stamp
            raise OutcomeError(ENDED_BY_ALSO) from failure
        if failure is not None and is_after_an_error(failure):
            raise OutcomeError(
                "also swallowed a database error, so nothing of its transaction can be committed; let the error out, or run "
                "what may fail within session.begin_nested()"
            ) from failure
        if failure is not None:
            raise failure
        if is_rolled_back:
            raise OutcomeError(ENDED_BY_ALSO)

    async def _see_what_also_left(self, submission: Submission[ModelT], error: OutcomeError) -> Written:
        async def work(session: AsyncSession, connection: AsyncConnection) -> Written:
            return await self._earlier_try(connection, submission)

        before, stamp, submission.ended_with = submission.stamps, submission.ended_with, None
        submission.stamps = before | {stamp} if stamp is not None else before
        failure = error.__cause__ if isinstance(error.__cause__, Exception) else None
        left = await self.context.transact(work, purpose="see what also has left", writes=False)
        if left is Written.STALE:
            submission.stamps = before
            raise failure or error
        item = submission.item
        logger.error(
            "%s: also committed by itself, and the outcome of row %s with it; it must neither commit nor roll back",
            self.context.name,
            item.id,
            extra={"pipeline": self.context.name, "row_id": item.id},
            exc_info=failure,
        )
        return left

    def _statements_of(self, submission: Submission[ModelT]) -> int:
        """Return how many statements an outcome may need for itself: under a guard of its own, or with SQL like no other."""
        outcome = submission.outcome
        if self.context.intent or (isinstance(outcome, Apply) and outcome.unless_changed):
            return 1
        values = outcome.values.values() if isinstance(outcome, Apply | Retry) else ()
        if PLAIN.issuperset(map(type, values)):
            return 0
        try:
            return int(any(is_like_no_other(value) for value in values))
        except BaseException:  # noqa: BLE001 - of the host's values any attribute may raise anything; who writes them hears of it
            return 1

    def _planner(self, now: datetime, stamp: datetime | None = None) -> Planner:
        context = self.context
        return Planner(now, leased=context.leased, settings=context.settings, intent=context.intent, stamp=stamp)
