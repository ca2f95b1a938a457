"""What a replica knows of a flow's row and of its cuts: read in one statement, and kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar

from sqlalchemy import and_, bindparam, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.streams.cutting.plan import Cut
from rowlock.streams.tables import StreamTables

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
    ) -> T:
        """Return what `work` returns, behind its commit."""
        ...


@dataclass(frozen=True, slots=True)
class RecordedCut:
    """A step, as it was recorded.

    Attributes:
        step: its number; `BEFORE_FIRST` where the first step begins.
        upto: by source, the last position that belongs to it.
        now: its time.
        is_checkpoint: all shards write their states with it.
        is_snapshot: and keep these states.
    """

    step: int
    upto: Mapping[str, int]
    now: datetime
    is_checkpoint: bool
    is_snapshot: bool


@dataclass(frozen=True, slots=True)
class FlowFacts:
    """The row of a flow.

    Attributes:
        state: ``running``, ``paused`` or ``stopped``.
        next_step: the first step that is not cut.
        checkpoint_requested: the next cut is a checkpoint.
        shards_wanted: how many shards there are to be; None: as many as there are.
        fingerprint: of the flow that wrote the row.
    """

    state: str
    next_step: int
    checkpoint_requested: bool
    shards_wanted: int | None
    fingerprint: str


class KnownFlow:
    """A flow as one replica knows it.

    Attributes:
        facts: its row; None as long as it was not read, or is not there.
    """

    def __init__(self, tables: StreamTables, flow_id: int) -> None:
        self.facts: FlowFacts | None = None
        self._id = flow_id
        self._cuts: dict[int, RecordedCut] = {}
        self._statement = _statement(tables)

    def __repr__(self) -> str:
        return f"<KnownFlow, {self.facts}, {len(self._cuts)} cuts>"

    async def look(self, connection: AsyncConnection, *, first: int) -> None:
        """Read the row, and the cuts from the step before `first` on; joins the caller's
        transaction.
        """
        self.forget(below=first - 1)
        known = [step for step in self._cuts if step + 1 not in self._cuts]
        # From the last one on that is known without a gap.
        begin = min(known) if first - 1 in self._cuts else first - 1
        given = {"flow": self._id, "begin": begin}
        rows = (await connection.execute(self._statement, given)).all()
        self.facts = _facts_of(rows[0]) if rows else None
        for row in rows:
            if row.step is not None:
                self._cuts[row.step] = _cut_of(row)

    def cut(self, step: int) -> RecordedCut | None:
        """Return a cut; None if it is not known."""
        return self._cuts.get(step)

    def is_recorded(self, cut: Cut) -> None:
        """Note a cut that was made here."""
        assert self.facts is not None
        self._cuts[cut.step] = RecordedCut(
            cut.step, cut.upto, cut.now, cut.is_checkpoint, cut.is_snapshot
        )
        requested = self.facts.checkpoint_requested and not cut.is_checkpoint
        self.facts = replace(self.facts, next_step=cut.step + 1, checkpoint_requested=requested)

    def forget(self, *, below: int) -> None:
        """Forget cuts that no shard here needs any more."""
        for step in [step for step in self._cuts if step < below]:
            del self._cuts[step]

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
    )


def _cut_of(row: Any) -> RecordedCut:
    return RecordedCut(row.step, row.upto, row.now, row.checkpoint, row.snapshot)


def _statement(tables: StreamTables) -> Any:
    flows, steps = tables.flows, tables.steps
    return (
        select(
            flows.c.state,
            flows.c.next_step,
            flows.c.checkpoint_requested,
            flows.c.shards_wanted,
            flows.c.fingerprint,
            steps.c.step,
            steps.c.upto,
            steps.c.now,
            steps.c.checkpoint,
            steps.c.snapshot,
        )
        .select_from(flows)
        .outerjoin(steps, and_(steps.c.flow_id == flows.c.id, steps.c.step >= bindparam("begin")))
        .where(flows.c.id == bindparam("flow"))
        .order_by(steps.c.step)
        .limit(CUTS_READ_MAX)
    )
