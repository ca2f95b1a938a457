"""The dispatch pipeline: takes submissions, and offers each row to the workers of an engine.

A `Pipeline` like any other, whose `ready` is "pending or running" and whose `process` is one
attempt: so whatever keeps leases, recovers the rows of the dead, and ends in order, is the same
code. Running rows are ready, too: a live lease keeps them from everybody, and one that has expired
is an orphan to be recovered.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Unpack

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import Fetcher, Outcome, Pipeline, PipelineItem, PipelineStatistics
from rowlock.dispatch.admission import Admission
from rowlock.dispatch.attempt import Scratch
from rowlock.dispatch.columns import DISPATCH_COLUMNS, is_active
from rowlock.dispatch.delivery import Delivery, DeliveryContext, StatusUpdates
from rowlock.dispatch.engine import Balancer, Engine, Handler, PriorityLoadBalancer
from rowlock.dispatch.engines.local import called, is_generator
from rowlock.dispatch.placement import (
    DispatchCounters,
    DispatchLog,
    Placement,
    Provisioner,
    bring_forward,
)
from rowlock.dispatch.settings import (
    DISPATCH_NAMES,
    LEASES_PER_TICK_MAX,
    DispatchKeywords,
    DispatchSettings,
    build_dispatch_settings,
    check_beside,
    retried_errors,
)
from rowlock.errors import AdmissionRejected, ConfigurationError, Draining, ModelError
from rowlock.spi import WORKERS_MAX, Duration, LeasedTable, ModelT, is_of_the_schema, is_transient

PROCESS_TIMEOUT_BEYOND = timedelta(minutes=5)
"""`process_timeout` is so much longer than `time_limit`, unless it is given: the wing has a better
error for the limit of an attempt.
"""


class DispatchFetcher(Fetcher[ModelT]):
    async def fetch_once(self, limit: int) -> int:
        """Claim up to `limit` rows, `LEASES_PER_TICK_MAX` at once; the next fetch follows."""
        pipeline = self.context.pipeline
        placement: Placement = pipeline.placement
        if places := placement.capacity.look(placement.workers()):

            async def work(session: AsyncSession, connection: AsyncConnection) -> frozenset[Any]:
                return await bring_forward(connection, self.context.leased, count=places)

            placement.capacity.keep_for(
                await self.context.transact(work, purpose="bring waiting rows forward")
            )
        claimed = await super().fetch_once(min(limit, LEASES_PER_TICK_MAX))
        if claimed:
            pipeline.dispatch_log.offering(claimed, workers=len(placement.workers()))
        if claimed == LEASES_PER_TICK_MAX:
            self.hint()
        return claimed


class DispatchPipeline(Pipeline[ModelT], reserved=False):
    """Takes submissions up to a ceiling, and has workers do them.

        renders = DispatchPipeline(Render, handler=render, engine=ProcessEngine(workers=4),
        max_active=1024)

    Hand it to a `PipelineManager` to have rows dispatched here. A process that only submits need
    not: it builds the same pipeline and never starts it.

    Args:
        model: a mapped class with `LockColumns`, `ScheduleColumns` and `DispatchColumns`.
        handler: does the work of one row: an ``async def`` or ``def`` with ``yield``.
        engine: where it is done.
        balancer: whom to ask first; `PriorityLoadBalancer` by default.
        provision: asks for one more worker, after an overflow.
        scratch_root: where the attempts' folders are made; the system's place by default.
        settings: `DispatchSettings`, those of every pipeline (`PipelineSettings`), and `retry_on`,
            as of every pipeline: a row whose handler raises such an error is tried again, up to
            `dispatch_deadline`.

    Raises:
        ModelError: a column is missing; the text says how to get it.
        SettingsError: a knob is out of bounds or contradicts another.
        ConfigurationError: the engine is none, or the handler cannot be called.
    """

    workers_num: int = LEASES_PER_TICK_MAX
    queue_lower_limit_factor: float = 0.0
    queue_upper_limit_factor: float = 0.0
    min_processing_interval: Duration = timedelta(0)
    max_attempts: int | None = None
    max_deaths: int | None = None
    fetcher_class: ClassVar[type[Fetcher[Any]]] = DispatchFetcher
    # It is the handler's to change; a retry would do all of its work again.
    _checks_rows: ClassVar[bool] = False

    def __init__(
        self,
        model: type[ModelT],
        *,
        handler: Handler[ModelT],
        engine: Engine,
        balancer: Balancer | None = None,
        provision: Callable[[str], Awaitable[None]] | None = None,
        scratch_root: Path | None = None,
        **settings: Unpack[DispatchKeywords],
    ) -> None:
        self.model = model
        self.retry_on = settings.pop("retry_on", self.retry_on)
        own = {name: value for name, value in settings.items() if name in DISPATCH_NAMES}
        self.dispatch: DispatchSettings = build_dispatch_settings(self.name, own)
        _check_parts(self.name, handler, engine, scratch_root=scratch_root)
        _check_columns(model)
        # One for each worker of the engine, as far as it knows by now; and some who look after what
        # waits when all are busy.
        workers_num = min(WORKERS_MAX, self.workers_num + len(engine.workers()))
        process_timeout = self.dispatch.time_limit + PROCESS_TIMEOUT_BEYOND
        rest: Any = {name: value for name, value in settings.items() if name not in own}
        given: Any = {"workers_num": workers_num, "process_timeout": process_timeout} | rest
        super().__init__(**given)
        check_beside(self.name, self.dispatch, self.settings)
        self.engine = engine
        self._counters = DispatchCounters()
        self.placement = Placement(engine, balancer or PriorityLoadBalancer(), self._counters)
        self._provisioner = (
            None
            if provision is None
            else Provisioner(provision, engine=engine, fleet_cap=self.dispatch.fleet_cap)
        )
        stale_after = self.dispatch.stale_after or 10 * self.settings.lock_timeout
        self._admission: Admission[ModelT] = Admission(
            self.leased, self.dispatch, stale_after=stale_after
        )
        self.dispatch_log = DispatchLog(self.name, deadline=self.dispatch.dispatch_deadline)
        self._context = DeliveryContext(
            self.leased,
            handler,
            self.settings,
            self.dispatch,
            retried_errors(self.name, self.expected_errors),
            self.placement,
            StatusUpdates(
                self.leased,
                name=self.name,
                timeout=self.settings.database_timeout,
                retry_timeout=self.settings.lock_timeout,
            ),
            self.hint,
            self._provisioner,
            Scratch(scratch_root),
            self.dispatch_log,
        )

    @property
    def name(self) -> str:
        """The owner in its leases: the class name of a subclass, or ``DispatchRender`` for a
        pipeline of ``Render``.
        """
        return (
            f"Dispatch{self.model.__name__}"
            if type(self) is DispatchPipeline
            else type(self).__name__
        )

    async def submit(
        self, session: AsyncSession, *, dedup_key: str, **values: Any
    ) -> tuple[ModelT, bool]:
        """Submit work, in the caller's transaction; `hint` after its commit.

        Args:
            session: joined; nothing is committed here.
            dedup_key: what the work is about. A submission of a key that is active gets its row.
            values: columns of the host's own, by attribute name. They are not looked into: one that
                the database refuses raises what the database says, and on PostgreSQL ends the
                transaction.

        Returns:
            The row, and whether it was made here.

        Raises:
            AdmissionRejected: as many rows as the ceiling allows are active; nothing was written.
            Draining: this replica is being shut down.
            LockWaitTimeout: others kept their transactions open for too long after they had
                submitted (SQLite).
            OutcomeError: a value is not the host's to give.
            PipelineError: the key is empty, too long, or has a NUL or a lone surrogate, and no
                statement was sent; or its active row came and went at each try.
        """
        counters = self._counters
        if self.state in ("stopping", "stopped"):
            counters.submissions_draining += 1
            raise Draining(
                pipeline=self.name, retry_after_s=self.settings.lock_timeout.total_seconds()
            )
        try:
            row, made = await self._admission.submit(session, dedup_key=dedup_key, values=values)
        except AdmissionRejected:
            counters.submissions_rejected += 1
            raise
        counters.submissions_admitted += made
        counters.submissions_attached += not made
        return row, made

    async def cancel(
        self, session: AsyncSession, *, dedup_key: str, reason: str = "it is not wanted any more"
    ) -> ModelT | None:
        """Fail the active row of a key with ``cancelled: ...``, in the caller's transaction.

        What waits is not begun any more. What runs, here or elsewhere, is closed when it next has
        something to say, or within `heartbeat` and 10 s, and nothing that it does is written. Its
        key and its place under the ceiling are free from the commit on, so work that is submitted
        again may begin beside an attempt that has not noticed yet.

        Args:
            session: joined; nothing is committed here.
            dedup_key: what the work is about.
            reason: what clients read in `error`.

        Returns:
            The row, or None if no row of the key is active.

        Raises:
            LockWaitTimeout: others kept their transactions open for too long after they had
                submitted (SQLite).
            PipelineError: the key is empty, too long, or has a NUL or a lone surrogate; no
                statement was sent.
        """
        return await self._admission.cancel(session, dedup_key=dedup_key, reason=reason)

    async def count_active(self, session: AsyncSession) -> int:
        """Return how many rows are pending or running, counted no further than to the ceiling;
        joins the caller's transaction.
        """
        return await self._admission.count_active(session)

    def ready(self) -> ColumnElement[bool]:
        """Rows that are pending or running."""
        return is_active(LeasedTable.of(self.model))

    async def process(self, item: PipelineItem[ModelT]) -> Outcome:
        """Make one attempt at a row."""
        return await Delivery(self._context, item).run()

    def on_refused(self, item: PipelineItem[ModelT], error: Exception) -> Outcome:
        """Fail the row: hours of work would be done again, to be refused again. Not for what is
        wrong with the database.
        """
        if is_transient(error) or is_of_the_schema(error):
            return super().on_refused(item, error)
        return Delivery(self._context, item).failed_by(error)

    def statistics(self) -> PipelineStatistics:
        """Return a snapshot of what was done since the start; its counters have those of
        submissions and offers, too.
        """
        found = super().statistics()
        return replace(found, counters={**found.counters, **asdict(self._counters)})

    async def drain(self, grace: timedelta) -> None:
        """Take nothing new, wait for attempts for `grace` at most, then cancel them; what was
        not done is recovered elsewhere.
        """
        try:
            await super().drain(grace)
        finally:
            if self._provisioner is not None:
                await self._provisioner.stop(self.settings.cancel_grace)


def _check_columns(model: type) -> None:
    leased: LeasedTable = LeasedTable.of(model)
    for name in (*DISPATCH_COLUMNS, "due_at"):
        if name not in leased.mapper.attrs:
            mixin = "ScheduleColumns" if name == "due_at" else "DispatchColumns"
            raise ModelError(
                f"{model.__name__} has no column {name}; mix in {mixin}: "
                f"class {model.__name__}(LockColumns, ScheduleColumns, DispatchColumns, Base)",
                model=model.__name__,
                column=name,
            )
    indexes = leased.table.indexes
    if not any(one.unique and [*one.columns.keys()] == ["dedup_key"] for one in indexes):
        raise ModelError(
            f"{model.__name__} has no unique index of dedup_key, without which no submission can be"
            f" told from another; write __table_args__ = dispatch_indexes({leased.table.name!r})",
            model=model.__name__,
            column="dedup_key",
        )


def _check_arity(name: str, handler: Callable[..., object]) -> None:
    try:
        inspect.signature(handler).bind(None)
    except ValueError:
        return  # of a builtin it is not known
    except TypeError:
        raise ConfigurationError(
            f"{name}: handler must take one argument, the task: {handler!r:.100} takes others"
        ) from None


def _check_parts(name: str, handler: object, engine: object, *, scratch_root: Path | None) -> None:
    if not callable(handler):
        raise ConfigurationError(
            f"{name}: handler must be a function with yield, not {handler!r:.100}"
        )
    call = called(handler)
    is_function = inspect.isfunction(call) or inspect.ismethod(call)
    if is_function and not is_generator(call) and call.__name__ != "<lambda>":
        raise ConfigurationError(
            f"{name}: handler must yield events, the last one Completed or Failed; a function that"
            " returns is none: write `yield Completed(...)`, or `yield` what another one gives"
        )
    _check_arity(name, handler)
    if isinstance(engine, type) or not isinstance(engine, Engine):
        raise ConfigurationError(
            f"{name}: engine must have workers() and offer(), like LoopEngine; not {engine!r:.100}"
        )
    # Engines of hosts need not have it.
    check_handler = getattr(engine, "check_handler", None)
    if check_handler is not None:
        check_handler(handler)
    if scratch_root is not None and not (
        scratch_root.is_dir() and os.access(scratch_root, os.W_OK)
    ):
        raise ConfigurationError(
            f"{name}: scratch_root must be a folder that may be written to; {scratch_root} is none"
        )
