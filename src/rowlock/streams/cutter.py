"""Cuts steps: looks how far each source is complete, asks the plan, and records what it says.

The look and the record are two transactions, and rows are read in a third one (see
``inputs/high_water.py``). Any replica may cut: the record is a compare-and-set on the flow's
`next_step`, so of two that cut at the same time one does, and the other sees its cut.

A look that found nothing holds for as long as what it saw stays so: the row of the flow, the last
visible position of each source and the clock come with one statement (``flow_view.py``), so an idle
flow asks that one and no other. A look that was held back by open transactions holds for nothing:
rows may appear below the last position. And each look holds for a while only, since positions that
went back are found by looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import case, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.clock import monotonic
from rowlock.spi import database_instant, database_time_after
from rowlock.streams.cut_plan import (
    Checkpoint,
    Cut,
    CutBounds,
    FlowCuts,
    NoCut,
    ShardProgress,
    SourceView,
    plan_cuts,
    rows_looked_at,
)
from rowlock.streams.flow_view import (
    BEFORE_FIRST,
    FlowFacts,
    KnownFlow,
    Moment,
    RecordedCut,
    Transact,
    frontier_of,
)
from rowlock.streams.inputs.high_water import HighWater
from rowlock.streams.inputs.source import NO_ROWS
from rowlock.streams.program import FlowProgram

HOLDS_FOR_S = 300.0
"""How long a look that found nothing holds, in seconds."""


class Quiet:
    """What the last look that found nothing saw; belongs to one replica."""

    def __init__(self) -> None:
        self._seen: tuple[FlowFacts, tuple[int, ...]] | None = None
        self._until: datetime | None = None
        self._ends_at = 0.0

    def ends(self) -> None:
        self._seen = None

    def begins(
        self,
        facts: FlowFacts,
        marks: Iterable[HighWater],
        *,
        overdue_at: datetime | None,
        now: float,
    ) -> None:
        """Note a look that found nothing."""
        # A checkpoint is due at `overdue_at`, though nothing comes.
        seen = list(marks)
        is_complete = all(one.mark >= one.newest for one in seen)
        self._seen = (facts, tuple(one.newest for one in seen)) if is_complete else None
        self._until, self._ends_at = overdue_at, now + HOLDS_FOR_S

    def holds(
        self, facts: FlowFacts, moment: Moment, timers: Iterable[datetime], *, now: float
    ) -> bool:
        """Return whether a look would find nothing again; `timers`: the earliest of each shard."""
        newest = tuple(position or 0 for position in moment.newest)
        due = [*timers, *(() if self._until is None else (self._until,))]
        return (
            self._seen == (facts, newest)
            and now < self._ends_at
            and all(moment.clock < at for at in due)
        )


def overdue_at(flow: FlowCuts, checkpoint: Checkpoint) -> datetime | None:
    """Return when a checkpoint is to be made though nothing comes; None if never."""
    before = -1 if flow.checkpoint_step is None else flow.checkpoint_step
    if checkpoint.seconds is None or flow.next_step - before <= 1 or flow.checkpoint_at is None:
        return None
    return flow.checkpoint_at + timedelta(seconds=checkpoint.seconds)


SNAPSHOT_KEPT_FOR: Final = timedelta(seconds=60)
"""How long after its cut a snapshot is kept, at most, for its readers."""


class _Look(NamedTuple):
    flow: FlowCuts
    views: list[SourceView]
    clock: datetime
    slowest: int | None


class Cutter:
    """Cuts steps of one flow for one replica; `marks`: how far each source was at the last look."""

    def __init__(self, program: FlowProgram, transact: Transact) -> None:
        self.marks: dict[str, HighWater] = {}
        self._program = program
        self._transact = transact
        self._quiet = Quiet()
        self._watches = {name: source.watcher() for name, source in program.sources.items()}
        # Built once: to build a statement takes longer than to execute it.
        self._clock_and_slowest = _clock_and_slowest(program)

    def looks_next(self) -> None:
        """Have the next cut look at the sources, whatever is known."""
        self._quiet.ends()

    async def cut(
        self, known: KnownFlow, shards: Iterable[ShardProgress]
    ) -> Sequence[Cut] | NoCut | None:
        """Cut the next step, and more if the flow lags; None if another replica was first."""
        # `known` has the cut before the next one.
        facts, moment, progress = known.facts, known.moment, list(shards)
        assert facts is not None
        assert moment is not None
        timers = [shard.timer_at for shard in progress if shard.timer_at is not None]
        if self._quiet.holds(facts, moment, timers, now=monotonic()):
            return NoCut.NOTHING_NEW
        before = known.cut(facts.next_step - 1)
        assert before is not None

        async def look(session: AsyncSession, connection: AsyncConnection) -> _Look:
            return await self._look(connection, before, facts)

        seen = await self._transact(look, purpose="look for new rows", writes=False)
        if seen.slowest is not None:
            progress.append(ShardProgress(seen.slowest))
        settings = self._program.settings
        plan = plan_cuts(
            seen.flow,
            seen.views,
            progress,
            clock=seen.clock,
            checkpoint=self._program.checkpoint,
            bounds=CutBounds(
                settings.step_rows_max,
                settings.step_bytes_max,
                settings.steps_ahead_max,
                settings.dirty_keys_max,
            ),
        )
        # A snapshot that waits for an earlier one may be cut with the row of the flow as it is.
        if plan is NoCut.NOTHING_NEW and not facts.snapshot_requested:
            until = overdue_at(seen.flow, self._program.checkpoint)
            marks = [self.marks[name] for name in self._program.sources]
            self._quiet.begins(facts, marks, overdue_at=until, now=monotonic())
        if isinstance(plan, NoCut):
            return plan

        async def record(session: AsyncSession, connection: AsyncConnection) -> bool:
            return await self._record(connection, plan)

        if not await self._transact(record, purpose="cut a step"):
            return None
        for cut in plan:
            known.is_recorded(cut)
        return plan

    async def _look(
        self, connection: AsyncConnection, before: RecordedCut, facts: FlowFacts
    ) -> _Look:
        views = []
        most = rows_looked_at(self._program.settings.step_rows_max)
        for name, source in self._program.sources.items():
            recorded = before.upto[name]
            seen = await self._watches[name].look(connection, recorded=recorded)
            self.marks[name] = seen
            ahead = NO_ROWS
            if seen.mark > recorded:
                ahead = await source.ahead(
                    connection, after=recorded, upto=seen.mark, limit=most + 1
                )
            has_more = len(ahead.positions) > most
            views.append(
                SourceView(
                    name,
                    recorded,
                    seen.mark,
                    ahead.positions,
                    has_more=has_more,
                    sizes=ahead.sizes,
                )
            )
        clock, slowest = tuple((await connection.execute(self._clock_and_slowest)).one())
        assert isinstance(clock, datetime)
        checkpoint = await self._last_checkpoint(connection)
        flow = FlowCuts(
            facts.next_step,
            is_running=facts.state == "running",
            now=None if before.step == BEFORE_FIRST else before.now,
            checkpoint_step=None if checkpoint is None else checkpoint.step,
            checkpoint_at=None if checkpoint is None else checkpoint.now,
            checkpoint_requested=facts.checkpoint_requested,
            snapshot_requested=facts.snapshot_requested,
        )
        if facts.snapshot_requested:
            flow = await self._with_last_snapshot(connection, flow)
        return _Look(flow, views, clock, slowest)

    async def _with_last_snapshot(self, connection: AsyncConnection, flow: FlowCuts) -> FlowCuts:
        flows = self._program.tables.flows
        frontier = frontier_of(self._program.tables, self._program.id)
        is_kept = flows.c.kept_until > database_instant()
        found = select(flows.c.kept_snapshot, is_kept, frontier)
        row = await connection.execute(found.where(flows.c.id == self._program.id))
        version, kept, lowest = tuple(row.one())
        return replace(
            flow,
            frontier=lowest or 0,
            # It is a version, and so named by the step behind its cut.
            snapshot_step=None if version is None else version - 1,
            snapshot_in_use=bool(kept),
        )

    async def _last_checkpoint(self, connection: AsyncConnection) -> Any:
        """Return step and time of the last checkpoint, where that matters."""
        if self._program.checkpoint.steps == 1:
            return None
        steps = self._program.tables.steps
        found = (
            select(steps.c.step, steps.c.now)
            .where(steps.c.flow_id == self._program.id, steps.c.checkpoint)
            .order_by(steps.c.step.desc())
            .limit(1)
        )
        return (await connection.execute(found)).first()

    async def _record(self, connection: AsyncConnection, cuts: Sequence[Cut]) -> bool:
        flows, steps = self._program.tables.flows, self._program.tables.steps
        first, last = cuts[0], cuts[-1]
        values: dict[str, Any] = {
            "next_step": last.step + 1,
            "upto": dict(last.upto),
            "now": last.now,
        }
        if any(cut.is_checkpoint for cut in cuts):
            values["checkpoint_requested"] = False
        if last.is_snapshot:
            # That no snapshot is kept was seen before `next_step` was compared, and only the cut
            # of a step has one kept.
            values |= {
                "kept_snapshot": last.step + 1,
                # A reader may have given up since its request was seen.
                "kept_until": case(
                    (flows.c.snapshots_requested > 0, database_time_after(SNAPSHOT_KEPT_FOR)),
                    else_=None,
                ),
                "kept_by": flows.c.snapshots_requested,
                "snapshots_requested": 0,
            }
        moved = await connection.execute(
            update(flows)
            .where(
                flows.c.id == self._program.id,
                flows.c.next_step == first.step,
                flows.c.state == "running",
            )
            .values(values)
        )
        if moved.rowcount == 0:
            return False
        await connection.execute(
            insert(steps),
            [
                {
                    "flow_id": self._program.id,
                    "step": cut.step,
                    "upto": dict(cut.upto),
                    "now": cut.now,
                    "checkpoint": cut.is_checkpoint,
                    "snapshot": cut.is_snapshot,
                    "bytes": cut.bytes,
                }
                for cut in cuts
            ],
        )
        return True


def _clock_and_slowest(program: FlowProgram) -> Any:
    """Return the query for the time and the step of the slowest held shard that is not parked."""
    shards = program.tables.shards
    slowest = select(func.min(shards.c.step)).where(
        shards.c.flow_id == program.id,
        shards.c.lock_token.is_not(None),
        shards.c.lock_expires_at > database_instant(),
        shards.c.parked_at.is_(None),
    )
    return select(database_instant(), slowest.scalar_subquery())
