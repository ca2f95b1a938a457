"""What a step was made of: its events, read again from the sources, and compared with what was
recorded.

A step is a cut through the sources, so its events are found by their positions, as long as they are
kept. `verify` counts and digests them once more, and finds what a replay would find, without a
replay: rows that were changed, deleted or added below a cut. Results stand, whatever it finds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Generic, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.stream_errors import NotProcessedYet, StepExpired
from rowlock.streams.computing.hashing import BUCKETS, BucketRange
from rowlock.streams.computing.rows import SourceRows, divide, input_digest
from rowlock.streams.cut_plan import Cut
from rowlock.streams.flow_view import BEFORE_FIRST, read_frontier
from rowlock.streams.inputs.source import Source
from rowlock.streams.settings import check_whole_number
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
    name: str
    id: int
    sources: Mapping[str, Source[Any]]
    tables: StreamTables


async def inputs_of(connection: AsyncConnection, flow: FlowSources, step: int) -> StepInputs[Any]:
    """Return the events of a step; ValueError if one cannot be read any more."""
    check_whole_number(step, "a step", low=BEFORE_FIRST)
    before, cut = await cut_pair(connection, flow, step)
    rows: list[InputRow[Any]] = []
    for part in await rows_of(connection, flow.sources, before=before, cut=cut):
        values = part.decoder.build(part.decoder.parse(part.raw))
        for position, key, value in zip(part.positions, part.keys, values, strict=True):
            rows.append(InputRow(part.source, position, key, value))
    return StepInputs(step, cut.now, rows)


async def cut_pair(connection: AsyncConnection, flow: FlowSources, step: int) -> tuple[Cut, Cut]:
    """Return the cut before a step, and its own."""
    c = flow.tables.steps.c
    cuts = await cuts_of(connection, flow, c.step.in_((step - 1, step)))
    if step >= 0 and len(cuts) == 2:  # noqa: PLR2004 - a pair
        return cuts[0], cuts[1]
    flows = flow.tables.flows
    next_step = await connection.scalar(select(flows.c.next_step).where(flows.c.id == flow.id))
    if next_step is None or step >= next_step:
        raise NotProcessedYet(flow=flow.name, what=f"step {step}", reason="it is not cut")
    kept = select(c.step).where(c.flow_id == flow.id).order_by(c.step).limit(1)
    first = await connection.scalar(kept)
    # That before the first one is needed for its begin.
    raise StepExpired(source=f"steps of {flow.name}", step=step, first=(first or 0) + 1)


async def cuts_of(
    connection: AsyncConnection, flow: FlowSources, *which: ColumnElement[bool]
) -> list[Cut]:
    """Return recorded cuts of a flow, in their order."""
    c = flow.tables.steps.c
    found = select(c.step, c.upto, c.now, c.checkpoint, c.snapshot)
    rows = await connection.execute(found.where(c.flow_id == flow.id, *which).order_by(c.step))
    return [Cut(*row) for row in rows]


async def rows_of(
    connection: AsyncConnection, sources: Mapping[str, Source[Any]], *, before: Cut, cut: Cut
) -> list[SourceRows]:
    """Return the rows between two cuts, source by source; StepExpired if some were deleted."""
    return [
        await source.read(connection, [ALL_BUCKETS], after=before.upto[name], upto=cut.upto[name])
        for name, source in sources.items()
        if cut.upto[name] > before.upto[name]
    ]


DIFFERENCES_MAX: Final = 1000
"""After so many differences a verification ends."""
STEP_TIMEOUT: Final = timedelta(seconds=60)
"""How long the rows of one step may take to be read."""


class StepPart(NamedTuple):
    """The record of what a shard did in a step. There is none of a shard that had nothing to do.

    Attributes:
        step: its number.
        lo: the first bucket of the shard, as it was then.
        hi: the bucket behind its last one.
        rows: how many events it had.
        input_digest: of these.
        outputs: how many results it had.
        output_digest: of results, messages and changed states.
        seconds: how long the computation took.
    """

    step: int
    lo: int
    hi: int
    rows: int
    input_digest: str
    outputs: int
    output_digest: str
    seconds: float


class InputDifference(NamedTuple):
    """What is not as it was when a step was done.

    Attributes:
        step: its number.
        lo: the first bucket of the shard, as it was then.
        hi: the bucket behind its last one.
        text: what differs.
    """

    step: int
    lo: int
    hi: int
    text: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification.

    Attributes:
        steps: how many steps were compared.
        rows: how many events they have now.
        differences: what is not as it was; empty if all is. `DIFFERENCES_MAX` at most, behind which
            no further step is compared.
    """

    steps: int
    rows: int
    differences: Sequence[InputDifference]


async def parts_of(connection: AsyncConnection, flow: FlowSources, step: int) -> list[StepPart]:
    check_whole_number(step, "a step")
    c = flow.tables.parts.c
    columns = [c[name] for name in StepPart._fields]
    found = select(*columns).where(c.flow_id == flow.id, c.step == step).order_by(c.lo)
    return [StepPart(*row) for row in await connection.execute(found)]


async def verify(
    session_factory: async_sessionmaker[AsyncSession], flow: FlowSources, *, first: int, last: int
) -> Verification:
    """Compare the inputs of steps with what was recorded, each step in its own transaction."""
    check_whole_number(first, "the first step of a verification")
    check_whole_number(last, "the last step of a verification", low=first)
    database = flow.tables.opened_by(session_factory, timeout=STEP_TIMEOUT)
    purpose = "compare the rows of a step"
    steps = rows = 0
    differences: list[InputDifference] = []
    for step in range(first, last + 1):

        async def compare(connection: AsyncConnection, step: int = step) -> _Compared:
            frontier = await read_frontier(connection, flow.tables, flow.name) or 0
            if last >= frontier:
                reason = f"shards are at step {frontier}"
                raise NotProcessedYet(flow=flow.name, what=f"step {last}", reason=reason)
            return await _compare(connection, flow, step)

        try:
            found = await database.read(purpose, compare)
        except DBAPIError:
            # Rows that cannot be gathered are read in another way from now on.
            found = await database.read(purpose, compare)
        steps += 1
        rows += found.rows
        differences += found.differences
        if len(differences) >= DIFFERENCES_MAX:
            break
    return Verification(steps, rows, differences[:DIFFERENCES_MAX])


async def first_difference(connection: AsyncConnection, flow: FlowSources, step: int) -> str | None:
    """Return how the events of a step differ from those it was done with; None: they do not."""
    try:
        _, cut = await cut_pair(connection, flow, step)
        found = await _compare(connection, flow, step)
    except (StepExpired, ValueError):
        return None
    if not found.differences or (not found.rows and not await _is_any(connection, flow, cut)):
        # What a host deletes that all flows have done begins with the first row.
        return None
    _, lo, hi, text = found.differences[0]
    return f"step {step}, buckets {lo}..{hi}: {text}; results stand as they were"


async def _is_any(connection: AsyncConnection, flow: FlowSources, cut: Cut) -> bool:
    for name, source in flow.sources.items():
        if (await source.ahead(connection, after=0, upto=cut.upto[name], limit=1)).positions:
            return True
    return False


class _Compared(NamedTuple):
    rows: int
    differences: list[InputDifference]


async def _compare(connection: AsyncConnection, flow: FlowSources, step: int) -> _Compared:
    before, cut = await cut_pair(connection, flow, step)
    read = await rows_of(connection, flow.sources, before=before, cut=cut)
    parts = await parts_of(connection, flow, step)
    return _Compared(sum(map(len, read)), differences(step, read, parts))


def differences(
    step: int, read: Sequence[SourceRows], parts: Sequence[StepPart]
) -> list[InputDifference]:
    """Return how the rows of a step differ from what was recorded of it."""
    ranges = [BucketRange(part.lo, part.hi) for part in parts]
    by_source = [divide(rows, ranges) for rows in read]
    found = []
    left = sum(map(len, read))
    for index, part in enumerate(parts):
        own = [divided[index] for divided in by_source if len(divided[index])]
        left -= sum(map(len, own))
        text = _difference(own, part)
        if text is not None:
            found.append(InputDifference(step, part.lo, part.hi, text))
    if left:
        text = f"{left} rows belong to shards that had none"
        found.append(InputDifference(step, 0, BUCKETS, text))
    return found


def _difference(rows: Sequence[SourceRows], part: StepPart) -> str | None:
    count = sum(map(len, rows))
    if count != part.rows:
        return f"the input has {count} rows, and had {part.rows}"
    digest = input_digest(rows)
    if digest == part.input_digest:
        return None
    return f"the input has the digest {digest}, and had {part.input_digest}"
