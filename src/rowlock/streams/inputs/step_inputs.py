"""What a step was made of: its events, read again from the sources.

A step is a cut through the sources, so its events are found by their positions, as long as they are
kept. The functions here join the transaction of the session that is their first parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.stream_errors import NotProcessedYet, StepExpired
from rowlock.streams.computing.buckets import BucketRange
from rowlock.streams.computing.hashing import BUCKETS
from rowlock.streams.computing.rows import SourceRows
from rowlock.streams.cutting.flow_view import BEFORE_FIRST, RecordedCut
from rowlock.streams.inputs.arguments import check_whole_number
from rowlock.streams.inputs.source import Source
from rowlock.streams.tables import StreamTables

E = TypeVar("E")

ALL_BUCKETS = BucketRange(0, BUCKETS)


class InputRow(NamedTuple, Generic[E]):
    """One event of a step.

    Attributes:
        source: the name of its stream.
        position: in that stream.
        key: its text.
        value: the event, as handlers get it.
    """

    source: str
    position: int
    key: str
    value: E


@dataclass(frozen=True, slots=True)
class StepInputs(Generic[E]):
    """The events of one step, of all shards.

    Attributes:
        step: its number.
        now: its time, as handlers saw it.
        rows: the events: source by source, by position.
    """

    step: int
    now: datetime
    rows: Sequence[InputRow[E]]

    @property
    def values(self) -> list[E]:
        """The events, in the order of `rows`."""
        return [row.value for row in self.rows]


class FlowSources(NamedTuple):
    """A flow, as far as its inputs can be read.

    Attributes:
        name: of the flow.
        id: the key of its row.
        sources: what it reads, by name.
        tables: of the wing.
    """

    name: str
    id: int
    sources: Mapping[str, Source[Any]]
    tables: StreamTables


async def inputs_of(connection: AsyncConnection, flow: FlowSources, step: int) -> StepInputs[Any]:
    """Return the events of a step.

    Raises:
        NotProcessedYet: there is no such step yet.
        StepExpired: the step, or an event of it, is kept no longer.
        ValueError: an event cannot be read any more.
        ConfigurationError: it is no number of a step.
    """
    check_whole_number(step, "a step", low=BEFORE_FIRST)
    before, cut = await cut_pair(connection, flow, step)
    rows: list[InputRow[Any]] = []
    for part in await rows_of(connection, flow, before=before, cut=cut):
        values = part.decoder.build(part.decoder.parse(part.raw))
        for position, key, value in zip(part.positions, part.keys, values, strict=True):
            rows.append(InputRow(part.source, position, key, value))
    return StepInputs(step, cut.now, rows)


async def cut_pair(
    connection: AsyncConnection, flow: FlowSources, step: int
) -> tuple[RecordedCut, RecordedCut]:
    """Return the cut before a step, and its own; joins the caller's transaction.

    Raises:
        NotProcessedYet: there is no such step yet.
        StepExpired: one of them is kept no longer.
    """
    c = flow.tables.steps.c
    found = select(c.step, c.upto, c.now, c.checkpoint, c.snapshot).where(
        c.flow_id == flow.id, c.step.in_((step - 1, step))
    )
    cuts = {row.step: RecordedCut(*row) for row in await connection.execute(found)}
    if step >= 0 and cuts.keys() == {step - 1, step}:
        return cuts[step - 1], cuts[step]
    flows = flow.tables.flows
    next_step = await connection.scalar(select(flows.c.next_step).where(flows.c.id == flow.id))
    if next_step is None or step >= next_step:
        raise NotProcessedYet(flow=flow.name, what=f"step {step}", reason="it is not cut")
    kept = select(c.step).where(c.flow_id == flow.id).order_by(c.step).limit(1)
    first = await connection.scalar(kept)
    # That before the first one is needed for its begin.
    raise StepExpired(source=f"steps of {flow.name}", step=step, first=(first or 0) + 1)


async def rows_of(
    connection: AsyncConnection, flow: FlowSources, *, before: RecordedCut, cut: RecordedCut
) -> list[SourceRows]:
    """Return the rows between two cuts, source by source; joins the caller's transaction.

    Raises:
        StepExpired: some of them were deleted.
        ValueError: a row has a key that is none.
    """
    return [
        await source.read(connection, [ALL_BUCKETS], after=before.upto[name], upto=cut.upto[name])
        for name, source in flow.sources.items()
        if cut.upto[name] > before.upto[name]
    ]
