"""Runs a pipeline for one row again and again, killed at a later moment each time, and looks
whether that makes a difference.

The one idea: `process` runs at least once. Whatever a dead replica has done outside, the next one
must come to the same end as if nothing had happened. So for each await of `process` there is a run
in which the answer to it is never heard; and one that ends before `process` begins, one after it
returned, one after the outcome was committed. Another replica then takes the row, and all rows of
the database and the outside world are compared with those of an undisturbed run.

    async def test_survives_crashes(rowlock_database_with_clock):
        await crash_everywhere(
            rowlock_database_with_clock,
            row=lambda: Volume(status="submitted"),
            world=Cloud,                                   # what is outside: it outlives a crash
            build=VolumePipeline,                          # called with it, once for each process
            effects=lambda cloud: cloud.disks,
        )

`CrashContract` is the same as a class to be inherited, beside `PipelineContract`.

What it cannot see: an await that never suspends, as of a fake that does everything at once; have it
``await asyncio.sleep(0)``. And what a pipeline keeps in a session that is not its item's: reach the
database by ``item.session()``.

A database holds more than the row in question, and a pipeline may do harm to any of it. So every
row of the host's tables is looked at: that row column by column, the others as wholes, since it is
unknown which of them is which. Keys that are made anew in each run, and foreign keys that follow
them, say nothing, and are not compared.

Not here: how a replica dies (``killable_replica``).
"""

from __future__ import annotations

import asyncio
import copy
import pprint
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from inspect import isawaitable
from typing import Any, Final, Generic, TypeVar

from sqlalchemy import Column, Table, delete, inspect, literal, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import Pipeline, events
from rowlock.errors import PipelineError
from rowlock.spi import LOCK_COLUMNS, LeasedTable, ModelT, keeps_time
from rowlock.testing.database_clock import DEFAULT_START, DatabaseClock
from rowlock.testing.databases import TemporaryDatabase
from rowlock.testing.killable_replica import KillableReplica
from rowlock.testing.stepping import check_pipelines, stepping, tables_wanted

WorldT = TypeVar("WorldT")

MOMENTS_MAX: Final = 1000
"""Moments at which a replica is killed before a process is taken for endless."""
ATTEMPTS_MAX: Final = 20  # most attempts on a row in one run
RUN_S_MAX: Final = 60.0  # longest run
FINDINGS_MAX: Final = 10
A_MOMENT: Final = timedelta(seconds=1)
ADVICE: Final = (
    "process runs at least once; make what it does outside the same when it is done twice"
    " (docs/how-to/side-effects.md)"
)


class CrashError(AssertionError):
    """A crash of a replica makes a difference.

    Attributes:
        findings: each moment at which it does, with what is different then.
    """

    def __init__(
        self, pipeline: str, findings: Sequence[str], moments: int, *, advice: str = ADVICE
    ) -> None:
        self.findings = tuple(findings)
        told = "\n".join(f"- {finding}" for finding in findings[:FINDINGS_MAX])
        super().__init__(
            f"{pipeline} does not survive every crash: {len(findings)} of {moments} moments make a"
            f" difference.\n{told}\n{advice}"
        )


async def crash_everywhere(
    database: TemporaryDatabase,
    *,
    row: Callable[[], ModelT | Sequence[Any]],
    world: Callable[[], WorldT],
    build: Callable[[WorldT], Pipeline[ModelT]],
    effects: Callable[[WorldT], Any],
    until: Callable[[ModelT], bool] | None = None,
    ignore: Sequence[str] = (),
) -> int:
    """Kill a replica at every moment of a row's day in turn, and check that the next one comes to
    the same end.

    Args:
        database: of the test's own, with empty tables and a clock; all rows are deleted between the
            runs.
        row: returns a new row that wants work; or a list of it and of rows that it needs, itself
            first. A key that is not set is the same in each run.
        world: returns a new outside world.
        build: returns a new pipeline in that world: one for the replica that dies, one for the
            next.
        effects: returns what is outside, to be compared by ``==``: the state it is in, not a list
            of calls. May be async.
        until: whether the work on a row is done; otherwise it is when nothing claims the row any
            more.
        ignore: what may differ in the database: names of columns (``"size_gb"``, or
            ``"volumes.size_gb"`` of one table) or of tables. Times need only be set or not. Lock
            columns, `due_at`, `attempts`, `last_error`, and keys that are made anew in each run,
            are not compared.

    Returns:
        At how many moments it was killed.

    Raises:
        CrashError: it does make a difference: says at which await, and what is different.
        PipelineError: it cannot be told: there is no clock, the tables are not empty, the row is
            not claimed or never done, or two undisturbed runs differ.
    """
    if isinstance(ignore, str):
        raise PipelineError(f"`ignore` is a sequence of names, such as [{ignore!r}]")
    if not isinstance(database, TemporaryDatabase):
        raise PipelineError(
            "crash_everywhere takes a TemporaryDatabase, such as the fixture"
            f" rowlock_database_with_clock, not {database!r:.100}"
        )
    runs = _Runs(
        database, row, world, build=build, effects=effects, until=until, ignore=frozenset(ignore)
    )
    with tables_wanted():
        expected, anew = await runs.undisturbed()
    findings: list[str] = []
    for at in range(MOMENTS_MAX):
        replica = KillableReplica(at)
        result = await runs.killed(replica)
        if replica.moment is None:
            if findings:
                raise CrashError(runs.name, findings, at)
            return at
        if different := list(result.differences(expected, anew=anew)):
            findings.append("\n    ".join([replica.moment, *different]))
    raise PipelineError(
        f"{runs.name}: a row's day has more than {MOMENTS_MAX} moments; is there an end to it?"
    )


class CrashContract(Generic[ModelT, WorldT]):
    """The test of `crash_everywhere`, to be inherited; it needs a fixture
    `rowlock_database_with_clock`.

    Attributes:
        ignore: what may differ in the database, as for `crash_everywhere`.
    """

    ignore: Sequence[str] = ()

    def crashing_row(self) -> ModelT | Sequence[Any]:
        """Return a new row that wants work, or a list of it and of rows that it needs."""
        raise TypeError(f"{type(self).__name__} must say what a row is: override crashing_row()")

    def world(self) -> WorldT:
        """Return a new outside world."""
        raise TypeError(f"{type(self).__name__} must say what is outside: override world()")

    def build_in(self, world: WorldT) -> Pipeline[ModelT]:
        """Return a new pipeline in `world`."""
        raise TypeError(
            f"{type(self).__name__} must say how its pipeline is built: override build_in(world)"
        )

    def effects(self, world: WorldT) -> Any:
        """Return what the pipeline has brought about in `world`."""
        raise TypeError(f"{type(self).__name__} must say what is compared: override effects(world)")

    def is_done(self, row: ModelT) -> bool:
        """Return whether the work on the row is done; until nothing claims it any more, unless
        overridden.
        """
        return False

    async def test_survives_a_crash_at_every_await(
        self, rowlock_database_with_clock: TemporaryDatabase
    ) -> None:
        """What a dead replica had done would be done twice, or never."""
        await crash_everywhere(
            rowlock_database_with_clock,
            row=self.crashing_row,
            world=self.world,
            build=self.build_in,
            effects=self.effects,
            until=self.is_done,
            ignore=self.ignore,
        )


@dataclass
class _Runs(Generic[ModelT, WorldT]):
    """Restores the rows before each run, and runs it."""

    database: TemporaryDatabase
    row: Callable[[], ModelT | Sequence[Any]]
    world: Callable[[], WorldT]
    build: Callable[[WorldT], Pipeline[ModelT]]
    effects: Callable[[WorldT], Any]
    until: Callable[[ModelT], bool] | None
    ignore: frozenset[str]
    name: str = "process"
    _start: datetime = DEFAULT_START
    _key: Any = None
    _leased: LeasedTable = field(init=False)

    @property
    def clock(self) -> DatabaseClock:
        if self.database.clock is None:
            raise PipelineError(
                "crash_everywhere lets leases run out; give it a database with a clock"
            )
        return self.database.clock

    async def undisturbed(self) -> tuple[RunResult, frozenset[str]]:
        """Return the result without crashes, and the keys that differ each time."""
        self._start = self.clock.now
        first = await self._run_undisturbed(is_first=True)
        second = await self._run_undisturbed(is_first=False)
        anew = keys_made_anew(first.rows, second.rows, self._leased.table.metadata.sorted_tables)
        if different := list(second.differences(first, anew=anew)):
            cures = []
            if any(second.differences_of_rows(first, anew=anew)):
                cures.append("name in `ignore` the columns or tables that change by themselves")
            if first.effects != second.effects:
                cures.append("return from `effects` what does not change by itself")
            raise PipelineError(
                f"two undisturbed runs of {self.name} differ, so nothing can be told:"
                f" {'; '.join(different)}. To compare them, {' and '.join(cures)}"
            )
        return first, anew

    async def _run_undisturbed(self, *, is_first: bool) -> RunResult:
        pipeline, world = await self._set_scene(is_first=is_first)
        with _failures() as failures:
            if await self._work_off(self.database.session_factory, pipeline, failures) == 0:
                raise PipelineError(
                    f"{self.name} did not claim the row; return one that is ready from `row`"
                )
            return await self._result(world, failures)

    async def killed(self, replica: KillableReplica) -> RunResult:
        """Kill one replica as `replica` says, and have another one finish its work."""
        pipeline, world = await self._set_scene()
        replica.take_over(pipeline)
        with _failures() as failures:
            work = partial(self._work_off, pipeline=pipeline, failures=failures)
            async with replica.life(self.database, work, name=self.name, within_s=RUN_S_MAX):
                if replica.moment is None:
                    return await self._result(world, failures)
                failures.clear()
                return await self._survive(world, failures)

    async def _survive(self, world: WorldT, failures: list[str]) -> RunResult:
        survivor = self.build(world)
        self.clock.advance(survivor.settings.lock_timeout + A_MOMENT)
        trouble = None
        try:
            async with asyncio.timeout(RUN_S_MAX):
                await self._work_off(self.database.session_factory, survivor, failures)
        except PipelineError as error:
            trouble = str(error)
        except TimeoutError:
            trouble = _because_of(
                failures, f"the next replica does not come to an end within {RUN_S_MAX:g} s"
            )
        return await self._result(world, failures, trouble)

    async def _set_scene(self, *, is_first: bool = False) -> tuple[Pipeline[ModelT], WorldT]:
        made, world = self.row(), self.world()
        pipeline = self.build(world)
        check_pipelines(pipeline)
        self.name, self._leased = pipeline.name, pipeline.leased
        rows = list(made) if isinstance(made, list | tuple) else [made]
        if not rows or not isinstance(rows[0], pipeline.model):
            first = f"a {type(rows[0]).__name__}" if rows else "nothing"
            raise PipelineError(
                f"`row` must return a {pipeline.model.__name__} for {self.name}, itself first: not"
                f" {first}"
            )
        tables = self._leased.table.metadata.sorted_tables
        async with self.database.session_factory.begin() as session:
            if is_first:
                beside = ", and what the row needs beside itself from `row`"
                await check_empty(session, tables, "crash_everywhere", beside=beside)
            await empty(session, tables)
        self.clock.set(self._start)
        if getattr(rows[0], self._leased.key_name) is None:
            setattr(rows[0], self._leased.key_name, self._key)
        async with self.database.session_factory.begin() as session:
            session.add_all(rows[1:])
            await session.flush()
            session.add(rows[0])
            await session.flush()
            self._key = inspect(rows[0]).identity[0]
        return pipeline, world

    async def _work_off(
        self,
        sessions: async_sessionmaker[AsyncSession],
        pipeline: Pipeline[ModelT],
        failures: list[str],
    ) -> int:
        """Work on the row until it is done, moving the time to when it is due; return how often."""
        for attempts in range(ATTEMPTS_MAX):
            row = await self._read(sessions)
            if row is None or (self.until is not None and self.until(row)):
                return attempts
            due_in = (
                row.due_at - self.clock.now
                if self._leased.has_schedule
                else pipeline.settings.min_processing_interval
            )
            self.clock.advance(max(due_in, timedelta(0)) + A_MOMENT)
            async with stepping(sessions, pipeline) as steps:
                if not await steps.fetch_once():
                    return attempts
                await steps.work_all()
        told = _because_of(
            failures, f"{pipeline.name} is not done with the row after {ATTEMPTS_MAX} attempts"
        )
        raise PipelineError(f"{told}; say by `until` when it is, if the row always wants work")

    async def _read(self, sessions: async_sessionmaker[AsyncSession]) -> Any:
        async with sessions(expire_on_commit=False) as session:
            return await session.get(self._leased.model, self._key)

    async def _result(
        self, world: WorldT, failures: list[str], trouble: str | None = None
    ) -> RunResult:
        effects = self.effects(world)
        effects = copy.deepcopy(await effects if isawaitable(effects) else effects)
        async with self.database.session_factory() as session:
            rows = await read_rows(session, self._leased, self._key, ignore=self.ignore)
        if trouble is None and rows.is_locked:
            trouble = _because_of(failures, "the row is still locked")
        return RunResult(rows, effects, trouble)


async def check_empty(
    session: AsyncSession, tables: Sequence[Table], who: str, *, beside: str = ""
) -> None:
    for table in tables:
        if await session.scalar(select(literal(1)).select_from(table).limit(1)):
            raise PipelineError(
                f"{who} empties all tables, and there are rows in {table.name}: give it a database"
                f" of its own{beside}"
            )


async def empty(session: AsyncSession, tables: Sequence[Table]) -> None:
    """Delete all rows; joins the caller's transaction."""
    for table in reversed(tables):
        await session.execute(delete(table).execution_options(rowlock_changes_events=True))


def _because_of(failures: Sequence[str], trouble: str) -> str:
    return f"{trouble} (process failed with {failures[-1]})" if failures else trouble


@contextmanager
def _failures() -> Iterator[list[str]]:
    texts: list[str] = []

    def note(event: Any) -> None:
        texts.append(event.error)

    unsubscribe = events.subscribe(note, events.ItemFailed)
    try:
        yield texts
    finally:
        unsubscribe()


VALUE_SHOWN_MAX: Final = 500  # longest text of a value

NOT_COMPARED: Final = (*LOCK_COLUMNS, "due_at", "attempts", "last_error")


@dataclass(frozen=True)
class Rows:
    """What the host's tables hold: the row in question (None: gone), and all others by table."""

    row: dict[str, Any] | None
    is_locked: bool
    beside: dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class RunResult:
    """The rows and outside effects of a run, and what went wrong besides, in words."""

    rows: Rows
    effects: Any
    trouble: str | None = None

    def differences(self, other: RunResult, *, anew: Collection[str] = ()) -> Iterator[str]:
        """Yield what differs from `other`; the columns `anew` are not compared."""
        if self.trouble != other.trouble:
            yield self.trouble or f"not: {other.trouble}"
        yield from self.differences_of_rows(other, anew=anew)
        if self.effects != other.effects:
            yield f"effects: {_shown(self.effects)}, not {_shown(other.effects)}"

    def differences_of_rows(self, other: RunResult, *, anew: Collection[str] = ()) -> Iterator[str]:
        ours, theirs = self.rows, other.rows
        if ours.row is None or theirs.row is None:
            if ours.row is not theirs.row:
                yield f"the row {'is gone' if ours.row is None else 'is still there'}"
        else:
            for name, value in theirs.row.items():
                if ours.row[name] != value and name not in anew:
                    yield (
                        f"row.{name.rpartition('.')[-1]}: {_shown(ours.row[name])}, not"
                        f" {_shown(value)}"
                    )
        for table in ours.beside:
            here, there = (
                [_without(anew, row) for row in rows.beside[table]] for rows in (ours, theirs)
            )
            more, less = _not_in(there, here), _not_in(here, there)
            if more or less:
                yield f"rows of {table}: {_shown(more)}, not {_shown(less)}"


async def read_rows(
    session: AsyncSession, leased: LeasedTable, key: object, *, ignore: Collection[str]
) -> Rows:
    """Return the rows of all tables; `ignore` names columns, columns of a table, or tables."""
    ours, row, is_locked = _kept_by_rowlock(leased), None, False
    beside: dict[str, list[dict[str, Any]]] = {}
    for table in leased.table.metadata.sorted_tables:
        columns = [
            column
            for column in table.columns
            if column not in ours and not _names_of(column) & {*ignore}
        ]
        if table is not leased.table and not columns:
            continue
        rows = beside[table.fullname] = []
        for found in (await session.execute(select(table))).mappings():
            values = {
                f"{table.fullname}.{column.name}": "a time"
                if found[column] is not None and keeps_time(column.type)
                else found[column]
                for column in columns
            }
            if table is leased.table and found[leased.key] == key:
                row, is_locked = values, found[leased.column("lock_token")] is not None
            else:
                rows.append(values)
    return Rows(row, is_locked, beside)


def keys_made_anew(first: Rows, second: Rows, tables: Sequence[Table]) -> frozenset[str]:
    """Return the keys, and foreign keys, that differ between two undisturbed runs."""
    return frozenset(
        name
        for table in tables
        for column in table.columns
        if column.primary_key or column.foreign_keys
        for name in [f"{table.fullname}.{column.name}"]
        if _not_in(_values(first, table, name), _values(second, table, name))
    )


def _values(rows: Rows, table: Table, name: str) -> list[Any]:
    found = [*rows.beside.get(table.fullname, ()), *([rows.row] if rows.row is not None else [])]
    return [row[name] for row in found if name in row]


def _kept_by_rowlock(leased: LeasedTable) -> set[Any]:
    # By attribute, since columns may have other names; and only where there are locks: others may
    # count attempts too.
    mappers = [
        mapper for mapper in leased.mapper.registry.mappers if LOCK_COLUMNS[0] in mapper.columns
    ]
    return {
        mapper.columns[name]
        for mapper in mappers
        for name in NOT_COMPARED
        if name in mapper.columns
    }


def _names_of(column: Column[Any]) -> set[str]:
    return {column.name, column.table.fullname, f"{column.table.fullname}.{column.name}"}


def _without(anew: Collection[str], row: dict[str, Any]) -> dict[str, Any]:
    return {name.rpartition(".")[-1]: value for name, value in row.items() if name not in anew}


def _not_in(these: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Return which of `others` exceed `these`, by number; they need not be hashable."""
    rest, missing = list(these), list[Any]()
    for one in others:
        (rest.remove if one in rest else missing.append)(one)
    return missing


def _shown(value: object) -> str:
    text = pprint.pformat(value, compact=True, width=VALUE_SHOWN_MAX)
    return text if len(text) <= VALUE_SHOWN_MAX else f"{text[:VALUE_SHOWN_MAX]}..."
