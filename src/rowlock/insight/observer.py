"""The observer of one replica: what only a running process knows, kept at hand and written down
every few seconds, and the courtesy of a pause.

The one idea: its failures harm no outcome. It has a task of its own, each of its
statements is bounded, and what fails is tried again at the next beat; the log says it once. A
database that is away keeps the replica from no other: there it lives, and hears of pauses.

Not here: the statements, and what is written (``replicas.py``).
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Final, Self, TypeAlias

from sqlalchemy import Table, and_, case, false, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import Pipeline, PipelineHealth, PipelineManager, PipelineStatistics, database_now
from rowlock.clock import monotonic, sleep, utc_now
from rowlock.database.faults import is_of_the_server
from rowlock.errors import ConfigurationError, PipelineError, TransactionTimeout, describe
from rowlock.insight import replicas as presence
from rowlock.insight.asking import (
    DATABASES_AT_ONCE_MAX,
    Sessions,
    asked_concurrently,
    by_database,
    engine_of,
    is_of_a_statement,
)
from rowlock.insight.insight_dialect import INSIGHT
from rowlock.insight.migrations import NAME_CHARS_MAX
from rowlock.insight.questions import ListedState, StateRows
from rowlock.insight.recorder import HistoryRecorder
from rowlock.insight.replicas import (
    DEAD_AFTER,
    Rates,
    Sample,
    pipeline_report,
    rates_of,
    read_replicas,
    report_of,
    work_report,
)
from rowlock.insight.status import Counts
from rowlock.insight.tables import InsightTables, tables_of
from rowlock.logs import get_logger
from rowlock.spi import (
    EligibleParts,
    LeasedTable,
    claim_parts,
    database_time_after,
    in_transaction,
    order_column,
    ready_condition,
    replica_mark,
)

COUNTED_STATES: Final = (
    ListedState.DUE,
    ListedState.RESTING,
    ListedState.ENDED,
    ListedState.PARKED,
)
WILLING = "census"  # in the report of a replica that counts, if its turn to do so comes


async def exact_counts(
    connection: AsyncConnection, leased: LeasedTable, parts: EligibleParts
) -> Counts:
    """Count by one scan of the table; without `ScheduleColumns` nothing is oldest, or parked."""
    rows = {state: StateRows(leased, parts, "", state) for state in COUNTED_STATES}
    counted = {state: and_(one.among(), one.condition()) for state, one in rows.items()}
    sums = [func.sum(case((one, 1), else_=0)).label(state) for state, one in counted.items()]
    place = order_column(leased)
    oldest = func.min(case((counted[ListedState.DUE], place)), type_=place.type).label("oldest")
    statement = select(database_now().label("at"), *sums, oldest).select_from(leased.model)
    answers = (await connection.execute(statement)).one()._asdict()
    counts = Counts.of(
        leased,
        {name: answers[name] or 0 for name in counted}
        | {name: answers[name] for name in ("at", "oldest")},
    )
    if not leased.has_schedule:
        return replace(counts, oldest_s=None, parked=None)
    return replace(counts, oldest_s=counts.oldest_s or 0.0)


logger = get_logger(__name__)

SCAN_MAX: Final = timedelta(seconds=5)
REST_FACTOR: Final = 50  # the rest behind a scan is so many times as long as the scan
REST_S_MIN: Final = 15.0  # shortest rest between two rounds over all pipelines, in seconds
COUNTED_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class CensusCounts:
    """The census of one pipeline, `at` a time of the monotonic clock."""

    at: float
    counts: Counts
    replicas: int | None

    @property
    def age_s(self) -> float:
        return monotonic() - self.at


def pipelines_of(
    managers: Iterable[PipelineManager],
) -> list[tuple[PipelineManager, Pipeline[Any]]]:
    return [(manager, one) for manager in managers for one in manager.pipelines]


class Census:
    """Counts again and again during `run`; with a table of replicas, only in one of them."""

    def __init__(self, managers: tuple[PipelineManager, ...], replicas: Table | None) -> None:
        self._managers, self._replicas = managers, replicas
        self._counted: dict[str, CensusCounts] = {}
        self._failing: set[str] = set()

    @property
    def counted(self) -> Mapping[str, CensusCounts]:
        return self._counted

    async def run(self) -> None:
        while True:
            begun = monotonic()
            await self.count(rests=True)
            await sleep(max(0.0, REST_S_MIN - (monotonic() - begun)))

    async def count(self, *, rests: bool = False) -> None:
        """Count each pipeline once; `rests` adds a rest after each scan."""
        for manager, pipeline in pipelines_of(self._managers)[:COUNTED_MAX]:
            begun = monotonic()
            await self._count(manager, pipeline)
            if rests:
                await sleep(REST_FACTOR * (monotonic() - begun))

    async def _count(self, manager: PipelineManager, pipeline: Pipeline[Any]) -> None:
        name = pipeline.name
        try:
            counted = await self._counted_now(manager, pipeline)
        # Of the host's `ready` and database, whatever it is: it costs this census, and no row.
        except Exception as error:  # noqa: BLE001
            if name not in self._failing:
                text = "The census of %(pipeline)s failed (told once; no row is harmed): %(error)s"
                logger.warning(text, {"pipeline": name, "error": describe(error, chars_max=300)})
            self._failing.add(name)
            return
        self._failing.discard(name)
        self._counted.pop(name, None)
        if counted is not None:
            self._counted[name] = counted

    async def _counted_now(
        self, manager: PipelineManager, pipeline: Pipeline[Any]
    ) -> CensusCounts | None:
        leased, replicas, mark = pipeline.leased, self._replicas, replica_mark()
        ready = ready_condition(pipeline.name, leased, pipeline.ready)
        parts = claim_parts(pipeline, ready=ready, locking_pipelines=(), gates=())

        async def work(session: AsyncSession, connection: AsyncConnection) -> CensusCounts | None:
            await INSIGHT.of(connection).begin_reading(connection, statement_timeout=SCAN_MAX)
            running = None
            if replicas is not None:
                columns = replicas.c
                lowest = select(func.min(columns.mark)).where(
                    columns.seen_at > database_time_after(-DEAD_AFTER),
                    columns.draining == false(),
                    columns.report[WILLING].as_boolean(),
                )
                if await connection.scalar(lowest) != mark:
                    return None
                known = await read_replicas(connection, replicas)
                running = sum(one.runs(pipeline.name) for one in known.live)
            counts = await exact_counts(connection, leased, parts)
            return CensusCounts(monotonic(), counts, running)

        return await in_transaction(
            manager.session_factory,
            leased,
            work,
            purpose="count what waits",
            timeout=SCAN_MAX,
            writes=False,
        )


# ---------------------------------------------------------------- the observer


Act: TypeAlias = Callable[[Sessions, list[Pipeline[Any]]], Awaitable[list[Exception]]]
"""Acts in one database, for the pipelines that work there; returns the errors."""


async def in_each_database(
    databases: Iterable[tuple[Sessions, list[Pipeline[Any]]]], act: Act
) -> None:
    """Run `act` in each of `databases`, then raise the first of all errors."""

    async def failures(sessions: Sessions, pipelines: list[Pipeline[Any]]) -> list[Exception]:
        try:
            return await act(sessions, pipelines)
        except Exception as error:  # noqa: BLE001 - of a host's database, whatever it is
            return [error]

    asks = [partial(failures, *one) for one in databases]
    found = await asked_concurrently(asks, at_once=DATABASES_AT_ONCE_MAX)
    for failure in (one for failures in found for one in failures):
        raise failure


BEAT_S: Final = 4.5
"""The rest between two beats, in seconds: with the statement, a pause is heard of within 5 s."""
STATEMENT_TIMEOUT: Final = timedelta(seconds=3)
SAMPLES_MAX: Final = 120  # how many samples of each pipeline are kept
SWEEP_EVERY: Final = 100  # at every so many beats, rows of replicas that died long ago are deleted
PIPELINES_MAX: Final = 1000  # most pipelines that are observed
LAG_EVERY_S: Final = 0.5  # how often the event loop is asked how late it is, in seconds


class Observer:
    """Watches the managers of a process, and writes down that it lives.

        async with Observer(manager, tables=tables) as observer, manager:  # it ends last
            ...

    Args:
        managers: those of the process; their pipelines may be registered later.
        tables: the optional tables; by default those whose gate a manager has. Without them only
            this process can be asked.
        name: of the replica, for people; its host and process id by default.
        census: whether this replica may be the one that counts exactly what waits, for metrics.

    Attributes:
        managers: those of the process.
        tables: the optional tables, if there are any.
        lag_s: by how much the event loop was late at most in the last beat, in seconds.
        skew_s: by how much the clock of the process is ahead of the database's, in seconds; None if
            the database was not asked yet.
        paused: the pipelines that were paused at the last beat.
        history: writes what becomes of each row; None if the host lends no table for it.

    Raises:
        ConfigurationError: `managers` holds what is none.
    """

    _running: ClassVar[tuple[int, Observer] | None] = None

    def __init__(
        self,
        *managers: PipelineManager,
        tables: InsightTables | None = None,
        name: str | None = None,
        census: bool = False,
    ) -> None:
        if not managers or not all(isinstance(one, PipelineManager) for one in managers):
            raise ConfigurationError(
                f"an Observer takes the managers of the process, not {managers!r:.100}"
            )
        self.managers = managers
        known = (tables_of(manager.gates) for manager in managers)
        self.tables = tables or next(filter(None, known), None)
        lent = self.tables or InsightTables(None, None)
        self.history = None if lent.history is None else HistoryRecorder(managers, lent.history)
        self._name = name
        self.lag_s = 0.0
        self.skew_s: float | None = None
        self.paused: frozenset[str] = frozenset()
        self._census = Census(managers, lent.replicas) if census else None
        self._samples: dict[str, deque[Sample]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._worst_lag_s = 0.0
        self._beats = 0
        self._is_failing = False

    def __repr__(self) -> str:
        return f"<Observer {self.name} of {len(self.managers)} managers>"

    async def __aenter__(self) -> Self:
        running = Observer._running
        # A child that was forked has a mark of its own, and no observer.
        if running is not None and running[0] == os.getpid():
            raise PipelineError(
                "this process has an Observer already; give it all managers: Observer(one, other)"
            )
        Observer._running = (os.getpid(), self)
        if self.history is not None:
            self.history.start()
        self._tasks = [
            asyncio.create_task(self._run(), name="rowlock: observer"),
            asyncio.create_task(self._measure_lag(), name="rowlock: lag of the event loop"),
        ]
        if self._census is not None:
            self._tasks.append(asyncio.create_task(self._census.run(), name="rowlock: census"))
        return self

    async def __aexit__(self, *_: object) -> None:
        Observer._running = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self.history is not None:
            await self.history.stop()
        await self._contained(self._leave)

    @property
    def name(self) -> str:
        """The name of the replica, for people."""
        # Asked anew: one that was made before the process forked is the child's.
        return (self._name or f"{socket.gethostname()}:{os.getpid()}")[:NAME_CHARS_MAX]

    @property
    def mark(self) -> str:
        """The mark of this process, with which the tokens of its leases end."""
        return replica_mark()

    @property
    def counted(self) -> Mapping[str, CensusCounts]:
        """The last census of each pipeline; empty where this replica does not count."""
        return {} if self._census is None else self._census.counted

    def statistics(self) -> dict[str, PipelineStatistics]:
        """Return what each pipeline has done, by name."""
        return {
            name: one for manager in self.managers for name, one in manager.statistics().items()
        }

    def health(self) -> tuple[PipelineHealth, ...]:
        """Return how each pipeline is."""
        return tuple(one for manager in self.managers for one in manager.health().pipelines)

    def samples(self, pipeline: str) -> tuple[Sample, ...]:
        """Return the last samples of a pipeline, the oldest first."""
        return tuple(self._samples.get(pipeline, ()))

    def rates(self, pipeline: str) -> Rates:
        """Return what a pipeline did in the last minute."""
        return rates_of(self.samples(pipeline))

    async def beat(self) -> None:
        """Take a sample, say that the replica lives, and return what is queued of pipelines that
        are paused; called every few seconds while the observer runs.
        """
        for part in (self._take_samples, self._tell, self._return_queued):
            await self._contained(part)

    async def _run(self) -> None:
        while True:
            await self.beat()
            await sleep(BEAT_S)

    async def _measure_lag(self) -> None:
        while True:
            begun = monotonic()
            await sleep(LAG_EVERY_S)
            self._worst_lag_s = max(self._worst_lag_s, monotonic() - begun - LAG_EVERY_S)

    async def _take_samples(self) -> None:
        self.lag_s, self._worst_lag_s = self._worst_lag_s, 0.0
        now = monotonic()
        for name, statistics in list(self.statistics().items())[:PIPELINES_MAX]:
            samples = self._samples.setdefault(name, deque(maxlen=SAMPLES_MAX))
            samples.append(Sample(now, statistics))

    async def _tell(self) -> None:
        if self.tables is None or not self._names():
            return
        self._beats += 1
        beat = partial(self._beat_without_what_fails, row=self._row())
        await in_each_database(self._databases(), beat)
        if self._is_failing:
            self._is_failing = False
            logger.info("The observer of this replica does its part again", {"replica": self.mark})

    async def _beat_without_what_fails(
        self, sessions: Sessions, pipelines: list[Pipeline[Any]], *, row: dict[str, Any]
    ) -> list[Exception]:
        """Beat in one database, with one table alone if the other cannot be used: a replica that
        cannot hear of pauses still lives, and one that cannot say so still keeps them. Returns the
        errors.
        """
        leased, failures = pipelines[0].leased, list[Exception]()
        names = [one.name for one in pipelines][:PIPELINES_MAX]
        whole = self.tables
        parts = [] if whole is None else [whole]
        if whole is not None and whole.replicas is not None and whole.controls is not None:
            parts += [replace(whole, controls=None), replace(whole, replicas=None)]
        for tables in parts:
            try:
                await self._beat_in(sessions, leased, tables, row=row, names=names)
                break
            except Exception as error:
                # A server that only reads still tells of pauses.
                is_of_one = is_of_a_statement(error) or is_of_the_server(error)
                if not (is_of_one or isinstance(error, TransactionTimeout)):
                    raise
                failures.append(error)
        return failures

    async def _beat_in(
        self,
        sessions: Sessions,
        leased: LeasedTable,
        tables: InsightTables,
        *,
        row: dict[str, Any],
        names: list[str],
    ) -> None:
        replicas, sweeps = tables.replicas, self._beats % SWEEP_EVERY == 1

        async def work(session: AsyncSession, connection: AsyncConnection) -> presence.Beat:
            answer = await presence.beat(connection, tables, row=row, pipelines=names)
            if sweeps and replicas is not None:
                await presence.sweep(connection, replicas)
            return answer

        sent = utc_now()
        purpose = "say that the replica lives"
        answer = await in_transaction(
            sessions, leased, work, purpose=purpose, timeout=STATEMENT_TIMEOUT
        )
        # Half-way between sending and hearing, as near as can be told.
        self.skew_s = (sent + (utc_now() - sent) / 2 - answer.at).total_seconds()
        if tables.controls is not None:
            self.paused = (self.paused - set(names)) | answer.paused

    async def _return_queued(self) -> None:
        for manager, pipeline in self._pipelines():
            if pipeline.name in self.paused and pipeline.statistics().queued:
                count = await manager.return_queued(pipeline.name)
                text = "%(pipeline)s is paused: %(rows)s rows that were queued were returned"
                logger.info(text, {"pipeline": pipeline.name, "rows": count})

    async def _leave(self) -> None:
        if self.tables is None or self.tables.replicas is None or not self._beats:
            return
        replicas, mark = self.tables.replicas, self.mark

        async def leave(sessions: Sessions, pipelines: list[Pipeline[Any]]) -> list[Exception]:
            await in_transaction(
                sessions,
                pipelines[0].leased,
                lambda _, connection: presence.disappear(connection, replicas, mark),
                purpose="say that the replica stops",
                timeout=STATEMENT_TIMEOUT,
            )
            return []

        await in_each_database(self._databases(), leave)

    def _pipelines(self) -> list[tuple[PipelineManager, Pipeline[Any]]]:
        return pipelines_of(self.managers)

    def _databases(self) -> Iterator[tuple[Sessions, list[Pipeline[Any]]]]:
        hosted = ((manager.session_factory, one) for manager, one in self._pipelines())
        return by_database((sessions, one, engine_of(sessions, one)) for sessions, one in hosted)

    def _names(self) -> list[str]:
        return [pipeline.name for _, pipeline in self._pipelines()][:PIPELINES_MAX]

    def _row(self) -> dict[str, Any]:
        statistics = self.statistics()
        of_name = {one.name: one for _, one in self._pipelines()}
        pipelines = {
            health.pipeline: pipeline_report(
                statistics[health.pipeline],
                health,
                self.rates(health.pipeline),
                is_paused=health.pipeline in self.paused,
            )
            | work_report(of_name[health.pipeline])
            for health in self.health()
            if health.pipeline in statistics
        }
        items = [view for manager in self.managers for view in manager.items()]
        states = {one["state"] for one in pipelines.values()}
        return {
            "mark": self.mark,
            "name": self.name,
            "host": socket.gethostname()[:NAME_CHARS_MAX],
            "pid": os.getpid(),
            "version": own_version(),
            # One of several managers may have stopped: what the others run goes on.
            "draining": bool(states) and states <= {"stopping", "stopped"},
            "report": report_of(
                pipelines, items, lag_s=self.lag_s, skew_s=self.skew_s, counts=bool(self._census)
            )
            | ({} if self.history is None else self.history.report()),
        }

    async def _contained(self, act: Callable[[], Awaitable[None]]) -> None:
        """Run `act`; its error is logged once, and the next beat tries again."""
        try:
            await act()
        except Exception as error:  # noqa: BLE001
            if not self._is_failing:
                logger.warning(
                    "The observer of this replica cannot do its part (told once; no row is"
                    " harmed): %(error)s",
                    {"replica": self.mark, "error": describe(error, chars_max=300)},
                )
            self._is_failing = True


def own_version() -> str:
    """Return the version that runs here; ``unknown`` in a source tree that was not installed."""
    with suppress(PackageNotFoundError):
        return version("rowlock")[:64]
    return "unknown"
