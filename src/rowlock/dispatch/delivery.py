"""One attempt at one row, from the offer to its end.

    orphan? pending again → past its deadline? failed → no worker accepts? later → accepted:
    running → events → completed | failed

Every write on the way is guarded by the lease's token and by the status; if the guard does not
match, the row was decided elsewhere, and the attempt is closed and writes nothing. The pipeline
writes the outcome of `Delivery.run` like any other. What must be seen before the attempt is over is
written by `StatusUpdates`: whatever the database does meanwhile, for as long as the lease is
trusted. Attempts of a replica share transactions: while one is under way, the next ones gather.
What an outage interrupts is written again; after a lost answer the token shows what is there.

Not here: who is asked (``placement.py``), and how an attempt's events come about (``engines/``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Generic

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import NOW_PLACEHOLDER, Apply, Outcome, PipelineItem, PipelineSettings, Retry
from rowlock.clock import exponential, monotonic
from rowlock.dispatch.attempt import LastProgress, Scratch, next_event, plain_event
from rowlock.dispatch.columns import (
    ACTIVE,
    CAPACITY,
    COMPLETED,
    FAILED,
    HEARTBEAT_LOST,
    INTERNAL,
    PENDING,
    RUNNING,
    WORKER_CHARS_MAX,
    error_of,
    failure_of,
    refuse_own_columns,
)
from rowlock.dispatch.engine import (
    AttemptEvent,
    Completed,
    Events,
    Failed,
    Handler,
    Heartbeat,
    Progress,
    StageDone,
    Task,
)
from rowlock.dispatch.placement import DispatchLog, Placement, Provisioner
from rowlock.dispatch.settings import DispatchSettings, Rest
from rowlock.errors import (
    LeaseLost,
    NoWorkersAvailable,
    OutcomeError,
    TransactionTimeout,
    WorkerGone,
    describe,
    shorten,
)
from rowlock.logs import get_logger
from rowlock.pipelines.outcomes import check_outcome
from rowlock.spi import (
    Batcher,
    ColumnValues,
    LeasedTable,
    ModelT,
    Patch,
    Retries,
    Values,
    column_values,
    in_transaction,
    is_of_the_schema,
    is_transient,
    is_unchanged,
    show,
    write_patches,
)
from rowlock.tasks import as_host_code, finish

logger = get_logger(__name__)

ATTEMPT_END_S_MAX = 240.0
"""How long a handler may take to end when its time limit is over, in seconds; then its row is
failed while it runs on.
"""
LOOK_EVERY_S = 10.0
"""An attempt that is silent but for its beats looks at its row so often at most, in seconds."""
STAGES_MAX = 1_000
"""Most stages that a row records."""


@dataclass(frozen=True, slots=True)
class DeliveryContext(Generic[ModelT]):
    leased: LeasedTable
    handler: Handler[ModelT]
    lease: PipelineSettings
    settings: DispatchSettings
    # How long a row rests after each error that is retried, by the name of its class
    retried: Mapping[str, Rest]
    placement: Placement
    status_updates: StatusUpdates[ModelT]
    hint: Callable[[], None]  # says that there is room
    provisioner: Provisioner | None  # None if the host has none
    scratch: Scratch
    log: DispatchLog


class Delivery(Generic[ModelT]):
    def __init__(self, context: DeliveryContext[ModelT], item: PipelineItem[ModelT]) -> None:
        self._context = context
        self._item = item
        self._row: Any = item.row
        self._has_ended = False
        self._looks_at = monotonic() + LOOK_EVERY_S

    async def run(self) -> Outcome:
        try:
            return await self._run()
        except LeaseLost:
            text = "The row was handed off: its status is no longer what this attempt left"
            logger.info(text, {"row_id": self._item.id})
            return Apply(unless_changed=["status"])
        except asyncio.CancelledError:
            # Of a lost lease there is nothing to write; after a shutdown another replica takes the
            # row at once.
            if not self._item.is_trusted():
                raise
            return self._apply({"status": PENDING}, after=0)
        except OutcomeError as error:
            return self._failed(INTERNAL, error.message)
        except Exception as error:
            logger.exception("An attempt failed from within", {"row_id": self._item.id})
            if isinstance(error, TransactionTimeout) or is_of_the_schema(error):
                # Of the database, and not of the row: it is begun again when that is over.
                return Retry(error=error_of(INTERNAL, describe(error).partition("\n")[0]))
            return self.failed_by(error)

    def failed_by(self, error: Exception) -> Outcome:
        """The outcome if `error` is the row's own, such as a refused result."""
        return self._failed(INTERNAL, describe(error))

    async def _run(self) -> Outcome:
        if self._row.status not in ACTIVE:
            # Decided between the claim and the reading.
            raise self._item.lease_lost()
        if self._row.status == RUNNING:
            await self._recover_orphan()
        if self._row.losses >= self._context.settings.max_losses:
            return self._failed(
                HEARTBEAT_LOST, f"{self._row.losses} attempts died with their worker or replica"
            )
        if self._waited() >= self._context.settings.dispatch_deadline:
            self._context.log.expired(self._item.id)
            waited_s = self._context.settings.dispatch_deadline.total_seconds()
            return self._failed(
                CAPACITY, f"no worker has done it within {waited_s:g} s after its submission"
            )
        async with AsyncExitStack() as stack:
            try:
                workdir = await stack.enter_async_context(self._context.scratch.folder())
                try:
                    worker, events = await self._context.placement.place(self._task(workdir))
                except NoWorkersAvailable as refused:
                    return self._overflow(refused)
            except Exception as error:
                # Of this replica, and not of the row: another one may do better.
                logger.exception("An attempt could not be begun here", {"row_id": self._item.id})
                return Retry(error=error_of(INTERNAL, describe(error)))
            stack.callback(self._context.hint)
            stack.callback(self._context.placement.capacity.freed)
            stack.push_async_callback(_end, events)
            limit = asyncio.timeout(self._context.settings.time_limit.total_seconds())
            try:
                async with limit:
                    outcome = await self._accepted(worker, events)
            except TimeoutError:
                if not limit.expired():
                    raise
                return await self._out_of_time(stack.pop_all())
            if self._has_ended:
                # Closed later: the next row of the worker would be running before this one has
                # ended. An attempt that still runs is closed here and now: no other may begin
                # beside it.
                self._item.after_settling = partial(self._close, stack.pop_all())
            return outcome

    async def _out_of_time(self, attempt: AsyncExitStack) -> Outcome:
        closing = asyncio.create_task(self._close(attempt), name="rowlock: close an attempt")
        # A row that is failed is not begun again; so one whose handler cannot be ended need not be
        # held for ever.
        await finish(_wait(closing, timeout_s=ATTEMPT_END_S_MAX), purpose="end an attempt")
        if not closing.done():
            self._item.after_settling = partial(_wait, closing)
        limit_s = self._context.settings.time_limit.total_seconds()
        return self._failed(INTERNAL, f"the time limit of {limit_s:g} s is over")

    async def _close(self, attempt: AsyncExitStack) -> None:
        try:
            await attempt.aclose()
        except Exception:
            logger.exception("An attempt failed while it was closed", {"row_id": self._item.id})

    async def _recover_orphan(self) -> None:
        """An orphan is pending again, due now, and keeps its stages: its holder is gone."""
        losses = self._row.losses + self._item.prev_lock_expired
        await self._record_status(
            {"status": PENDING, "losses": losses}, unless_changed={"status": RUNNING}
        )
        logger.warning("An orphan was recovered", {"row_id": self._item.id, "losses": losses})

    def _overflow(self, refused: NoWorkersAvailable) -> Outcome:
        settings = self._context.settings
        if self._context.provisioner is not None:
            self._context.provisioner.ask(self._row.dedup_key)
        rest = settings.retry_interval + random.random() * settings.jitter
        self._context.log.overflowed(self._item.id, refused, waited=self._waited(), rest=rest)
        return Retry(after=rest, error=error_of(CAPACITY, refused.message))

    async def _accepted(self, worker: str, events: Events) -> Outcome:
        try:
            return await self._follow(worker, events)
        except WorkerGone as gone:
            return await self._lost(gone.why or gone.message)

    async def _follow(self, worker: str, events: Events) -> Outcome:
        progress = LastProgress()
        is_running = False
        while True:
            try:
                event = await self._next_event(worker, events)
            except StopAsyncIteration:
                return self._failed(INTERNAL, "the handler ended without Completed or Failed")
            if not is_running:
                running = {
                    "status": RUNNING,
                    "started_at": NOW_PLACEHOLDER,
                    "worker": shorten(worker, chars_max=WORKER_CHARS_MAX),
                    "progress": None,
                }
                await self._record_status(running, unless_changed={"status": PENDING})
                is_running = True
            match event:
                case Heartbeat():
                    await self._look()
                case Progress(text):
                    progress.set(text)
                case StageDone(name, key):
                    await self._record(name, key)
                case Completed(values):
                    self._has_ended = True
                    return self._completed(values, progress.last)
                case Failed():
                    return await self._failed_by_handler(event)
            if (shown := progress.due()) is not None:
                await self._record_status({"progress": shown}, unless_changed={"status": RUNNING})

    async def _next_event(self, worker: str, events: Events) -> AttemptEvent:
        limit_s = self._context.settings.heartbeat_limit.total_seconds()
        try:
            return plain_event(await next_event(events, within_s=limit_s))
        except TimeoutError:
            raise WorkerGone(worker, f"nothing was heard of it for {limit_s:g} s") from None

    async def _look(self) -> None:
        """Look whether the row was decided elsewhere: a silent handler would not know."""
        if monotonic() >= self._looks_at:
            await self._context.status_updates.check(self._item, {"status": RUNNING})
            self._looks_at = monotonic() + LOOK_EVERY_S

    async def _record(self, name: str, key: object) -> None:
        stages = {**self._row.stages, name: key}
        if len(stages) > STAGES_MAX:
            raise OutcomeError(f"a row records at most {STAGES_MAX} stages", column="stages")
        await self._record_status({"stages": stages}, unless_changed={"status": RUNNING})

    def _completed(self, values: Mapping[Any, Any], progress: str | None) -> Outcome:
        try:
            refuse_own_columns(self._context.leased, values)
            done = self._ended({**values, "status": COMPLETED, "error": None, "progress": progress})
            check_outcome(self._context.leased, done)
        except OutcomeError as error:
            return self._failed(INTERNAL, error.message)
        return done

    def _failed(self, kind: str, text: str) -> Outcome:
        return self._ended({"status": FAILED, "error": error_of(kind, text)})

    async def _failed_by_handler(self, failed: Failed) -> Outcome:
        if (rest := self._rest_after(failed)) is not None:
            return await self._again(failed, rest)
        self._has_ended = True
        if failed.detail:
            kind = failed.text.partition(":")[0]
            extra = {"row_id": self._item.id, "error_type": kind, "detail": failed.detail}
            logger.warning("A handler failed\n%(detail)s", extra)
        return self._ended({"status": FAILED, "error": failure_of(failed.kind, failed.text)})

    def _rest_after(self, failed: Failed) -> timedelta | None:
        """How long the row rests before it is tried again; None if it is not."""
        rests, retried = list[Rest](), self._context.retried
        for names in failed.raised:
            nearest = next((name for name in names if name in retried), None)
            if nearest is None:
                return None
            rests.append(retried[nearest])
        backoff = self._rest(self._item.attempt)
        rest = max((one for one in rests if one is not None), default=backoff)
        in_time = self._waited() + rest < self._context.settings.dispatch_deadline
        return rest if rests and in_time else None

    async def _again(self, failed: Failed, rest: timedelta) -> Outcome:
        # Guarded as in `_lost`.
        await self._record_status({"status": PENDING}, unless_changed={"status": RUNNING})
        error = failure_of(failed.kind, failed.text)
        extra = {"row_id": self._item.id, "error": error}
        logger.warning("A handler failed with an error that is expected: %(error)s", extra)
        return Retry(after=rest, error=error)

    async def _lost(self, why: str) -> Outcome:
        losses = self._row.losses + 1
        if losses >= self._context.settings.max_losses:
            return self._failed(HEARTBEAT_LOST, f"{losses} attempts were lost; the last one: {why}")
        # Under the guard of the status, which a Retry does not have: the row may have been
        # decided elsewhere meanwhile.
        await self._record_status(
            {"status": PENDING, "losses": losses}, unless_changed={"status": self._row.status}
        )
        # Not by the attempts: a row that has waited for long was offered often, and failed never.
        return Retry(after=self._rest(losses), error=error_of(HEARTBEAT_LOST, why))

    def _rest(self, failures: int) -> timedelta:
        lease = self._context.lease
        first_s, most_s = lease.retry_delay.total_seconds(), lease.retry_delay_max.total_seconds()
        return timedelta(seconds=exponential(failures, first_s=first_s, most_s=most_s))

    def _ended(self, values: Mapping[Any, Any]) -> Apply:
        return self._apply({**values, "finished_at": NOW_PLACEHOLDER})

    def _apply(self, values: Values, **more: Any) -> Apply:
        return Apply(values, unless_changed=["status"], **more)

    async def _record_status(self, values: Values, *, unless_changed: Values) -> None:
        await self._context.status_updates.write(self._item, values, unless_changed=unless_changed)

    def _task(self, workdir: Path) -> Task[ModelT]:
        item = self._item
        return Task(
            id=item.id,
            attempt=item.attempt,
            nonce=str(item.lock_token),
            row=item.row,
            workdir=workdir,
            stages=dict(self._row.stages),
            handler=self._context.handler,
            heartbeat_s=self._context.settings.heartbeat.total_seconds(),
        )

    def _waited(self) -> timedelta:
        waited: timedelta = self._database_time() - self._row.submitted_at
        return waited

    def _database_time(self) -> datetime:
        """The time of the database, at least: counted on from the last answer of its clock."""
        lease, item = self._context.lease, self._item
        sent_at = item.trusted_until - (lease.lock_timeout - lease.lease_margin).total_seconds()
        return item.lock_expires_at - lease.lock_timeout + timedelta(seconds=monotonic() - sent_at)


async def _end(events: Events) -> None:
    async def close() -> None:
        try:
            await as_host_code(events.aclose)
        except Exception:
            # Of the engine, and not of the row.
            logger.exception("An attempt failed while it was closed")

    # However often it is cancelled meanwhile: as long as the attempt runs, no other may have its
    # row.
    await finish(close(), purpose="end an attempt")


async def _wait(task: asyncio.Task[None], *, timeout_s: float | None = None) -> None:
    await asyncio.wait({task}, timeout=timeout_s)


class StatusUpdates(Generic[ModelT]):
    # A transaction ends within `timeout`; outages are waited out for `retry_timeout` at most.

    def __init__(
        self, leased: LeasedTable, *, name: str, timeout: timedelta, retry_timeout: timedelta
    ) -> None:
        self._leased = leased
        self._timeout = timeout
        self._retry_timeout_s = retry_timeout.total_seconds()
        self._batcher: Batcher[Patch[ModelT], ColumnValues | None] = Batcher(
            self._transact, name=f"{name} updates statuses", timeout=timeout
        )

    async def write(
        self, item: PipelineItem[ModelT], values: Values, *, unless_changed: Values
    ) -> None:
        """Write `values` to the row of `item` under its token, and show them in ``item.row``.

        Raises:
            LeaseLost: the row was decided elsewhere.
            TransactionTimeout: the database did not take it, although the lease goes on.
        """
        column_values(self._leased, values)
        retries = Retries(lambda failed_at: failed_at + self._retry_timeout_s)
        while True:
            try:
                # Whole, also for who is cancelled: what was written must be known, or no later
                # write finds the row as it is.
                return await finish(
                    self._try(Patch(item, values, unless_changed), tries=retries.count),
                    purpose="write status",
                )
            except Exception as error:
                retries.failed()
                if not is_transient(error) or not item.is_trusted():
                    raise
                if retries.are_over:
                    raise TransactionTimeout(
                        purpose="write status", timeout_s=self._retry_timeout_s
                    ) from error
                extra = {"row_id": item.id, "tries": retries.count}
                logger.warning("A status update is tried again: %(row_id)s", extra, exc_info=error)
            await retries.rest()

    async def check(self, item: PipelineItem[ModelT], values: Values) -> None:
        """Raise `LeaseLost` unless the row is under its token with `values`; not in an outage."""

        async def work(session: AsyncSession, connection: AsyncConnection) -> bool:
            return await is_unchanged(connection, self._leased, item, values=values)

        try:
            unchanged = await in_transaction(
                item.session_factory,
                self._leased,
                work,
                purpose="look at a row",
                timeout=self._timeout,
                writes=False,
                autocommit=True,
            )
        except Exception as error:
            if not is_transient(error):
                raise
            extra = {"row_id": item.id}
            logger.info("A row could not be looked at: %(row_id)s", extra, exc_info=error)
        else:
            if not unchanged:
                raise item.lease_lost()

    async def _try(self, patch: Patch[ModelT], *, tries: int) -> None:
        written = await self._write(patch)
        if written is None and tries and "status" in patch.values:
            # An earlier try may have been committed, though its answer was lost: the token is still
            # this attempt's.
            written = await self._write(
                replace(patch, unless_changed={"status": patch.values["status"]})
            )
        if written is None:
            raise patch.item.lease_lost()
        show(self._leased, patch.item.row, written)

    async def _write(self, patch: Patch[ModelT]) -> ColumnValues | None:
        written = await self._batcher.submit(patch)
        if written is None and patch.item.is_trusted():
            [written] = await self._transact([patch], waits=True)
        return written

    async def _transact(
        self, patches: Sequence[Patch[ModelT]], *, waits: bool = False
    ) -> list[ColumnValues | None]:
        async def work(
            session: AsyncSession, connection: AsyncConnection
        ) -> list[ColumnValues | None]:
            if not waits:
                self._batcher.begun()
            return await write_patches(connection, self._leased, patches, waits=waits)

        factory, purpose = patches[0].item.session_factory, "write status updates"
        return await in_transaction(
            factory, self._leased, work, purpose=purpose, timeout=self._timeout
        )
