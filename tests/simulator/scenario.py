"""What a host brings: its pipelines, its rows, its services, and what must be true in the end.

The one idea: a scenario is made anew for every run, so whatever lives outside the database (the
cloud that `process` calls, say) belongs in its attributes; the replicas of a run share it, as they
share the world. The world is what it sees of the simulation.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from sqlalchemy import ColumnElement, Connection, false, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from rowlock import Pipeline, pipeline_hinter
from rowlock.pipelines.attempt import Gate

from .environment.engines import Engines, PooledEngine
from .environment.processes import Process, current_process
from .faults.fault_kinds import Fault
from .trace import Trace, place_of_row

if TYPE_CHECKING:
    from rowlock.testing import DatabaseClock

RowT = TypeVar("RowT")


@runtime_checkable
class KnowsUnsettled(Protocol):
    """A pipeline with a condition for unsettled rows: `ready()` of work without an end is always
    true.
    """

    def unsettled(self) -> ColumnElement[bool]: ...


class World:
    """The simulation, as a scenario sees it.

    Attributes:
        seed: the number of the run.
        random: for whatever the scenario draws.
        is_calm: the faults are over; what is drawn should let rows settle from now on.
    """

    def __init__(self, seed: int, engines: Engines, trace: Trace) -> None:
        self.seed = seed
        self.random = Random(f"{seed} scenario")
        self.is_calm = False
        self._engines = engines
        self._trace = trace
        self._pooled: dict[Process, PooledEngine] = {}

    def add(self, process: Process, pooled: PooledEngine) -> None:
        """Let a process have that line; called by the simulation."""
        self._pooled[process] = pooled

    @property
    def clock(self) -> DatabaseClock:
        return self._engines.clock

    @property
    def file(self) -> sqlite3.Connection:
        """What is committed, by a plain connection of the driver that takes no time; not to be
        written to.
        """
        return self._engines.file

    @property
    def process(self) -> Process | None:
        return current_process.get()

    @property
    def session_factory(self) -> async_sessionmaker[AsyncSession]:
        """Sessions over the line of the process whose code runs.

        Raises:
            RuntimeError: called outside of any process.
        """
        process = current_process.get()
        if process is None:
            raise RuntimeError(
                "only replicas and services have a line to the database; read() reads from outside"
            )
        return self._pooled[process].session_factory

    def utc_now(self) -> datetime:
        """Return what the wall clock of the running process shows, right or wrong."""
        process = current_process.get()
        return self.clock.now + (timedelta(0) if process is None else process.skew)

    def note(self, text: str, *, row: object = None) -> None:
        """Write a line into the timeline; `row` is a mapped instance that it is about."""
        self._trace.record(text, place=None if row is None else _place_of(row))

    def wrong(self, text: str, *, row: object = None) -> None:
        self._trace.wrong(text, place=None if row is None else _place_of(row))

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Give a connection that reads what is committed, outside of any process and in no time."""
        with self._engines.eye.connect() as connection:
            yield connection

    @contextmanager
    def copying(self) -> Iterator[Connection]:
        """Give a connection to a copy of what is committed, which may be written to: in the file
        itself, a process that holds its lock would be in the way.
        """
        with self._engines.copies.connect() as connection:
            yield connection

    def read(self, model: type[RowT]) -> list[RowT]:
        """Return all committed rows of `model` by key, detached, read outside of any process and
        in no time.
        """
        with Session(self._engines.eye, expire_on_commit=False) as session:
            return _all_rows(session, model)


class Scenario:
    """Override what you need; `pipelines` at least.

    Attributes:
        world: the simulation.
        replicas_num: how many replicas run at once.
        faults: what may go wrong. Each run draws some of these.
        faults_num_max: most faults of one run.
        settle_within: how long rows may take to settle once the faults are over; by default, each
            phase of their way has a bound that follows from the settings.
        rounds_max: how often one row may be taken once the faults are over; whoever wants more goes
            round for ever.
        watched: names of your own columns, by model, whose changes are told in the story of a row.
        services_own: those of them that no pipeline writes; an outcome that does so breaks a
            promise.
        models: mapped classes with lock columns besides those that `pipelines` shows, where what
            runs is drawn.
        schema: SQL to be executed beside the tables of the models, such as triggers of your own.
        keeps_leases: mapped classes whose rows stay leased while all is well, as those of work
            without an end do. Such a row has settled once it is held, unless `unsettled` says
            otherwise.
        gates: conditions of every claim, as `PipelineManager` takes them.
    """

    replicas_num: int = 2
    faults: Collection[Fault] = tuple(Fault)
    faults_num_max: int = 10
    settle_within: timedelta | None = None
    rounds_max: int = 50
    watched: Mapping[type, Sequence[str]] = MappingProxyType({})
    services_own: Sequence[str] = ()
    models: Sequence[type] = ()
    schema: Sequence[str] = ()
    keeps_leases: Collection[type] = ()
    gates: Sequence[Gate] = ()

    def __init__(self, world: World) -> None:
        self.world = world

    def pipelines(self) -> Sequence[Pipeline[Any]]:
        """Return new pipelines for one replica; called for each, and again whenever one is
        restarted.
        """
        raise TypeError(
            f"{type(self).__name__} must say what runs in a replica: override pipelines()"
        )

    def rows(self) -> Iterable[object]:
        """Return new rows. Some are there from the beginning, others come while everything goes
        wrong.
        """
        return ()

    def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """Return what the host's services do meanwhile: coroutine functions, each run in a process
        of its own.

        What they raise is noted; the database may fail them, too. An ``AssertionError`` fails the
        run.
        """
        return ()

    def unsettled(self, pipeline: Pipeline[Any]) -> ColumnElement[bool]:
        """Return which rows of a pipeline still want something; for pipelines whose rows are
        always ready. By default what the pipeline's own `unsettled` says, if it has one.
        """
        if isinstance(pipeline, KnowsUnsettled):
            return pipeline.unsettled()
        return false() if pipeline.model in self.keeps_leases else pipeline.ready()

    def hint(self, pipeline: Pipeline[Any]) -> None:
        """Hint a pipeline for which nothing is left; called in the process of its replica, to see
        whether it looks.
        """
        pipeline_hinter.hint_fetch(pipeline.model)

    def looks(self, pipeline: Pipeline[Any]) -> Sequence[float]:
        """Return figures each of which changes when a pipeline follows a `hint`. By default how
        often it has fetched.
        """
        return (pipeline.statistics().counters["fetches"],)

    def always(self) -> None:
        """Assert what must be true after every COMMIT; `world.file` and `world.read` see what is
        committed.
        """

    def check(self) -> None:
        """Assert what must be true in the end, when all rows have settled and every replica was
        shut down.
        """

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def _all_rows(session: Session, model: type[RowT]) -> list[RowT]:
    keys = model.__mapper__.primary_key  # type: ignore[attr-defined]
    return list(session.scalars(select(model).order_by(*keys)))


def _place_of(row: object) -> tuple[str, str]:
    mapper = type(row).__mapper__  # type: ignore[attr-defined]
    return place_of_row(mapper.local_table.name, mapper.primary_key_from_instance(row)[0])
