"""Idle pipelines of one process poll together: fewer statements, and each finds its work as soon as it would by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

import pytest
from sqlalchemy import ColumnElement, bindparam, event, literal
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session

from rowlock import Fetcher, PipelineManager
from rowlock.leases.poll import poll_of
from rowlock.pipelines.fetching import poll_groups
from rowlock.pipelines.fetching.poll_groups import MEMBERS_MAX, POLL_TIMEOUT, REST_AFTER_FAILURE_S, PollGroups
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import RecordingPipeline, Run, RunPipeline, Volume, VolumePipeline
from .scenes import Faults, add, faults_of, is_claim, now, turns, until

LONGEST_REST_S = 6.0
"""The longest fetch delay, 5 s, and its jitter."""
UNTIL_IDLE_S = 30.0
"""After so long all pipelines have found nothing at their longest fetch delay."""
SEVERAL = 12


def is_poll(statement: str) -> bool:
    """Whether a statement asks for several pipelines."""
    return "UNION ALL" in statement and not is_claim(statement)


def sent_between(faults: Faults, begin: float, end: float, *, polls: bool) -> int:
    """Return how many polls, or claims, were sent in a span of time."""
    is_meant = is_poll if polls else is_claim
    return sum(begin <= at < end and is_meant(statement) for at, statement in faults.sent)


class Idle(RecordingPipeline):
    """Wants rows of its own, of which there are none until the test adds one."""

    model = Volume

    def ready(self) -> ColumnElement[bool]:
        """Rows in a state that is this pipeline's alone."""
        wanted: ColumnElement[bool] = self.model.status == self.name
        return wanted


def idle(count: int, **settings: Any) -> list[Idle]:
    """Return so many pipelines, of two models in turn."""
    models: list[Any] = [Volume, Run]
    return [type(f"Idle{number}", (Idle,), {"model": models[number % 2]})(**settings) for number in range(count)]


# ---------------------------------------------------------------- what it spares


@virtual_time
async def test_idle_pipelines_send_one_statement_for_all(virtual_database: TemporaryDatabase) -> None:
    """Two hundred idle pipelines would send fifty transactions a second to hear that there is nothing to do."""
    await add(virtual_database)
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, idle(SEVERAL)):
            await asyncio.sleep(UNTIL_IDLE_S)
            begin = now()
            await asyncio.sleep(20 * LONGEST_REST_S)
            end = now()
    assert sent_between(faults, begin, end, polls=False) == 0
    # One in ten rests is the shortest one, of half a second.
    assert 20 <= sent_between(faults, begin, end, polls=True) <= 60


@virtual_time
async def test_a_pipeline_that_is_alone_fetches(virtual_database: TemporaryDatabase) -> None:
    """It would ask whether there is work before it asks for work."""
    await add(virtual_database)
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, idle(1)):
            await asyncio.sleep(60)
    assert faults.count(is_poll) == 0
    assert faults.count(is_claim) > 5


@virtual_time
async def test_a_poll_counts_as_a_fetch_of_each(virtual_database: TemporaryDatabase) -> None:
    """A dashboard would show pipelines that no longer look."""
    await add(virtual_database)
    async with PipelineManager(virtual_database.session_factory, idle(SEVERAL)) as manager:
        await asyncio.sleep(UNTIL_IDLE_S)
        before = manager.statistics()
        await asyncio.sleep(10 * LONGEST_REST_S)
        for name, one in manager.statistics().items():
            for counter in ("fetches", "fetches_empty"):
                assert one.counters[counter] - before[name].counters[counter] >= 9


class NotingFetcher(Fetcher[Any]):
    """Does something of its own in each fetch."""

    async def fetch_once(self, limit: int) -> int:
        """Note it, then fetch."""
        NOTED.append(now())
        return await super().fetch_once(limit)


NOTED: list[float] = []


class Noting(Idle):
    """Has a fetcher of its own."""

    model = Volume
    fetcher_class = NotingFetcher


@virtual_time
async def test_a_fetcher_of_the_hosts_own_fetches(virtual_database: TemporaryDatabase) -> None:
    """What it does besides, such as bringing rows forward, would not be done while nothing can be claimed."""
    await add(virtual_database)
    NOTED.clear()
    async with PipelineManager(virtual_database.session_factory, [Noting(), *idle(SEVERAL)]):
        await asyncio.sleep(UNTIL_IDLE_S)
        before = len(NOTED)
        await asyncio.sleep(10 * LONGEST_REST_S)
    assert len(NOTED) - before >= 9


# ---------------------------------------------------------------- what it does not cost


@virtual_time
async def test_what_nobody_hinted_is_found_within_the_longest_rest(virtual_database: TemporaryDatabase) -> None:
    """A lost hint would cost an idle pipeline more than one fetch delay."""
    await add(virtual_database)
    pipelines = idle(SEVERAL)
    async with PipelineManager(virtual_database.session_factory, pipelines):
        for pipeline in pipelines[:2]:
            await asyncio.sleep(UNTIL_IDLE_S)
            await add(virtual_database, pipeline.model(status=pipeline.name))
            async with asyncio.timeout(LONGEST_REST_S):
                await until(lambda pipeline=pipeline: len(pipeline.items) > 0)


@virtual_time
async def test_an_idle_pipeline_follows_its_hint_at_once(virtual_database: TemporaryDatabase) -> None:
    """A request would wait for the others' rest."""
    await add(virtual_database)
    first, *others = idle(SEVERAL)
    async with PipelineManager(virtual_database.session_factory, [first, *others]) as manager:
        await asyncio.sleep(UNTIL_IDLE_S)
        await add(virtual_database, Volume(status=first.name))
        hinted_at = now()
        manager.hinter.hint_fetch(Volume)
        await turns(300)
        assert (len(first.items), now()) == (1, hinted_at)


@virtual_time
async def test_a_hint_during_a_poll_is_followed(virtual_database: TemporaryDatabase) -> None:
    """A row that was committed just behind the poll would wait for the next one."""
    await add(virtual_database)
    first, *others = idle(SEVERAL)
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [first, *others]) as manager:
            await asyncio.sleep(UNTIL_IDLE_S)
            faults.hang(when=is_poll)
            polls = faults.count(is_poll)
            await until(lambda: faults.count(is_poll) > polls)
            await add(virtual_database, Volume(status=first.name))
            hinted_at = now()
            manager.hinter.hint_fetch(Volume)
            await turns(300)
            assert (len(first.items), now()) == (1, hinted_at)
            faults.heal()


# ---------------------------------------------------------------- what goes wrong


@virtual_time
async def test_where_polls_fail_each_fetches(virtual_database: TemporaryDatabase) -> None:
    """A poll that the database refuses, for whatever is in one of its conditions, would hide the work of all."""
    await add(virtual_database)
    first, *others = idle(SEVERAL)
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [first, *others]) as manager:
            await asyncio.sleep(UNTIL_IDLE_S)
            faults.fail(OperationalError("poll", {}, Exception("too many variables")), when=is_poll)
            await asyncio.sleep(UNTIL_IDLE_S)
            await add(virtual_database, Volume(status=first.name))
            async with asyncio.timeout(LONGEST_REST_S):
                await until(lambda: len(first.items) > 0)
            begin = now()
            await asyncio.sleep(10 * REST_AFTER_FAILURE_S)
            assert sent_between(faults, begin, now(), polls=True) <= 11
            assert sum(one.counters["fetches_failed"] for one in manager.statistics().values()) == 0


@virtual_time
async def test_a_poll_that_hangs_holds_the_others_up_for_seconds_at_most(virtual_database: TemporaryDatabase) -> None:
    """A migration that locks one table would keep pipelines of all other tables from their rows."""
    await add(virtual_database)
    first, *others = idle(SEVERAL)
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [first, *others]):
            await asyncio.sleep(UNTIL_IDLE_S)
            faults.hang(when=is_poll)
            await add(virtual_database, Volume(status=first.name))
            async with asyncio.timeout(LONGEST_REST_S + POLL_TIMEOUT.total_seconds() + 1):
                await until(lambda: len(first.items) > 0)
            faults.heal()


class Fickle(Idle):
    """Says something else each time."""

    model = Volume

    def ready(self) -> ColumnElement[bool]:
        """Name the time."""
        return super().ready() & (literal(now()) > 0)


class Broken(Idle):
    """Raises once it was started."""

    model = Volume
    is_broken = False

    def ready(self) -> ColumnElement[bool]:
        """Raise."""
        if self.is_broken:
            raise RuntimeError("the host's own")
        return super().ready()


@virtual_time
@pytest.mark.parametrize("kind", [Fickle, Broken])
async def test_who_cannot_be_polled_for_costs_the_others_nothing(
    virtual_database: TemporaryDatabase,
    kind: type[Idle],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One pipeline whose condition changes, or fails, would have the others' statement built anew each time, or fail."""
    await add(virtual_database)
    odd, steady, built = kind(), idle(SEVERAL), []
    monkeypatch.setattr(poll_groups, "poll_of", lambda requests: built.append(now()) or poll_of(requests))
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [odd, *steady]) as manager:
            await asyncio.sleep(UNTIL_IDLE_S)
            odd.is_broken = True
            begin, before = now(), manager.statistics()
            await asyncio.sleep(10 * LONGEST_REST_S)
            end, after = now(), manager.statistics()
    assert sent_between(faults, begin, end, polls=True) >= 9
    assert sum(begin <= at < end for at in built) <= 1
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    fetches = {name: one.counters["fetches"] - before[name].counters["fetches"] for name, one in after.items()}
    assert min(fetches.values()) >= 9 or odd.is_broken
    assert sum(one.counters["fetches_failed"] for name, one in after.items() if name != odd.name) == 0
    assert (after[odd.name].counters["fetches_failed"] > 0) is isinstance(odd, Broken)


@virtual_time
async def test_what_was_left_behind_is_swept_while_all_are_idle(virtual_database: TemporaryDatabase) -> None:
    """Locks that were left behind would stay for as long as there is no work."""
    await add(virtual_database)
    pipelines = idle(SEVERAL, orphaned_after=120)
    async with PipelineManager(virtual_database.session_factory, pipelines) as manager:
        await asyncio.sleep(UNTIL_IDLE_S)
        await add(virtual_database, Volume(status="done", lock_owner=pipelines[0].name))
        async with asyncio.timeout(1_000):
            await until(lambda: sum(one.counters["swept"] for one in manager.statistics().values()) > 0)


class Bound(Idle):
    """Names its parameter."""

    model = Volume

    def ready(self) -> ColumnElement[bool]:
        """Rows in a state that is bound by a name."""
        return Volume.status == bindparam("wanted", self.name)


@virtual_time
async def test_parameters_of_one_name_are_each_pipelines_own(virtual_database: TemporaryDatabase) -> None:
    """All of a group would be polled for with the value of one of them, and the others never find their rows."""
    await add(virtual_database)
    pipelines = [type(f"Bound{number}", (Bound,), {})() for number in range(3)]
    async with PipelineManager(virtual_database.session_factory, pipelines):
        for pipeline in pipelines:
            await asyncio.sleep(UNTIL_IDLE_S)
            await add(virtual_database, Volume(status=pipeline.name))
            async with asyncio.timeout(LONGEST_REST_S):
                await until(lambda pipeline=pipeline: len(pipeline.items) > 0)


TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


@virtual_time
async def test_who_was_started_in_another_context_is_polled_for_in_it(virtual_database: TemporaryDatabase) -> None:
    """A host whose sessions say by a context variable which tenant they are would ask as one tenant for all of them."""
    await add(virtual_database)
    sessions, asked = async_sessionmaker(virtual_database.engine), set()

    @event.listens_for(sessions.kw.setdefault("sync_session_class", type("Tenants", (Session,), {})), "after_begin")
    def note(*_: Any) -> None:
        asked.add(TENANT.get())

    pipelines = idle(SEVERAL)
    async with PipelineManager(sessions) as manager:
        for number, pipeline in enumerate(pipelines):
            context = copy_context()
            context.run(TENANT.set, f"tenant {number % 3}")
            context.run(manager.register, pipeline)
        await asyncio.sleep(UNTIL_IDLE_S)
        asked.clear()
        await asyncio.sleep(2 * LONGEST_REST_S)
        assert asked == {"tenant 0", "tenant 1", "tenant 2"}
        groups = {pipeline.run.fetcher._group for pipeline in pipelines}
        assert len(groups) == 3


# ---------------------------------------------------------------- who belongs together


class Sleeper:
    """A member that is never idle."""

    is_idle = False
    rests_until = 0.0

    def unchanged_request(self) -> None:
        """Want nothing."""

    def delay_s(self) -> float:
        """Rest for a second."""
        return 1.0

    def begin_poll(self, poll: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run it."""
        return asyncio.ensure_future(poll)

    def found_nothing(self, delay_s: float) -> None:
        """Go on."""

    def found_something(self) -> None:
        """Go on."""


def test_groups_are_of_one_database_and_of_one_delay(database: TemporaryDatabase) -> None:
    """A statement would ask one database for tables of another, or a pipeline would rest for as long as another may."""
    elsewhere = database.create_engine()
    sessions = async_sessionmaker(binds={Volume: database.engine, Run: elsewhere})
    groups, volumes, runs = PollGroups(sessions), LeasedTable.of(Volume), LeasedTable.of(Run)
    group = groups.join(Sleeper(), volumes, (1.0,))
    assert groups.join(Sleeper(), volumes, (1.0,)) is group
    assert groups.join(Sleeper(), volumes, (2.0,)) is not group
    assert groups.join(Sleeper(), runs, (1.0,)) is not group


def test_groups_are_of_bounded_size(database: TemporaryDatabase) -> None:
    """A thousand conditions would stand in one statement."""
    groups, volumes = PollGroups(database.session_factory), LeasedTable.of(Volume)
    sleepers = [Sleeper() for _ in range(MEMBERS_MAX + 1)]
    joined = [groups.join(sleeper, volumes, (1.0,)) for sleeper in sleepers]
    assert len({id(group) for group in joined}) == 2
    groups.leave(sleepers[0])
    assert groups.join(Sleeper(), volumes, (1.0,)) is joined[0]


@virtual_time
async def test_who_has_stopped_is_polled_for_no_more(virtual_database: TemporaryDatabase) -> None:
    """Pipelines that were drained would be kept, and their tables asked."""
    await add(virtual_database)
    pipelines = [*idle(2), VolumePipeline(), RunPipeline()]
    async with PipelineManager(virtual_database.session_factory, pipelines) as manager:
        await asyncio.sleep(UNTIL_IDLE_S)
        (group,) = {pipeline.run.fetcher._group for pipeline in pipelines}
        assert group is not None
        assert len(group.members) == 4
        manager.shutdown()
        await turns()
        assert group.members == []
