"""Idle pipelines that poll together remain themselves: sweeps, parameters, contexts, ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

from sqlalchemy import ColumnElement, bindparam, event
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session

from rowlock import PipelineManager
from rowlock.pipelines.fetching.poll_groups import (
    MEMBERS_MAX,
    PollGroups,
)
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline
from .scenes import add, turns, until
from .test_poll_groups import LONGEST_REST_S, SEVERAL, UNTIL_IDLE_S, Idle, idle


@virtual_time
async def test_what_was_left_behind_is_swept_while_all_are_idle(
    virtual_database: TemporaryDatabase,
) -> None:
    """Locks that were left behind would stay for as long as there is no work."""
    await add(virtual_database)
    pipelines = idle(SEVERAL, orphaned_after=120)
    async with PipelineManager(virtual_database.session_factory, pipelines) as manager:
        await asyncio.sleep(UNTIL_IDLE_S)
        await add(virtual_database, Volume(status="done", lock_owner=pipelines[0].name))
        async with asyncio.timeout(1_000):
            await until(
                lambda: sum(one.counters["swept"] for one in manager.statistics().values()) > 0
            )


class Bound(Idle):
    """Names its parameter."""

    model = Volume

    def ready(self) -> ColumnElement[bool]:
        """Rows in a state that is bound by a name."""
        return Volume.status == bindparam("wanted", self.name)


@virtual_time
async def test_parameters_of_one_name_are_each_pipelines_own(
    virtual_database: TemporaryDatabase,
) -> None:
    """All of a group would be polled for with the value of one of them, and the others never
    find their rows.
    """
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
async def test_who_was_started_in_another_context_is_polled_for_in_it(
    virtual_database: TemporaryDatabase,
) -> None:
    """A host whose sessions say by a context variable which tenant they are would ask as one
    tenant for all of them.
    """
    await add(virtual_database)
    sessions, asked = async_sessionmaker(virtual_database.engine), set()

    @event.listens_for(
        sessions.kw.setdefault("sync_session_class", type("Tenants", (Session,), {})), "after_begin"
    )
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
    """A statement would ask one database for tables of another, or a pipeline would rest for as
    long as another may.
    """
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
