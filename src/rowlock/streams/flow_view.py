"""What a replica knows of a flow's row and of its cuts, read in one statement and kept; and how far
all shards are.

The same statement tells whether something has changed since then: an idle flow asks nothing else.

The frontier and the proof of it are one statement, too. Where the row of a shard is missing, the
lowest step of the others says nothing about its buckets, so the frontier is null, and every reader
stops with `ShardsMissingError`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

from sqlalchemy import ScalarSelect, and_, bindparam, case, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.spi import database_instant
from rowlock.streams.computing.hashing import BUCKETS
from rowlock.streams.cut_plan import Cut
from rowlock.streams.shards.layout import check_layout
from rowlock.streams.tables import StreamTables, key_of


def frontier_of(tables: StreamTables, flow_id: Any, *, column: str = "step") -> ScalarSelect[Any]:
    """Return the query for the lowest step, or `column`, of a flow; null if shards are missing."""
    c = tables.shards.c
    begins_at = func.coalesce(func.lag(c.hi).over(order_by=c.lo), 0)
    columns = (c.lo, c.hi, c[column].label("at"), begins_at.label("begins_at"))
    own = select(*columns).where(c.flow_id == flow_id).subquery().c
    is_gap = case((own.lo != own.begins_at, 1), else_=0)
    covers = and_(func.sum(is_gap) == 0, func.sum(own.hi - own.lo) == BUCKETS)
    return select(case((covers, func.min(own.at)))).scalar_subquery()


async def read_frontier(connection: AsyncConnection, tables: StreamTables, flow: str) -> int | None:
    """Return the first step that is not done by all shards, None if there is no such flow."""
    found: int | None = await connection.scalar(select(frontier_of(tables, key_of("flow", flow))))
    if found is None:
        await check_shards(connection, tables, flow)
    return found


async def check_shards(connection: AsyncConnection, tables: StreamTables, flow: str) -> None:
    """Refuse to read a flow that lacks shards, unless it is new."""
    flow_id, flows, shards = key_of("flow", flow), tables.flows.c, tables.shards.c
    if await connection.scalar(select(flows.id).where(flows.id == flow_id)) is not None:
        found = select(shards.lo, shards.hi).where(shards.flow_id == flow_id)
        check_layout(flow, await connection.execute(found))


T = TypeVar("T")

CUTS_READ_MAX = 256
"""Most cuts that are read at once."""
BEFORE_FIRST = -1
"""The number of the row among the steps that says where the first step begins."""


class Transact(Protocol):
    """Runs work in one transaction of its own: `PipelineContext.transact`."""

    async def __call__(
        self,
        work: Callable[[AsyncSession, AsyncConnection], Awaitable[T]],
        *,
        purpose: str,
        writes: bool = True,
        autocommit: bool = False,
    ) -> T: ...


@dataclass(frozen=True, slots=True)
class RecordedCut:
    step: int  # its number; `BEFORE_FIRST` where the first step begins
    upto: Mapping[str, int]  # by source, the last position that belongs to it
    now: datetime
    is_checkpoint: bool
    is_snapshot: bool
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class FlowFacts:
    state: str
    next_step: int  # the first step that is not cut
    checkpoint_requested: bool
    shards_wanted: int | None  # how many shards there are to be; None: as many as there are
    fingerprint: str  # of the flow that wrote the row
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

    def __init__(
        self,
        tables: StreamTables,
        flow_id: int,
        newest: Sequence[ScalarSelect[Any]] = (),
        *,
        rows_per_position: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.facts: FlowFacts | None = None
        self.moment: Moment | None = None
        self._rows_per_position = rows_per_position
        self._id = flow_id
        self._cuts: dict[int, RecordedCut] = {}
        self._newest = [f"newest_{number}" for number, _ in enumerate(newest)]
        self._statement = _statement(tables, newest, self._newest)

    async def look(self, connection: AsyncConnection, *, first: int) -> None:
        """Read the row, and the cuts from the step before `first` on."""
        self.forget(below=first - 1)
        known = [step for step in self._cuts if step + 1 not in self._cuts]
        # From the last one on that is known without a gap.
        begin = min(known) if first - 1 in self._cuts else first - 1
        given = {"flow": self._id, "begin": begin}
        rows = (await connection.execute(self._statement, given)).all()
        self.facts = _facts_of(rows[0]) if rows else None
        self.moment = self._moment_of(rows[0]) if rows else None
        for row in rows:
            if row.step is not None:
                self._cuts[row.step] = RecordedCut(
                    row.step, row.upto, row.now, row.checkpoint, row.snapshot, row.bytes
                )

    def _moment_of(self, row: Any) -> Moment:
        newest = tuple(getattr(row, name) for name in self._newest)
        crowd = Crowd(row.replicas, row.shards, row.held)
        return Moment(row.clock, newest, crowd, is_whole=row.frontier is not None)

    def cut(self, step: int) -> RecordedCut | None:
        return self._cuts.get(step)

    def lost_step(self, first: int) -> int | None:
        """Return a step whose row is missing though shards need it that do `first` next."""
        if self.facts is None:
            return None
        needed = (first - 1, first) if first < self.facts.next_step else (first - 1,)
        return next((step for step in needed if step not in self._cuts), None)

    def is_recorded(self, cut: Cut) -> None:
        assert self.facts is not None
        self._cuts[cut.step] = RecordedCut(
            cut.step, cut.upto, cut.now, cut.is_checkpoint, cut.is_snapshot, cut.bytes
        )
        requested = self.facts.checkpoint_requested and not cut.is_checkpoint
        self.facts = replace(
            self.facts,
            next_step=cut.step + 1,
            checkpoint_requested=requested,
            snapshot_requested=self.facts.snapshot_requested and not cut.is_snapshot,
        )

    def is_checkpoint_requested(self) -> None:
        assert self.facts is not None
        self.facts = replace(self.facts, checkpoint_requested=True)

    def has_checkpoint(self, *, first: int) -> bool:
        """Whether states will be written with a cut from `first` on, or with the next cut."""
        is_cut = any(cut.is_checkpoint for step, cut in self._cuts.items() if step >= first)
        return is_cut or (self.facts is not None and self.facts.checkpoint_requested)

    def forget(self, *, below: int) -> None:
        for step in [step for step in self._cuts if step < below]:
            del self._cuts[step]

    def weight(self, before: RecordedCut, cut: RecordedCut) -> int:
        """Return for how many rows a cut behind `before` counts: as many as it has, or more."""
        return sum(
            (upto - before.upto[name]) * self._rows_per_position.get(name, 1)
            for name, upto in cut.upto.items()
        )

    def consecutive(self, first: int, most: int) -> list[RecordedCut]:
        """Return the cuts from `first` on without a gap, at most so many."""
        cuts: list[RecordedCut] = []
        while len(cuts) < most and (found := self._cuts.get(first + len(cuts))) is not None:
            cuts.append(found)
        return cuts


def _facts_of(row: Any) -> FlowFacts:
    return FlowFacts(
        row.state,
        row.next_step,
        row.checkpoint_requested,
        row.shards_wanted,
        row.fingerprint,
        row.snapshots_requested > 0,
    )


def _statement(
    tables: StreamTables, newest: Sequence[ScalarSelect[Any]], names: Sequence[str]
) -> Any:
    flows, steps = tables.flows, tables.steps
    last = [one.label(name) for one, name in zip(newest, names, strict=True)]
    return (
        select(
            flows.c.state,
            flows.c.next_step,
            flows.c.checkpoint_requested,
            flows.c.shards_wanted,
            flows.c.fingerprint,
            flows.c.snapshots_requested,
            steps.c.step,
            steps.c.upto,
            steps.c.now,
            steps.c.checkpoint,
            steps.c.snapshot,
            steps.c.bytes,
            database_instant().label("clock"),
            *last,
            *_crowd(tables),
        )
        .select_from(flows)
        .outerjoin(steps, and_(steps.c.flow_id == flows.c.id, steps.c.step >= bindparam("begin")))
        .where(flows.c.id == bindparam("flow"))
        .order_by(steps.c.step)
        .limit(CUTS_READ_MAX)
    )


def lease_holds(tables: StreamTables) -> Any:
    c = tables.shards.c
    return func.coalesce(
        and_(c.lock_token.is_not(None), c.lock_expires_at > database_instant()), False
    )


def _crowd(tables: StreamTables) -> list[Any]:
    replicas, shards = tables.replicas, tables.shards
    flow: Any = bindparam("flow")
    there = select(func.count()).select_from(replicas).where(replicas.c.flow_id == flow)
    own = select(func.count()).select_from(shards).where(shards.c.flow_id == flow)
    return [
        there.scalar_subquery().label("replicas"),
        own.scalar_subquery().label("shards"),
        own.where(lease_holds(tables)).scalar_subquery().label("held"),
        frontier_of(tables, flow).label("frontier"),
    ]
