"""A pipeline: the host's subclass, one per resource type, with its settings and hooks.

Construction checks everything that can be checked without a database: hooks that are missing or of
a wrong kind, misspelt names, Python's ``and`` between SQL expressions, settings that come too late.
A name is taken for a misspelt one only where its value could be meant for it, too: a `models` that
is a dict is the host's own, and a number called `worker_num` is not. A name that was refused
wrongly could not be used at all.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import wraps
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Final,
    Generic,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock.errors import ConfigurationError, ModelError, PipelineError, SettingsError
from rowlock.hints import PipelineHinter, declare_intent
from rowlock.leases.item import PipelineItem
from rowlock.leases.related import check_one_database
from rowlock.pipelines.attempt import (
    NO_SEAMS,
    ParkOn,
    RetryOn,
    Seams,
    error_rules,
    intent_columns,
    ready_condition,
)
from rowlock.pipelines.context import AHEAD_MAX, ItemQueue, PipelineContext
from rowlock.pipelines.fetcher import Fetcher
from rowlock.pipelines.heartbeat_thread import HeartbeatThread
from rowlock.pipelines.heartbeater import Heartbeater
from rowlock.pipelines.lock_graph import LockGraph, Related, declared_locks
from rowlock.pipelines.outcomes import Outcome, Retry
from rowlock.pipelines.run import PipelineRun
from rowlock.pipelines.schedules import Periodic, row_schedules
from rowlock.pipelines.settings import (
    SETTING_NAMES,
    PipelineSettings,
    SettingsAttributes,
    SettingsKeywords,
    build_settings,
    check_has_effect,
    nearest,
)
from rowlock.pipelines.statistics import Counters, Histograms, PipelineHealth, PipelineStatistics
from rowlock.pipelines.worker import Worker
from rowlock.rows.expressions import noted_booleans
from rowlock.rows.leased_table import LeasedTable, ModelT_co
from rowlock.rows.updates import ColumnKey
from rowlock.schedules import Schedule

_NAMES_NONE = re.compile(r"\bNone(Type)?\b|\bOptional\b")
_PASSED_ON = frozenset({Awaitable, Coroutine, Union, UnionType})
"""What is looked into: of each, only what a caller gets."""


def may_return_none(function: Any) -> bool:
    """Whether the annotation of `function` allows None, as text if it cannot be resolved."""
    inner: Callable[..., Any] = inspect.unwrap(getattr(function, "__func__", function))
    annotations = getattr(inner, "__annotations__", None) or {}
    if "return" not in annotations:
        return False
    try:
        return _has_none(get_type_hints(inner)["return"])
    # Names that are there for type checkers alone, or the host's own classes.
    except Exception:  # noqa: BLE001
        return bool(_NAMES_NONE.search(str(annotations["return"])))


def _has_none(kind: Any) -> bool:
    origin = get_origin(kind)
    if origin not in _PASSED_ON:
        return kind in (Any, NoneType, object)
    parts = get_args(kind)
    return any(map(_has_none, parts[2:] if origin is Coroutine else parts))


HOOKS = ("on_refused", "on_stale", "process", "ready", "schedule_of")
DECLARATIONS: Mapping[str, tuple[type, ...]] = {
    "intent": (list, set, tuple),
    "locks": (list, set, tuple),
    "model": (type,),
    "park_on": (dict, list, tuple, type),
    "periodic": (list, tuple, Periodic),
    "retry_on": (dict, list, tuple, type),
    "schedule": (Schedule,),
}
"""What a host sets on its class beside those, each with the types that it can have."""
READ = (*HOOKS, *SETTING_NAMES, *DECLARATIONS)


def _may_be_meant(name: str, value: object) -> bool:
    if name in DECLARATIONS:
        return isinstance(value, DECLARATIONS[name])
    if name in HOOKS:
        return callable(value) or isinstance(value, classmethod | property | staticmethod)
    return isinstance(value, float | int | list | NoneType | str | timedelta | tuple)


def check_names(name: str, given: Mapping[str, object], *, known: Collection[str]) -> None:
    """Refuse attributes of a host's that are named nearly as one that is `known`."""
    for attribute, value in given.items():
        if attribute.startswith("_") or attribute in known or hasattr(Pipeline, attribute):
            continue
        meant = nearest(attribute, known)
        if meant is None or not _may_be_meant(meant, value):
            continue
        text = (
            f"{name}.{attribute} is nothing that rowlock reads; {meant} is meant, or another name,"
            " that is less like it"
        )
        if meant in SETTING_NAMES:
            raise SettingsError(text, pipeline=name, settings=(meant,))
        raise ConfigurationError(text)


def settable(pipeline: object) -> dict[str, object]:
    """What an instance has set of all that is read while it is built."""
    return {name: vars(pipeline).get(name) for name in (*SETTING_NAMES, *DECLARATIONS)}


RESERVED_NAMES: Final = frozenset(
    {
        *("build_run", "declared_locks", "drain", "expected_errors", "health", "hint"),
        *("intent_columns", "leased", "name", "run", "schedules", "settings", "shutdown", "start"),
        *("state", "statistics"),
    }
)
"""Names that a subclass may not use for something of its own."""


def check_process(name: str, process: Callable[..., Any], *, is_base: bool) -> None:
    """Refuse a `process` that is missing, yields, or takes no item."""
    if is_base:
        raise ConfigurationError(f"{name} must say what to do with a row: override process(item)")
    if not callable(process):
        raise ConfigurationError(f"{name}.process must be a function, not {process!r:.100}")
    if inspect.isasyncgenfunction(process) or inspect.isgeneratorfunction(process):
        raise ConfigurationError(f"{name}.process must return an outcome, not yield")
    signature = inspect.signature(process)
    try:
        signature.bind(None)
    except TypeError:
        raise ConfigurationError(
            f"{name}.process must take one argument, the item: def process(self, item), not"
            f" {signature}"
        ) from None


def check_ready(name: str, leased: LeasedTable, ready: Callable[[], Any]) -> None:
    """Refuse a `ready` that gives no SQL expression, or not the one that is written there."""
    with noted_booleans() as noted:
        try:
            ready_condition(name, leased, ready)
        except AttributeError as error:
            if isinstance(error.obj, type):
                raise ModelError(f"{name}.ready() fails: {error}", model=leased.name) from error
            raise ModelError(
                f"{name}.ready() cannot be asked yet ({error}): it is called once while"
                " the pipeline is built, so set what it needs before super().__init__()",
                model=leased.name,
            ) from error
        except (ModelError, TypeError):
            # What Python made of it is not what the host has written.
            if not noted:
                raise
    if noted:
        raise ModelError(
            f"{name}.ready() asks Python whether an SQL expression is true ({noted[0]}):"
            " write & for `and`, | for `or`, ~ for `not`, each side in brackets, or and_(...)",
            model=leased.name,
        )


def check_is_built(pipeline: object) -> None:
    """Refuse a pipeline whose ``__init__`` has not called `Pipeline`'s, or has undone it."""
    name, own = type(pipeline).__name__, vars(pipeline)
    if not {"settings", "leased", "declared_locks"} <= own.keys():
        raise ConfigurationError(f"{name}.__init__ must call super().__init__(**settings)")
    for kept, kind in (("settings", PipelineSettings), ("leased", LeasedTable)):
        if not isinstance(own[kept], kind):
            raise ConfigurationError(
                f"{name}.__init__ sets self.{kept}, where rowlock keeps its own; give it another"
                " name"
            )


def check_after_init(cls: type[Any]) -> None:
    """Have instances of `cls` checked when the host's own ``__init__`` has returned."""
    init = cls.__init__

    @wraps(init)
    def checked(self: Any, *args: Any, **kw: Any) -> None:
        init(self, *args, **kw)
        if type(self).__init__ is not checked:
            return
        check_is_built(self)
        check_names(self.name, vars(self), known=SETTING_NAMES)
        as_read = self._as_read
        late = [name for name, value in settable(self).items() if as_read[name] is not value]
        if late:
            raise ConfigurationError(
                f"{type(self).__name__}.__init__ sets self.{late[0]} after super().__init__(),"
                " which has read it: set it before, or pass it to super().__init__()"
            )

    cls.__init__ = checked


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
        for one in type(self).__mro__:
            if issubclass(one, Pipeline) and not one.__module__.startswith("rowlock."):
                check_names(self.name, vars(one), known=READ)
        values = {name: getattr(self, name) for name in SETTING_NAMES}
        self.settings = build_settings(self.name, {**values, **settings})
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
        self.expected_errors = error_rules(
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
            check_after_init(cls)

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
        return PipelineRun(context)

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
