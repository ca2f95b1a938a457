"""What a replica knows of its flow; and the cutter, which looks how far each source is complete,
asks the plan, and records the cuts.

The look and the record are two transactions, and rows are read in a third one (see
``inputs/high_water.py``). Any replica may cut: the record is a compare-and-set on the flow's
`next_step`, so of two that cut at the same time one does, and the other sees its cut.

A look that found nothing holds for as long as what it saw stays so: the row of the flow, the last
visible position of each source and the clock come with one statement, that of `KnownFlow`, so an
idle flow asks that one and no other. A look that was held back by open transactions holds for
nothing: rows may appear below the last position. And each look holds for a while only, since
positions that went back are found by looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from sqlalchemy import and_, bindparam, case, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.clock import monotonic
from rowlock.spi import database_instant, database_time_after
from rowlock.streams.cut_plan import (
    Cut,
    CutBounds,
    FlowCuts,
    NoCut,
    ShardProgress,
    SourceView,
    overdue_at,
    plan_cuts,
    rows_looked_at,
)
from rowlock.streams.flow_view import BEFORE_FIRST, frontier_of, lease_holds
from rowlock.streams.inputs.high_water import HighWater
from rowlock.streams.inputs.source import NO_ROWS
from rowlock.streams.program import FlowProgram
from rowlock.streams.tables import StreamDatabase, Transact

CUTS_READ_MAX = 256
"""Most cuts that are read at once."""


@dataclass(frozen=True, slots=True)
class FlowFacts:
    state: str
    next_step: int  # the first step that is not cut
    checkpoint_requested: bool
    snapshot_requested: bool = False


class Crowd(NamedTuple):
    """How many replicas have a row, how many shards there are, and how many of these are leased."""

    replicas: int
    shards: int
    held: int


@dataclass(frozen=True, slots=True)
class Moment:
    clock: datetime
    # The last position that was visible of each source, in their order; None: no row
    newest: tuple[int | None, ...]
    crowd: Crowd
    is_whole: bool = True  # its shards have each bucket once


class KnownFlow:
    """A flow as one replica knows it; `facts` and `moment` are None if its row was not read."""

    def __init__(self, program: FlowProgram) -> None:
        self.facts: FlowFacts | None = None
        self.moment: Moment | None = None
        self._program = program
        self._cuts: dict[int, Cut] = {}
        self._statement = _all_of(program)

    async def look(self, connection: AsyncConnection, *, first: int) -> None:
        """Read the row, and the cuts from the step before `first` on."""
        self._cuts = {step: cut for step, cut in self._cuts.items() if step >= first - 1}
        known = [step for step in self._cuts if step + 1 not in self._cuts]
        # From the last one on that is known without a gap.
        begin = min(known) if first - 1 in self._cuts else first - 1
        rows = (await connection.execute(self._statement, {"begin": begin})).all()
        self.facts = self.moment = None
        for row in rows[:1]:
            requests = row.checkpoint_requested, row.snapshots_requested > 0
            self.facts = FlowFacts(row.state, row.next_step, *requests)
            newest = tuple(getattr(row, f"newest_{n}") for n in range(len(self._program.sources)))
            crowd = Crowd(row.replicas, row.shards, row.held)
            self.moment = Moment(row.clock, newest, crowd, is_whole=row.frontier is not None)
        for row in rows:
            if row.step is not None:
                flags = row.checkpoint, row.snapshot
                self._cuts[row.step] = Cut(row.step, row.upto, row.now, *flags, bytes=row.bytes)

    def cut(self, step: int) -> Cut | None:
        return self._cuts.get(step)

    def lost_step(self, first: int) -> int | None:
        """Return a step whose row is missing though shards need it that do `first` next."""
        if self.facts is None:
            return None
        needed = (first - 1, first) if first < self.facts.next_step else (first - 1,)
        return next((step for step in needed if step not in self._cuts), None)

    def is_recorded(self, cut: Cut) -> None:
        assert self.facts is not None
        self._cuts[cut.step] = cut
        self.facts = replace(
            self.facts,
            next_step=cut.step + 1,
            checkpoint_requested=self.facts.checkpoint_requested and not cut.is_checkpoint,
            snapshot_requested=self.facts.snapshot_requested and not cut.is_snapshot,
        )

    def is_checkpoint_requested(self) -> None:
        assert self.facts is not None
        self.facts = replace(self.facts, checkpoint_requested=True)

    def has_checkpoint(self, *, first: int) -> bool:
        """Whether states will be written with a cut from `first` on, or with the next cut."""
        is_cut = any(cut.is_checkpoint for step, cut in self._cuts.items() if step >= first)
        return is_cut or (self.facts is not None and self.facts.checkpoint_requested)

    def weight(self, before: Cut, cut: Cut) -> int:
        """Return for how many rows a cut behind `before` counts: as many as it has, or more."""
        return sum(
            (cut.upto[name] - before.upto[name]) * source.rows_per_position
            for name, source in self._program.sources.items()
        )

    def consecutive(self, first: int, most: int) -> list[Cut]:
        """Return the cuts from `first` on without a gap, at most so many."""
        cuts: list[Cut] = []
        while len(cuts) < most and (found := self._cuts.get(first + len(cuts))) is not None:
            cuts.append(found)
        return cuts


def _all_of(program: FlowProgram) -> Any:
    """Return the query for what is known of a flow, with its cuts from `begin` on."""
    tables = program.tables
    flows, steps, shards = tables.flows, tables.steps, tables.shards
    there = select(func.count()).where(tables.replicas.c.flow_id == program.id)
    own = select(func.count()).where(shards.c.flow_id == program.id)
    newest = enumerate(one.newest() for one in program.sources.values())
    names = ("state", "next_step", "checkpoint_requested", "snapshots_requested")
    return (
        select(
            *(flows.c[name] for name in names),
            *(one for one in steps.c if one.key != "flow_id"),
            database_instant().label("clock"),
            *(one.label(f"newest_{n}") for n, one in newest),
            there.scalar_subquery().label("replicas"),
            own.scalar_subquery().label("shards"),
            own.where(lease_holds(tables)).scalar_subquery().label("held"),
            frontier_of(tables, program.id).label("frontier"),
        )
        .select_from(flows)
        .outerjoin(steps, and_(steps.c.flow_id == flows.c.id, steps.c.step >= bindparam("begin")))
        .where(flows.c.id == program.id)
        .order_by(steps.c.step)
        .limit(CUTS_READ_MAX)
    )


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
        marks: Sequence[HighWater],
        *,
        overdue_at: datetime | None,
        now: float,
    ) -> None:
        """Note a look that found nothing."""
        # A checkpoint is due at `overdue_at`, though nothing comes.
        is_complete = all(one.mark >= one.newest for one in marks)
        self._seen = (facts, tuple(one.newest for one in marks)) if is_complete else None
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


SNAPSHOT_KEPT_FOR: Final = timedelta(seconds=60)
"""How long after its cut a snapshot is kept, at most, for its readers."""


class _Look(NamedTuple):
    flow: FlowCuts
    marks: list[HighWater]  # how far each source is
    views: list[SourceView]
    clock: datetime
    slowest: int | None


class Cutter:
    """Cuts steps of one flow for one replica."""

    def __init__(self, program: FlowProgram, transact: Transact) -> None:
        self._program = program
        self._database = StreamDatabase(transact)
        self._quiet = Quiet()
        self._watches = {name: source.watcher() for name, source in program.sources.items()}
        # Built once: to build a statement takes longer than to execute it.
        self._state = _state_of(program)

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
        seen = await self._database.read(
            "look for new rows", lambda connection: self._look(connection, before, facts)
        )
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
            self._quiet.begins(facts, seen.marks, overdue_at=until, now=monotonic())
        if isinstance(plan, NoCut):
            return plan
        if not await self._database.write("cut a step", lambda one: self._record(one, plan)):
            return None
        for cut in plan:
            known.is_recorded(cut)
        return plan

    async def _look(self, connection: AsyncConnection, before: Cut, facts: FlowFacts) -> _Look:
        marks, views = [], []
        most = rows_looked_at(self._program.settings.step_rows_max)
        for name, source in self._program.sources.items():
            recorded = before.upto[name]
            seen = await self._watches[name].look(connection, recorded=recorded)
            marks.append(seen)
            ahead = NO_ROWS
            if seen.mark > recorded:
                ahead = await source.ahead(
                    connection, after=recorded, upto=seen.mark, limit=most + 1
                )
            has_more = len(ahead.positions) > most
            views.append(
                SourceView(name, recorded, seen.mark, ahead.positions, has_more, ahead.sizes)
            )
        state = (await connection.execute(self._state)).one()
        version = state.kept_snapshot
        flow = FlowCuts(
            facts.next_step,
            is_running=facts.state == "running",
            now=None if before.step == BEFORE_FIRST else before.now,
            frontier=state.frontier or 0,
            checkpoint_step=state.checkpoint_step,
            checkpoint_at=state.checkpoint_at,
            # It is a version, and so named by the step behind its cut.
            snapshot_step=None if version is None else version - 1,
            snapshot_in_use=bool(state.is_kept),
            checkpoint_requested=facts.checkpoint_requested,
            snapshot_requested=facts.snapshot_requested,
        )
        return _Look(flow, marks, views, state.clock, state.slowest)

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


def _state_of(program: FlowProgram) -> Any:
    """Return the query for the time, how far a flow and its last checkpoint and snapshot are, and
    the step of the slowest held shard that is not parked.
    """
    tables, is_own = program.tables, program.tables.steps.c.flow_id == program.id
    flows, shards, steps = tables.flows.c, tables.shards.c, tables.steps.c
    slowest = select(func.min(shards.step)).where(
        shards.flow_id == program.id, lease_holds(tables), shards.parked_at.is_(None)
    )
    last = select(func.max(steps.step)).where(is_own, steps.checkpoint).scalar_subquery()
    asked = {
        "slowest": slowest,
        "checkpoint_step": select(last),
        "checkpoint_at": select(steps.now).where(is_own, steps.step == last),
        "kept_snapshot": select(flows.kept_snapshot).where(flows.id == program.id),
        "is_kept": select(flows.kept_until > database_instant()).where(flows.id == program.id),
    }
    return select(
        database_instant().label("clock"),
        frontier_of(tables, program.id).label("frontier"),
        *(one.scalar_subquery().label(name) for name, one in asked.items()),
    )
