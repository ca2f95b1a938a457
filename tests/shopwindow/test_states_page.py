"""The tables in ``docs/design/states-of-a-row.md`` say what claims, outcomes and services do."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import ColumnElement, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock import (
    Apply,
    Park,
    PipelineItem,
    Reset,
    Retry,
    hold_rows,
    make_due,
    park,
    request_update,
    unpark,
)
from rowlock.leases.release import break_lease
from rowlock.rows.eligibility import eligible_parts, is_lockable
from rowlock.rows.lease_values import renewed_values
from rowlock.rows.leased_table import LeasedTable
from rowlock.testing import Steps, TemporaryDatabase, stepping

from ..host import Base, Run, RunPipeline
from .pages import DOCS

PAGE = (DOCS / "design" / "states-of-a-row.md").read_text(encoding="utf-8")
RUNS = LeasedTable.of(Run)
OWN, OTHER = "RunPipeline", "OtherPipeline"
LOCK_COLUMNS = ("lock_token", "lock_owner", "lock_expires_at")
COLUMNS = (*LOCK_COLUMNS, "last_processed_at", "due_at", "parked_at")


def table_below(anchor: str) -> list[dict[str, str]]:
    """Return the rows of the first table below a heading, by the names of its columns."""
    below = PAGE[PAGE.index(f"{{ #{anchor} }}") :]
    lines = [line for line in below.splitlines() if line.startswith("|")]
    header, *rest = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    names = [name.strip("`") for name in header]
    rows: list[dict[str, str]] = []
    for cells in rest[1:]:
        if len(cells) != len(names):
            break
        rows.append(dict(zip(names, cells, strict=True)))
    return rows


STATES = {row["state"]: row for row in table_below("by-its-columns")}
ACTS = {row["act"].strip("`"): row for row in table_below("by-its-acts")}


def value_of(cell: str, now: datetime) -> Any:
    """Return what a cell of the states stands for, in a row."""
    hour = timedelta(hours=1)
    times = {"past": now - hour, "long ago": now - hour, "just now": now, "future": now + hour}
    named = {"null": None, "set": uuid4(), "own": OWN, "other": OTHER}
    return {**named, **times}.get(cell, cell.strip("`"))


def claimable_by(owner: str) -> ColumnElement[bool]:
    """Return the condition under which a pipeline of that name claims a row that is ready."""
    interval = RunPipeline().settings.min_processing_interval
    ready = Run.status == "queued"
    return eligible_parts(RUNS, ready=ready, owner=owner, min_processing_interval=interval).whole


CONDITIONS: dict[str, Callable[[], ColumnElement[bool]]] = {
    "own may claim": lambda: claimable_by(OWN),
    "other may claim": lambda: claimable_by(OTHER),
    "may be held": lambda: is_lockable(RUNS, uuid4()),
}


def test_tables_were_found() -> None:
    """The tests below would compare nothing."""
    assert {"due", "leased", "expired", "reserved, due", "parked"} <= set(STATES)
    assert set(ACTS) == {*PLAYED, "renew"}


@pytest.mark.parametrize("state", STATES)
async def test_state_is_claimable_as_told(
    state: str, database_with_clock: TemporaryDatabase
) -> None:
    """Somebody would wait for a row that no pipeline claims, or be surprised by one that is."""
    database, told = database_with_clock, STATES[state]
    await database.create_tables(Base.metadata)
    row = {name: value_of(told[name], database.clock.now) for name in COLUMNS}
    async with database.engine.begin() as connection:
        await connection.execute(insert(Run).values(id=1, status="queued", **row))
        for name, condition in CONDITIONS.items():
            found = await connection.scalar(select(Run.id).where(condition()))
            assert ("no" if found is None else "yes") == told[name], name


def names_in(cell: str) -> set[str]:
    """Return the columns that a cell of the acts names."""
    return set(re.findall(r"`(\w+)`", cell))


@dataclass
class Watched:
    """The only row of a database, and how it looked at each `look`."""

    database: TemporaryDatabase
    seen: list[dict[str, Any]] = field(default_factory=list)

    async def look(self) -> None:
        async with self.database.session_factory() as session:
            run = await session.get_one(Run, 1)
            names = (*COLUMNS, "attempts", "last_error")
            self.seen.append({name: getattr(run, name) for name in names})

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[tuple[AsyncSession, Run]]:
        """Give the row, to be changed as a service does."""
        async with self.database.session_factory.begin() as session:
            yield session, await session.get_one(Run, 1)

    def stepping(self, **settings: Any) -> AbstractAsyncContextManager[Steps[Any]]:
        return stepping(self.database.session_factory, RunPipeline(**settings))


Act = Callable[[Watched], Awaitable[None]]
"""Looks twice: before the act and behind it."""


async def claim(row: Watched) -> None:
    await row.look()
    async with row.stepping() as steps:
        await steps.fetch_once()
        await row.look()


def write(outcome: Any, **settings: Any) -> Act:
    async def act(row: Watched) -> None:
        async with row.stepping(answer=outcome, **settings) as steps:
            await steps.fetch_once()
            await row.look()
            await steps.work_once()
            await row.look()

    return act


async def meet_a_change(row: Watched) -> None:
    """Have a service change a row while it is worked on."""

    async def answer(_item: PipelineItem[Run]) -> Apply:
        async with row.changing() as (_, run):
            run.status = "cancelled"
        return Apply({"status": "done"}, unless_changed=["status"])

    await write(answer)(row)


async def release(row: Watched) -> None:
    """Claim the row, and end before it is worked on."""
    async with row.stepping() as steps:
        await steps.fetch_once()
        await row.look()
    await row.look()


async def hold(row: Watched) -> None:
    await row.look()
    async with hold_rows(row.database.session_factory, Run, [1]):
        await row.look()


async def end_a_hold(row: Watched) -> None:
    async with hold_rows(row.database.session_factory, Run, [1]):
        await row.look()
    await row.look()


async def sweep(row: Watched) -> None:
    async with row.changing() as (_, run):
        run.lock_token, run.lock_owner = uuid4(), OTHER
        run.lock_expires_at = run.due_at - timedelta(days=1)
    await row.look()
    async with row.stepping() as steps:
        await steps.sweep_once()
    await row.look()


async def be_made_due(row: Watched) -> None:
    await row.look()
    async with row.changing() as (session, run):
        await make_due(session, run)
    await row.look()


async def be_parked(row: Watched) -> None:
    await row.look()
    async with row.changing() as (session, run):
        await park(session, run, "provider down")
    await row.look()


async def lose_its_lease(row: Watched) -> None:
    """Have a person free the row of a holder."""
    async with stepping(row.database.session_factory, RunPipeline()) as steps:
        [item] = await steps.fetch_once()
        await row.look()
        async with row.changing() as (session, _):
            seen = SimpleNamespace(owner=item.lock_owner, token=item.lock_token)
            assert await break_lease(session, RUNS, 1, seen=seen)
        await row.look()


async def be_unparked(row: Watched) -> None:
    """Have a service release a row that was set aside."""
    async with row.changing() as (_, run):
        run.parked_at = run.due_at
    await row.look()
    async with row.changing() as (session, run):
        await unpark(session, run)
    await row.look()


class RequestedPipeline(RunPipeline):
    """Services say by the status what they want."""

    intent = (Run.status,)


async def be_requested(row: Watched) -> None:
    """Have a service ask for something new of a row that was set aside."""
    async with row.changing() as (_, run):
        run.parked_at = run.due_at
    await row.look()
    # What counts as an intent is known as long as the pipeline that names it.
    pipeline = RequestedPipeline()
    async with row.changing() as (session, run):
        await request_update(session, pipeline.model, run.id, {"status": "queued"})
    await row.look()


PLAYED: dict[str, Act] = {
    "claim": claim,
    "Apply": write(Apply()),
    "Retry": write(Retry(error="no")),
    "the last `Retry": write(Retry(error="no"), max_attempts=2),
    "Park": write(Park("no")),
    "Reset": write(Reset()),
    "changed values": meet_a_change,
    "release": release,
    "hold": hold,
    "end of a hold": end_a_hold,
    "sweep": sweep,
    "make_due": be_made_due,
    "park": be_parked,
    "break of a lease": lose_its_lease,
    "unpark": be_unparked,
    "request_update": be_requested,
}


@pytest.mark.parametrize("act", PLAYED)
async def test_act_writes_what_is_told(act: str, database_with_clock: TemporaryDatabase) -> None:
    """Somebody would look for a column that no such act has written."""
    database = database_with_clock
    await database.create_tables(Base.metadata)
    assert database.clock is not None
    past = database.clock.now - timedelta(hours=1)
    row = Run(id=1, due_at=past, last_processed_at=past, attempts=1, last_error="long ago")
    async with database.session_factory.begin() as session:
        session.add(row)
    watched = Watched(database)
    await PLAYED[act](watched)
    earlier, later = watched.seen
    moved = {name for name, value in later.items() if value != earlier[name]}
    assert {name for name in moved if later[name] is None} == names_in(ACTS[act]["clears"])
    assert {name for name in moved if later[name] is not None} == names_in(ACTS[act]["sets"])


def test_renewal_writes_what_is_told() -> None:
    """Somebody would look for a column that no renewal has written."""
    values = renewed_values(RUNS, expires_at=RUNS.column("due_at"))
    # A column that keeps itself is one with an `onupdate`, which must not move.
    written = {column.key for column, value in values.items() if value is not column}
    assert (written, set()) == (names_in(ACTS["renew"]["sets"]), names_in(ACTS["renew"]["clears"]))
