"""A pipeline: the host's subclass, one per resource type, with its settings and hooks.

Construction checks everything that can be checked without a database.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, ClassVar, Generic, Unpack

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock.errors import ConfigurationError, ModelError, PipelineError
from rowlock.hints import PipelineHinter, declare_intent
from rowlock.leases.item import PipelineItem
from rowlock.leases.related import check_one_database
from rowlock.pipelines.construction import (
    RESERVED_NAMES,
    check_after_init,
    check_names,
    check_process,
    check_ready,
    may_return_none,
    settable,
)
from rowlock.pipelines.context import AHEAD_MAX, ItemQueue, PipelineContext
from rowlock.pipelines.fetcher import Fetcher
from rowlock.pipelines.heartbeat_thread import HeartbeatThread
from rowlock.pipelines.heartbeater import Heartbeater
from rowlock.pipelines.hooks import NO_SEAMS, ExpectedErrors, ParkOn, RetryOn, Seams, intent_columns
from rowlock.pipelines.lock_graph import LockGraph, Related, declared_locks
from rowlock.pipelines.outcomes import Outcome, Retry
from rowlock.pipelines.run import PipelineRun
from rowlock.pipelines.schedules import Periodic, row_schedules
from rowlock.pipelines.settings import (
    SETTING_NAMES,
    SettingsAttributes,
    SettingsKeywords,
    build_settings,
    check_has_effect,
)
from rowlock.pipelines.statistics import Counters, Histograms, PipelineHealth, PipelineStatistics
from rowlock.pipelines.worker import Worker
from rowlock.rows.leased_table import LeasedTable, ModelT_co
from rowlock.rows.updates import ColumnKey
from rowlock.schedules import Schedule


class Pipeline(SettingsAttributes, Generic[ModelT_co]):
    """Works on the rows of one model in the background.

    Subclass it, set `model`, write `ready` and `process`. Every setting is a class attribute and a
    keyword of the constructor; `PipelineSettings` documents each with its bounds.

    Attributes:
        model: the host's mapped class.
        locks: models of which `process` locks rows with `PipelineItem.lock_related`. Their own
            pipelines leave rows alone that a row of this pipeline waits for.
        intent: columns that services write while a row is worked on, such as
            ``[Volume.to_be_deleted]``. An outcome that was computed from older values is not
            written; the row is due again at once (`Apply.unless_changed`).
        retry_on: errors out of `process` that are expected and pass, such as
            ``(httpx.TransportError,)``: retried, and logged in one line without a traceback. As a
            mapping, each with its delay: a timedelta, seconds, a function of the error, or None for
            the backoff (`ScheduleColumns`).
        park_on: errors out of `process` that no further attempt can mend: the row is parked
            (`ScheduleColumns`). Of several classes that fit an error, the nearest counts.
        schedule: when a row is due again after an `Apply` that does not say so, such as
            ``Cron("0 3 * * *", "Europe/Berlin")`` (`ScheduleColumns`).
        periodic: rows that are inserted where they are not there, each with its schedule.
        rehearsable: whether ``rowlock plan`` may run `process`, whose outcome is not written then.
        settings: the validated settings of this instance.
        leased: what was found on the model.

    Raises:
        ModelError: the model cannot be leased, or `ready` is not an SQL expression.
        SettingsError: a setting is unknown, out of bounds, or contradicts another.
    """

    model: type[ModelT_co]

    locks: Sequence[type | Related] = ()
    intent: Sequence[ColumnKey] = ()
    retry_on: RetryOn = ()
    park_on: ParkOn = ()
    schedule: Schedule | None = None
    periodic: Sequence[Periodic] = ()
    rehearsable: bool = False

    fetcher_class: ClassVar[type[Fetcher[Any]]] = Fetcher
    worker_class: ClassVar[type[Worker[Any]]] = Worker
    heartbeater_class: ClassVar[type[Heartbeater[Any]]] = Heartbeater
    _checks_rows: ClassVar[bool] = True
    _looks_at_indexes: ClassVar[bool] = True

    def __init__(self, **settings: Unpack[SettingsKeywords]) -> None:
        check_names(self, Pipeline)
        values: dict[str, Any] = {name: getattr(self, name) for name in SETTING_NAMES} | dict(
            settings
        )
        self.settings = build_settings(self.name, values)
        for name in settings:
            setattr(self, name, getattr(self.settings, name))
        if getattr(self, "model", None) is None:
            raise ModelError(
                f"{self.name} has no model; set `model = YourModel` on the class", model=self.name
            )
        self.leased: LeasedTable = LeasedTable.of(self.model)
        self.leased.check_owner(self.name)
        if not self.leased.has_schedule:
            check_has_effect(self.name, self.settings, self.leased.name)
        self.declared_locks = declared_locks(self.name, self.leased, self.locks)
        # Read as it stands there: a column without its brackets would be asked for its value in a
        # pipeline.
        intent = inspect.getattr_static(self, "intent")
        self.intent_columns = intent_columns(self.name, self.leased, intent)
        self.expected_errors = ExpectedErrors.of(
            self.name, self.leased, retry_on=self.retry_on, park_on=self.park_on
        )
        self.schedules = row_schedules(
            self.name,
            self.leased,
            schedule=self.schedule,
            of_row=None if type(self).schedule_of is Pipeline.schedule_of else self.schedule_of,
            periodic=self.periodic,
        )
        check_ready(self.name, self.leased, self.ready)
        check_process(self.name, self.process, is_base=type(self).process is Pipeline.process)
        declare_intent(self.model, self.intent_columns)
        self._as_read = settable(self)
        self._run: PipelineRun[ModelT_co] | None = None

    def __init_subclass__(cls, *, reserved: bool = True, **kw: Any) -> None:
        super().__init_subclass__(**kw)
        # Pipelines of rowlock's own may build on what a host's must not touch.
        taken = sorted(RESERVED_NAMES & set(vars(cls))) if reserved else []
        if taken:
            raise ConfigurationError(
                f"{cls.__name__}.{taken[0]} hides what rowlock needs of a Pipeline; give it another"
                " name"
            )
        if "__init__" in vars(cls):
            check_after_init(cls, Pipeline)

    def __repr__(self) -> str:
        return f"<{self.name} over {self.leased.name}, {self.state}>"

    @property
    def name(self) -> str:
        """The class name: the owner in this pipeline's leases, and its name in logs and events."""
        return type(self).__name__

    @property
    def state(self) -> str:
        """``new``, ``running``, ``stopping`` or ``stopped``."""
        return "new" if self._run is None else self._run.state

    def ready(self) -> ColumnElement[bool]:
        """Return which rows want work, as one SQL expression over `model`. Called before every
        claim.
        """
        raise ConfigurationError(f"{self.name} must say which rows want work: override ready()")

    def process(self, item: PipelineItem[ModelT_co]) -> Outcome | Awaitable[Outcome | None] | None:
        """Work on one row and return an outcome, or raise `Retry`, `Reset` or `Park`. No session is
        open; it may run again for the same row, so be idempotent.

        A plain function runs in a worker thread.
        """
        raise ConfigurationError(
            f"{self.name} must say what to do with a row: override process(item)"
        )

    def options(self) -> Sequence[LoaderOption]:
        """Return loader options with which the row is read, such as
        ``selectinload(Volume.attachments)``.
        """
        return ()

    def schedule_of(self, row: ModelT_co) -> Schedule | None:  # type: ignore[misc]
        """Return the schedule of `row`, by default the pipeline's; None: it has none.

        Called on the event loop, when an outcome is written. A row for which it raises is parked.
        """
        return self.schedule

    def on_stale(self, item: PipelineItem[ModelT_co], outcome: Outcome) -> Awaitable[None] | None:
        """Clean up the side effects of `outcome`, which could not be applied. A plain function
        runs in a worker thread.
        """
        return None

    def on_refused(self, item: PipelineItem[ModelT_co], error: Exception) -> Outcome:
        """Return the outcome to write in place of one that the database refused with `error`: by
        default a `Retry`, like any failure.

        Called on the event loop, before `on_stale`. Override it where the same work would only be
        refused again.
        """
        return Retry(error=error)

    def start(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        hinter: PipelineHinter,
        lock_graph: LockGraph | None = None,
        *,
        heartbeat_thread: HeartbeatThread | None = None,
        seams: Seams = NO_SEAMS,
        check_indexes: bool = False,
    ) -> None:
        """Start fetching and working; called by the manager, in the running event loop."""
        self.check_can_run(session_factory)
        run = self._run = self.build_run(session_factory, hinter, lock_graph)
        run.heartbeater.thread, run.context.seams = heartbeat_thread, seams
        run.start()
        if check_indexes and self._looks_at_indexes:
            run.look_at_indexes_soon()

    def build_run(
        self,
        session_factory: async_sessionmaker[AsyncSession],
        hinter: PipelineHinter,
        lock_graph: LockGraph | None = None,
    ) -> PipelineRun[ModelT_co]:
        """Return the actors of this pipeline, not started: for `start`, and for tests that take one
        step at a time. Without a `lock_graph` no pipeline is beside it.
        """
        settings = self.settings
        queue: ItemQueue[ModelT_co] = ItemQueue(
            settings.queue_capacity,
            settings.queue_low_watermark,
            holds_ahead=settings.queue_upper_limit_factor > 0,
            grows=self._leaves_queue_size and settings.queue_capacity < AHEAD_MAX,
        )
        context: PipelineContext[ModelT_co] = PipelineContext(
            self,
            session_factory,
            hinter,
            queue=queue,
            lock_graph=lock_graph or LockGraph([self]),
            allows_none=may_return_none(type(self).process),
            claims_rows=self.leased.is_plain
            and getattr(self.options, "__func__", None) is Pipeline.options,
        )
        return PipelineRun(
            context,
            fetcher_class=self.fetcher_class,
            worker_class=self.worker_class,
            heartbeater_class=self.heartbeater_class,
        )

    @property
    def _leaves_queue_size(self) -> bool:
        # A host that says nothing about it, and has no fetches of its own, which may go by it.
        bases = type(self).__mro__[: type(self).__mro__.index(Pipeline)]
        sizes = ("queue_lower_limit_factor", "queue_upper_limit_factor")
        is_stated = any(name in vars(one) for one in (self, *bases) for name in sizes)
        return not is_stated and self.fetcher_class.fetch_once is Fetcher.fetch_once

    @property
    def run(self) -> PipelineRun[ModelT_co]:
        """The actors of the started pipeline.

        Raises:
            PipelineError: it was not started yet.
        """
        if self._run is None:
            raise PipelineError(f"{self.name} was not started")
        return self._run

    def hint(self) -> None:
        """Fetch soon; does nothing before the start. May be called from any thread."""
        if self._run is not None:
            self._run.hint()

    def shutdown(self) -> None:
        """Start nothing more, and release what was claimed and not started."""
        if self._run is not None:
            self._run.shutdown()

    async def drain(self, grace: timedelta) -> None:
        """Wait for running work for `grace` at most, then interrupt it; release everything."""
        if self._run is not None:
            await self._run.drain(grace.total_seconds())

    def statistics(self) -> PipelineStatistics:
        """Return a snapshot of what was done since the start."""
        if self._run is not None:
            return self._run.statistics()
        return PipelineStatistics(self.name, 0, 0, 0, asdict(Counters()), Histograms().snapshot())

    def health(self) -> PipelineHealth:
        """Return whether the pipeline works."""
        if self._run is None:
            return PipelineHealth(self.name, "new", {}, 0, 0, None, 0)
        return self._run.health()

    def check_can_run(self, session_factory: async_sessionmaker[AsyncSession]) -> None:
        """Check, without connecting, what is needed to run and not to be built: the classes of the
        actors, and the databases that sessions use.

        Raises:
            ConfigurationError: says what to override, or the session factory cannot serve it.
            PipelineError: it was started before.
        """
        if self._run is not None:
            raise PipelineError(f"{self.name} was started before; build a new one")
        declared = [lock.leased for lock in self.declared_locks]
        check_one_database(session_factory, self.leased, declared=declared)
        for name, part in (
            ("fetcher_class", Fetcher),
            ("worker_class", Worker),
            ("heartbeater_class", Heartbeater),
        ):
            chosen = getattr(self, name)
            if not (isinstance(chosen, type) and issubclass(chosen, part)):
                raise ConfigurationError(
                    f"{self.name}.{name} must be {part.__name__} or a subclass of it"
                )
