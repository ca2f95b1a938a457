"""Has outcomes written: together with others where that can be, else in a transaction of their own,
again after errors that pass.

Outcomes gather while a transaction is under way (``database/batcher.py``). A row that somebody else
has locked, and an outcome that brings its own statements or has related rows to free, get a
transaction of their own, so that they hold up nobody.

An error that passes is waited out. If it hit the COMMIT, what became of it is unknown: the guarded
write is tried again, and if the guard no longer matches, the row is asked whether it carries the
stamp of an earlier try. What the database refused, on the other hand, is known not to have
happened.

Not here: the transactions (``pipelines/settling/transactions.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic

from rowlock import events
from rowlock.clock import monotonic, sleep
from rowlock.database.batcher import Batcher, Done
from rowlock.database.faults import is_transient, may_be_of_the_size
from rowlock.database.retries import Retries
from rowlock.errors import TransactionTimeout
from rowlock.leases.apply import MADE, Written
from rowlock.leases.item import PipelineItem
from rowlock.logs import get_logger
from rowlock.pipelines.context import PipelineContext
from rowlock.pipelines.outcomes import Apply, Delete, Outcome, Retry
from rowlock.pipelines.settling.rounds import Rounds
from rowlock.pipelines.settling.transactions import (
    OutcomeTransactions,
    PendingOutcome,
    renewed_within_s,
)
from rowlock.redaction import name_column
from rowlock.rows.assignments import PLAIN, is_like_no_other
from rowlock.rows.leased_table import ModelT, is_referenced

logger = get_logger(__name__)

ABORTS_MAX = 2
"""An outcome whose own transaction was ended so often, since the loop stood still in it, is
written again; after that it failed.
"""

OVERRUNS_MAX = 2
"""An outcome that was so often out of time in its own transaction, with its row locked, failed:
it would need too long again.
"""

LOCK_TIMEOUTS_MAX = 10
"""So many times `lock_timeout` an outcome is tried whose own errors pass, while others of its
pipeline are written.
"""


class Writer(Generic[ModelT]):
    """Settles outcomes in the database.

    Attributes:
        context: what the actors of the pipeline share.
    """

    def __init__(self, context: PipelineContext[ModelT], rounds: Rounds) -> None:
        self.context = context
        self._transactions = OutcomeTransactions(context, rounds)
        # What refers to the row may be locked by somebody, and compared columns are compared alone.
        self._deletes_alone = bool(context.intent) or is_referenced(context.leased)
        self._wrote_at = -math.inf
        self._batcher: Batcher[PendingOutcome[ModelT], Written | None] = Batcher(
            self._write_together,
            name=f"{context.name} writes outcomes",
            timeout=context.settings.database_timeout,
            statements_of=self._statements_of,
            is_grace_over=lambda: context.grace_over,
        )

    def submit_nowait(
        self, pending: PendingOutcome[ModelT], done: Done[PendingOutcome[ModelT], Written | None]
    ) -> bool:
        """Write an outcome together with others, and call `done` with what became of it, after the
        COMMIT was answered.

        It is called with None if that could not be done, or not in this way: then `write` is to be
        tried.

        Returns:
            False if that is to be tried at once, since the outcome cannot be written with others;
            `done` is not called then.
        """
        if self._goes_alone(pending) or not self._is_worth_a_try(pending):
            return False
        self._batcher.submit_nowait(pending, done)
        return True

    async def wait_until_idle(self) -> None:
        """Wait until no batch is under way."""
        await self._batcher.wait_until_idle()

    async def write(self, pending: PendingOutcome[ModelT]) -> Written:
        """Write an outcome under the guard and return what became of it, after the COMMIT was
        answered.

        A transient error is waited out for `lock_timeout` at most, counted while no outcome of this
        pipeline gets through; while others do, for `LOCK_TIMEOUTS_MAX` times as long. One that is
        itself too slow for its transaction is tried `OVERRUNS_MAX` times.

        Raises:
            Exception: the database refused the values, or did not come back in time.
        """
        item, aborts, overruns = pending.item, 0, 0
        retries = Retries(self._gives_up_at)
        while True:
            if pending.kept_from_batches and not pending.stamps:
                await self._let_a_renewal_in(item)
            if not self._is_worth_a_try(pending):
                return Written.STALE
            try:
                return await self._try(pending)
            except Exception as error:
                retries.failed()
                aborts += isinstance(error, TransactionTimeout) and error.was_aborted
                if pending.is_overrun(error):
                    overruns, pending.kept_from_batches = overruns + 1, True
                is_late = retries.are_over or aborts > ABORTS_MAX or overruns >= OVERRUNS_MAX
                if not is_transient(error) or is_late or self.context.grace_over:
                    return await self._learn(pending, error)
                logger.warning(
                    "%s: writing the outcome of row %s is tried again",
                    self.context.name,
                    item.id,
                    extra={
                        "pipeline": self.context.name,
                        "row_id": item.id,
                        "tries": retries.count,
                    },
                    exc_info=error,
                )
            await retries.rest()

    async def name_refused(
        self, item: PipelineItem[ModelT], outcome: Outcome, error: Exception
    ) -> None:
        """Have the texts of `error` name the column whose value was refused, if that is found."""
        try:
            name_column(error, await self._transactions.find_refused(item, outcome, error))
        # The database is away, or host objects raise: the error says what it says.
        except Exception as raised:
            logger.debug("%s: no column was found for an error", self.context.name, exc_info=raised)

    def _goes_alone(self, pending: PendingOutcome[ModelT]) -> bool:
        outcome = pending.outcome
        if type(outcome) is Apply and outcome.also is None:  # nearly every one
            return bool(pending.item.held) or pending.kept_from_batches
        if pending.needs_own_transaction:
            return True
        return isinstance(outcome, Delete) and (self._deletes_alone or bool(outcome.unless_changed))

    async def _let_a_renewal_in(self, item: PipelineItem[ModelT]) -> None:
        # Before the row is locked for long again, if trust does not last until that is over.
        rest_s = renewed_within_s(self.context.settings)
        if (
            item.remaining.total_seconds()
            < self.context.settings.database_timeout.total_seconds() + rest_s
        ):
            await sleep(rest_s)

    @staticmethod
    def _is_worth_a_try(pending: PendingOutcome[ModelT]) -> bool:
        # After a try whose end is unknown the row has to be asked, whatever became of the lease.
        return bool(pending.stamps) or pending.item.is_trusted()

    async def _learn(self, pending: PendingOutcome[ModelT], error: Exception) -> Written:
        """Return what became of an outcome that is tried no more.

        Raises:
            Exception: `error`, since it was not written.
        """
        if not pending.stamps:
            raise error

        try:
            written = await self._transactions.find_earlier(
                pending, purpose="see what became of an outcome", waits=True
            )
        except Exception:
            logger.warning(
                "%s: it could not be seen what became of the outcome of row %s",
                self.context.name,
                pending.item.id,
                extra={"pipeline": self.context.name, "row_id": pending.item.id},
                exc_info=error,
            )
            return Written.UNKNOWN
        if written is Written.STALE:
            pending.stamps = frozenset()
            raise error
        return written

    def _gives_up_at(self, failed_at: float) -> float:
        # What others' transactions achieve shows that the database is there, and that this result
        # has yet to get its turn.
        wait_s = self.context.settings.lock_timeout.total_seconds()
        return min(max(failed_at, self._wrote_at) + wait_s, failed_at + LOCK_TIMEOUTS_MAX * wait_s)

    async def _try(self, pending: PendingOutcome[ModelT]) -> Written:
        pending.row_is_locked = False
        if (
            not self._goes_alone(pending)
            and (written := await self._batcher.submit(pending)) is not None
        ):
            return written
        began_at = monotonic()
        written = await self._transactions.write_alone(pending)
        self._record_write(began_at, [pending], [written])
        return written

    def _record_write(
        self,
        began_at: float,
        batch: Sequence[PendingOutcome[ModelT]],
        written: Sequence[Written | None],
    ) -> None:
        context, self._wrote_at = self.context, monotonic()
        seconds, count = self._wrote_at - began_at, sum(map(written.count, MADE))
        context.histograms.write.add(seconds)
        context.histograms.write_rows.add(count)
        if events.has_listeners(events.OutcomesWritten):
            tokens = tuple(
                [
                    pending.item.lock_token
                    for pending, one in zip(batch, written, strict=True)
                    if one in MADE
                ]
            )
            events.emit(events.OutcomesWritten(context.name, count, seconds, tokens))

    async def _write_together(
        self, batch: Sequence[PendingOutcome[ModelT]]
    ) -> list[Written | None]:
        began_at = monotonic()
        try:
            written = await self._transactions.write_together(batch, begun=self._batcher.begun)
        except Exception as error:
            if len(batch) == 1:
                batch[0].kept_from_batches = may_be_of_the_size(error)
            raise
        self._record_write(began_at, batch, written)
        return written

    def _statements_of(self, pending: PendingOutcome[ModelT]) -> int:
        """Return how many statements an outcome may need for itself: under a guard of its own,
        or with SQL like no other.
        """
        outcome = pending.outcome
        if self.context.intent or (isinstance(outcome, Apply) and outcome.unless_changed):
            return 1
        values = outcome.values.values() if isinstance(outcome, Apply | Retry) else ()
        if PLAIN.issuperset(map(type, values)):
            return 0
        try:
            return int(any(is_like_no_other(value) for value in values))
        # Of the host's values any attribute may raise anything; who writes them hears of
        # it.
        except BaseException:  # noqa: BLE001
            return 1
