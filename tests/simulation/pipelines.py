"""What the pipelines of the simulation do: each attempt follows a plan that was drawn for it.

The plans are what hosts do, good and bad: succeed, fail, wait for long, lock late, lock twice or
not at all, swallow a refusal, ignore their cancellation, leave a lock being taken behind them. As
soon as the disturbance is over, every attempt does its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from sqlalchemy import ColumnElement, or_

from rowlock import (
    Apply,
    Outcome,
    Park,
    Pipeline,
    PipelineItem,
    RelatedLockUnavailable,
    Reset,
    Retry,
)
from rowlock.graph import GraphPipeline, Items, Outcomes

from .book import Book, Place, Work
from .tables import Fleet, Instance, Job, Mount, Volume

ENDINGS: Final = (
    *("apply",) * 4,
    "apply more",
    "apply unnamed",
    "retry",
    "reset",
    "park",
    "raise",
    "hang",
    "ignore",
    "leave behind",
    "fail to apply",
)
DURATIONS_S: Final = (0, 0, 0.05, 0.4, 1, 3, 8)
TURNS_MAX: Final = 20
"""A statement takes some turns of the loop, a transaction about this many."""
FAILING: Final = "a deliberate failure"


@dataclass(frozen=True, slots=True)
class Plan:
    """What one attempt does.

    Attributes:
        before_s: rest before the locks are taken.
        locks: how often they are taken.
        swallows: goes on without them if they are not to be had.
        after_s: rest with the locks in hand.
        ending: how it ends.
    """

    before_s: float
    locks: int
    swallows: bool
    after_s: float
    ending: str


CALM: Final = Plan(0.05, locks=1, swallows=False, after_s=0.05, ending="apply")


class Director:
    """Draws plans, and sees to it that they are followed.

    Attributes:
        left_behind: locks being taken that nobody waits for.
    """

    def __init__(
        self,
        rng: Random,
        book: Book,
        exists: Callable[[str, str, int], set[Place]],
        is_calm: Callable[[], bool],
    ) -> None:
        """`exists` returns those rows of a table whose column has a value; `is_calm` says that the
        disturbance is over.
        """
        self.book = book
        self._is_calm = is_calm
        self.left_behind: set[asyncio.Task[Any]] = set()
        self._rng = rng
        self._exists = exists

    def draw(self) -> Plan:
        if self._is_calm():
            return CALM
        rng = self._rng
        return Plan(
            rng.choice(DURATIONS_S),
            locks=rng.choice((1, 1, 1, 1, 2, 0)),
            swallows=rng.random() < 0.2,
            after_s=rng.choice(DURATIONS_S),
            ending=rng.choice(ENDINGS),
        )

    async def perform(self, pipeline: SimulatedPipeline, item: PipelineItem[Any]) -> Outcome:
        plan, mark = self.draw(), str(item.lock_token)[:8]
        place = (item.row.__tablename__, item.id)
        who = f"{pipeline.replica} {pipeline.name} of {place[0]} {item.id} ({mark})"
        self.book.note(
            f"{who} begins: {plan.before_s:g} s, {plan.locks} locks, {plan.after_s:g} s,"
            f" {plan.ending}"
        )
        with self.book.at_work(
            who, [place], lambda: item.is_trusted() and not pipeline.is_gone()
        ) as work:
            await asyncio.sleep(plan.before_s)
            if plan.ending == "leave behind":
                return await self._leave_behind(pipeline, item)
            rows: list[Any] = []
            for _ in range(plan.locks if pipeline.related is not None else 0):
                rows = await self._lock(pipeline, item, work) or rows
                if not rows and not plan.swallows:
                    raise RelatedLockUnavailable(model=str(pipeline.related), wanted=1, available=0)
            await self._rest(plan, pipeline, item)
            self.book.note(f"{who} ends: {plan.ending}")
            return self._outcome(plan, item, rows)

    async def _lock(
        self, pipeline: SimulatedPipeline, item: PipelineItem[Any], work: Work
    ) -> list[Any]:
        where, wanted = pipeline.wants(item)
        # A row may come between the commit and its answer, for which a frozen replica waits long.
        were_there = self._exists(*wanted)
        try:
            rows = await item.lock_related(pipeline.related, where, shared=pipeline.is_shared)  # type: ignore[type-var]
        except RelatedLockUnavailable:
            self.book.note(f"{work.who} cannot lock")
            return []
        locked = {(wanted[0], row.id) for row in rows}
        self.book.note(f"{work.who} locked {sorted(locked)}")
        self.book.take_up(work, locked)
        if missing := (were_there & self._exists(*wanted)) - locked:
            self.book.wrong(f"{work.who} locked {sorted(locked)}, but not {sorted(missing)}")
        return rows or [None]

    async def _rest(self, plan: Plan, pipeline: SimulatedPipeline, item: PipelineItem[Any]) -> None:
        match plan.ending:
            case "hang":
                await asyncio.Event().wait()
            case "ignore":
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    await asyncio.sleep(plan.after_s)
                    if pipeline.related is not None:
                        await item.lock_related(
                            pipeline.related, pipeline.wants(item)[0], shared=pipeline.is_shared
                        )
            case _:
                await asyncio.sleep(plan.after_s)

    async def _leave_behind(self, pipeline: SimulatedPipeline, item: PipelineItem[Any]) -> Outcome:
        if pipeline.related is not None:
            locking = item.lock_related(
                pipeline.related, pipeline.wants(item)[0], shared=pipeline.is_shared
            )
            self.left_behind.add(asyncio.create_task(locking, name="a lock left behind"))
        for _ in range(self._rng.randint(0, TURNS_MAX)):
            await asyncio.sleep(0)
        return self._applied(item, [], "done")

    def _outcome(self, plan: Plan, item: PipelineItem[Any], rows: list[Any]) -> Outcome:
        can_park = hasattr(item.row, "parked_at")
        if plan.ending == "raise" or (plan.ending == "park" and not can_park):
            raise RuntimeError(FAILING)
        endings: dict[str, Callable[[], Outcome]] = {
            "retry": lambda: Retry(error="as planned"),
            "reset": Reset,
            "ignore": Reset,
            "park": lambda: Park("as planned"),
            "fail to apply": lambda: Apply({"status": "done"}, also=_fail),
            "apply unnamed": lambda: self._applied(item, [], "done"),
            "apply more": lambda: self._applied(item, rows, "todo"),
        }
        return endings.get(plan.ending, lambda: self._applied(item, rows, "done"))()

    def _applied(self, item: PipelineItem[Any], rows: list[Any], status: str) -> Apply:
        mark = str(item.lock_token)
        named = [row for row in rows if row is not None]
        self.book.related[mark] = {(row.__tablename__, row.id) for row in named}
        related = {row: {"touched": row.touched + 1, "touched_by": mark} for row in named}
        # As hosts do, it writes back what it has read: the pipeline's `intent` must keep it from
        # undoing what a service asked for.
        values = {
            "status": status,
            "seen": item.row.wanted,
            "wanted": item.row.wanted,
            "mark": mark,
        }
        return Apply(values, related=related)


SCHEDULED: dict[str, Any] = {"retry_delay_max": 2, "max_attempts": 50}


def settings_for(model: type[Any]) -> dict[str, Any]:
    """Return the settings that have an effect on rows with a schedule alone."""
    return SCHEDULED if hasattr(model, "due_at") else {}


class SimulatedPipeline(Pipeline[Any]):
    """Leaves everything to the director.

    Attributes:
        replica: whose it is.
        is_gone: whether nobody works here any more, for now or for good.
        related: the model of which it locks rows.
        is_shared: whether others of its kind want the same rows.
    """

    related: type[Any] | None = None
    is_shared = False

    workers_num = 3
    min_processing_interval = 0.5
    lock_timeout = 6
    heartbeat_trigger = 3
    heartbeat_interval = 0.4
    renew_timeout = 1
    fetch_delays = (0.5, 1)
    database_timeout = 3
    process_timeout = 12
    cancel_grace = 1
    retry_delay = 0.5
    orphaned_after = 15

    def __init__(self, replica: str, director: Director) -> None:
        super().__init__(**settings_for(self.model))
        self.replica = replica
        self.is_gone: Callable[[], bool] = lambda: False
        self.director = director

    def ready(self) -> ColumnElement[bool]:
        return or_(self.model.status != "done", self.model.seen != self.model.wanted)

    def wants(self, item: PipelineItem[Any]) -> tuple[ColumnElement[bool], tuple[str, str, int]]:
        """Return which rows an item locks, as an expression and as table, column and value."""
        raise NotImplementedError

    async def process(self, item: PipelineItem[Any]) -> Outcome:
        return await self.director.perform(self, item)

    async def on_stale(self, item: PipelineItem[Any], outcome: Outcome) -> None:  # type: ignore[override]
        """Clean up in the loop: the virtual loop knows nothing of threads."""


class FleetPipeline(SimulatedPipeline):
    model, related, locks, intent = Fleet, Instance, (Instance,), (Fleet.wanted,)

    def wants(self, item: PipelineItem[Any]) -> tuple[ColumnElement[bool], tuple[str, str, int]]:
        return Instance.fleet_id == item.id, ("instances", "fleet_id", item.id)


class InstancePipeline(SimulatedPipeline):
    model, related, locks, intent = Instance, Job, (Job,), (Instance.wanted,)

    def wants(self, item: PipelineItem[Any]) -> tuple[ColumnElement[bool], tuple[str, str, int]]:
        return Job.instance_id == item.id, ("jobs", "instance_id", item.id)


class JobPipeline(SimulatedPipeline):
    model, intent = Job, (Job.wanted,)


class GraphOfRows(GraphPipeline[Any], SimulatedPipeline):
    """Has its rows pass through one graph: they are looked at alone, then together, and then each
    is worked on as in any other pipeline.
    """

    workers_num = 3

    def __init__(self, replica: str, director: Director) -> None:
        super().__init__(replica=replica, director=director)  # type: ignore[call-arg]

    def build(self, items: Items[Any]) -> Outcomes:
        return (
            items.amap(self.look, lanes=2, timeout=60)
            .amap_batch(self.look_at_all, size=3, within=0.1)
            .amap(self.perform, lanes=3, keep_order=lambda item: item.id)
        )

    async def look(self, item: PipelineItem[Any]) -> PipelineItem[Any]:
        await asyncio.sleep(0.01)
        return item

    async def look_at_all(self, items: Sequence[PipelineItem[Any]]) -> Sequence[PipelineItem[Any]]:
        await asyncio.sleep(0.05)
        return items

    async def perform(self, item: PipelineItem[Any]) -> Outcome:
        return await self.director.perform(self, item)


class JobGraphPipeline(GraphOfRows):
    model, intent = Job, (Job.wanted,)


class MountPipeline(SimulatedPipeline):
    model, related, locks, intent, is_shared = Mount, Volume, (Volume,), (Mount.wanted,), True

    def wants(self, item: PipelineItem[Any]) -> tuple[ColumnElement[bool], tuple[str, str, int]]:
        return Volume.id == item.row.volume_id, ("volumes", "id", item.row.volume_id)


class VolumePipeline(SimulatedPipeline):
    model, intent = Volume, (Volume.wanted,)


class VolumeGraphPipeline(GraphOfRows):
    model, intent = Volume, (Volume.wanted,)


async def _fail(*_: object) -> None:
    raise RuntimeError(FAILING)
