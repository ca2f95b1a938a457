"""Readers of results: whole steps in their order, each once for each name; and flows over the
results of another flow.

A step is complete when every shard has done it, so results of different keys belong to one moment.
How far a consumer is stands in a row, which moves in the transaction of what the consumer writes.
A wait ends with a hint.

For a flow the position of a result is that of its step, so its steps take whole steps of the other
flow. No row can be added to what every shard has done: the frontier stands for the high-water mark,
and no lock of the table is looked at.

Source: offsets that are committed with the results, as in Kafka's transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Integer,
    ScalarSelect,
    Table,
    and_,
    bindparam,
    func,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock import pipeline_hinter
from rowlock.clock import rest
from rowlock.errors import ConfigurationError
from rowlock.spi import ROWS
from rowlock.stream_errors import CursorMoved, PositionsWentBackError
from rowlock.streams.computing.hashing import BucketRange
from rowlock.streams.computing.rows import SourceRows
from rowlock.streams.cursors import (
    NONE_YET,
    ResultsOf,
    begin_cursor,
    check_kept,
    cursor_of,
    last_discarded,
    lock_discarding,
    move_cursor,
)
from rowlock.streams.dialects.stream_dialect import GatheredQuery, in_ranges
from rowlock.streams.flow_view import check_shards, frontier_of, read_frontier
from rowlock.streams.inputs.high_water import HighWater
from rowlock.streams.inputs.source import QUERIES_MAX, NextRows, Source
from rowlock.streams.inputs.step_inputs import FlowSources, StepInputs, inputs_of
from rowlock.streams.settings import check_party, check_whole_number


@contextmanager
def woken_by(topic: str, woken: asyncio.Event) -> Iterator[None]:
    """Set an event of this loop with each hint for a topic, from whatever thread it comes."""
    loop = asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # a closed loop has no waiter to wake
            loop.call_soon_threadsafe(woken.set)

    pipeline_hinter.attach(topic, wake)
    try:
        yield
    finally:
        pipeline_hinter.detach(topic, wake)


O = TypeVar("O")  # noqa: E741 - of an output

ROWS_READ_MAX = 10_000
"""Most results that a consumer reads at once; the step in which they are reached is read whole."""
READ_BYTES_MAX = 16_777_216
"""And most bytes of these; likewise."""
READ_TIMEOUT = timedelta(seconds=30)
"""How long that may take."""
POLL_S = 1.0
"""How long a consumer that has read all waits for a hint before it looks, in seconds."""


class StreamRow(NamedTuple, Generic[O]):
    """One result of a step.

    Attributes:
        key: the text of its key; None if it has none.
        value: what was emitted.
        lo: the first bucket of the shard that emitted it. It changes when shards are split.
        seq: its number among the results of that shard in the step.
    """

    key: str | None
    value: O
    lo: int
    seq: int


@dataclass(frozen=True, slots=True)
class StepOutput(Generic[O]):
    """The results of one step, of all shards.

    Attributes:
        step: its number.
        now: its time, as handlers saw it.
        rows: the results: those of a shard in the order in which they were emitted, the shards in
            the order of their buckets.
    """

    step: int
    now: datetime
    rows: Sequence[StreamRow[O]]
    _output: ResultsOf = field(repr=False)
    _consumer: str | None = field(repr=False)

    @property
    def stream(self) -> str:
        """The name of its output as a stream."""
        return f"{self._output.flow}/{self._output.name}"

    @property
    def values(self) -> list[O]:
        """What was emitted, in the order of `rows`."""
        return [row.value for row in self.rows]

    async def inputs(self, session: AsyncSession) -> StepInputs[Any]:
        """Return the events of this step, of all shards; joins the caller's transaction.

        Raises:
            StepExpired: the step, or an event of it, is kept no longer.
        """
        output = self._output
        connection = await output.tables.connection(session)
        flow = FlowSources(output.flow, output.flow_id, output.sources, output.tables)
        return await inputs_of(connection, flow, self.step)

    async def ack(self, session: AsyncSession) -> None:
        """Note that this step, and all before it, was worked on; joins the caller's transaction, so
        that it counts with whatever else that writes, or not at all.

        Raises:
            CursorMoved: another consumer of this name has worked on it; roll back.
            ConfigurationError: the consumer has no name.
        """
        if self._consumer is None:
            raise ConfigurationError(
                f"results of {self._output.flow}/{self._output.name} that are read without a name"
                " cannot be acknowledged: pass consumer=..."
            )
        if not await move_cursor(session, self._output, self._consumer, step=self.step):
            raise CursorMoved(
                output=f"{self._output.flow}/{self._output.name}",
                consumer=self._consumer,
                step=self.step,
            )


class Consumer(Generic[O]):
    """Reads the results of one output, step by step."""

    # A name keeps its place in a cursor. Steps begin behind `after`; if that is None, behind the
    # cursor, or, without a name, with the first step that is kept.

    def __init__(
        self,
        output: ResultsOf,
        sessions: async_sessionmaker[AsyncSession],
        *,
        name: str | None,
        after: int | None,
    ) -> None:
        if name is not None:
            check_party(name, "a consumer")
        if after is not None:
            check_whole_number(after, "the step behind which a consumer begins", low=NONE_YET)
        self._output = output
        self._database = output.tables.opened_by(sessions, timeout=READ_TIMEOUT)
        self._name = name
        self._after = after
        self._woken = asyncio.Event()

    async def steps(self, *, follow: bool) -> AsyncIterator[StepOutput[O]]:
        after = await self._first()
        with woken_by(self._output.topic, self._woken):
            while True:
                self._woken.clear()
                found = await self._read(after)
                for step in found:
                    after = step.step
                    yield step
                if found:
                    continue
                if not follow:
                    return
                if not self._woken.is_set():
                    await rest(self._woken, POLL_S)

    async def _first(self) -> int:
        """Return the step behind which this begins; a consumer with a name has a cursor then."""
        output, name, after = self._output, self._name, self._after

        async def known(connection: AsyncConnection) -> int | None:
            if name is None:
                return await last_discarded(connection, output) if after is None else after
            return await cursor_of(connection, output, name)

        async def begin(connection: AsyncConnection) -> int:
            assert name is not None
            return await begin_cursor(connection, output, name, after=after)

        cursor = await self._database.read("find a cursor", known)
        if cursor is None:
            cursor = await self._database.write("begin a cursor", begin)
        return cursor if after is None else after

    async def _read(self, after: int) -> list[StepOutput[O]]:
        """Return the next steps with results, as far as all shards have done them."""

        async def work(connection: AsyncConnection) -> Sequence[Any]:
            found = await self._found(connection, after)
            # Behind it: what was discarded before was missing, and what is discarded now was read.
            await check_kept(connection, self._output, after)
            return found

        return self._steps_of(await self._database.read("read results", work))

    async def _found(self, connection: AsyncConnection, after: int) -> Sequence[Any]:
        output, rows = self._output, self._output.tables.outputs
        # First, and then the results: those below it are there and do not change.
        end = await read_frontier(connection, output.tables, output.flow)
        if end is None:
            return []
        next_ones = self._own(), rows.c.step > after, rows.c.step < end
        last = _last_read(connection, rows, and_(*next_ones))
        c, steps = rows.c, output.tables.steps
        of_steps = (
            select(c.step, steps.c.now, c.key, c.payload, c.lo, c.seq)
            .join(steps, (steps.c.flow_id == c.flow_id) & (steps.c.step == c.step))
            .where(self._own(), c.step > after, c.step <= last)
            .order_by(c.step, c.lo, c.seq)
        )
        return (await connection.execute(of_steps)).all()

    def _own(self) -> ColumnElement[bool]:
        c = self._output.tables.outputs.c
        return and_(c.flow_id == self._output.flow_id, c.output == self._output.name)

    def _steps_of(self, found: Sequence[Any]) -> list[StepOutput[O]]:
        values: list[O] = self._output.codec.decode_many([row.payload for row in found])
        pairs = list(zip(found, values, strict=True))
        outputs = []
        for step, own in groupby(pairs, key=lambda pair: pair[0].step):
            of_step = list(own)
            rows = [StreamRow(row.key, value, row.lo, row.seq) for row, value in of_step]
            now = of_step[0][0].now
            outputs.append(StepOutput(step, now, rows, self._output, self._name))
        return outputs


def _last_read(
    connection: AsyncConnection, rows: Table, which: ColumnElement[bool]
) -> ScalarSelect[Any]:
    """Return the query for the last step of a read: that in which a bound is reached."""
    # It has sizes alone, so no database has results in its memory that are not read.
    c = rows.c
    order = (c.step, c.lo, c.seq)
    size = ROWS.of(connection).text_bytes(c.payload).label("size")
    # First the limit, and then the sum: otherwise all there is would be added up.
    some = select(*order, size).where(which).order_by(*order).limit(ROWS_READ_MAX).subquery().c
    upto = func.sum(some.size).over(order_by=(some.step, some.lo, some.seq), rows=(None, 0))
    summed = select(some.step, (upto - some.size).label("before")).subquery().c
    return select(func.max(summed.step)).where(summed.before < READ_BYTES_MAX).scalar_subquery()


E = TypeVar("E")

ROWS_PER_STEP = 1_000
"""So many rows a step of the other flow counts for, where steps are put together."""
KEYLESS = ""
"""The key of results that have none: they are worked on by one shard."""


def position_of_step(step: int) -> int:
    """Return the position of the results of a step; the first is 1, since 0 is before all."""
    return step + 1


class OutputSource(Source[E]):
    """An output that is kept, as a stream; `upstream` are the `FlowWaits` of its flow."""

    rows_per_position = ROWS_PER_STEP

    def __init__(self, output: ResultsOf, upstream: Any) -> None:
        self.name = f"{output.flow}/{output.name}"
        self.upstream = upstream
        self.topic = output.topic
        self.decoder = output.codec
        self._output = output
        rows = output.tables.outputs
        self._step = rows.c.step
        self._own = (rows.c.flow_id == output.flow_id, rows.c.output == output.name)
        self._within = lru_cache(QUERIES_MAX)(self._within_ranges)
        flows, newest = output.tables.flows.c, select(func.max(self._step)).where(*self._own)
        frontier = frontier_of(output.tables, output.flow_id)
        next_step = select(flows.next_step).where(flows.id == output.flow_id)
        # One statement, so that no step is seen done whose results were not there yet.
        self._looks = select(
            frontier.label("frontier"),
            newest.scalar_subquery().label("newest"),
            newest.where(self._step < frontier).scalar_subquery().label("done"),
            next_step.scalar_subquery().label("next_step"),
        )

    def __repr__(self) -> str:
        return f"<OutputSource {self.name}>"

    def fingerprint(self) -> str:
        return f"{self.name} = output of {self._output.codec.name}"

    def watcher(self) -> OutputSource[E]:
        return self  # Nothing is kept between two looks.

    async def look(self, connection: AsyncConnection, *, recorded: int) -> HighWater:
        seen, output = (await connection.execute(self._looks)).one(), self._output
        if seen.frontier is None:
            await check_shards(connection, output.tables, output.flow)
        assigned = seen.next_step or 0
        if assigned < recorded:
            raise PositionsWentBackError(source=self.name, recorded=recorded, assigned=assigned)
        mark, newest = (
            0 if step is None else position_of_step(step) for step in (seen.done, seen.newest)
        )
        awaited = f"the flow {output.flow!r}, whose slowest shard is at step {seen.frontier}"
        return HighWater(mark, newest, (), upstream=awaited if newest > mark else None)

    def newest(self) -> ScalarSelect[Any]:
        """Return the query for the position of the last step that all shards have done."""
        is_done = self._step < frontier_of(self._output.tables, self._output.flow_id)
        return select(func.max(self._step) + 1).where(*self._own, is_done).scalar_subquery()

    def position_of(self, added: object) -> int | None:
        if isinstance(added, StepOutput) and added.stream == self.name:
            return position_of_step(added.step)
        return None

    async def last_position(self, connection: AsyncConnection, *, below: int) -> int:
        """Return the position of the last results before a step, 0 if there are none."""
        found = select(func.max(self._step)).where(*self._own, self._step < below)
        step = await connection.scalar(found)
        return 0 if step is None else position_of_step(step)

    async def begins_after(self, connection: AsyncConnection) -> int:
        return position_of_step(await last_discarded(connection, self._output))

    async def lock_begin(self, connection: AsyncConnection) -> int:
        """Return what `begins_after` does; nothing more is discarded until the transaction ends."""
        await lock_discarding(connection, self._output)
        return await self.begins_after(connection)

    async def ahead(
        self, connection: AsyncConnection, *, after: int, upto: int, limit: int
    ) -> NextRows:
        """Return positions and sizes of the next rows, one for each row."""
        size = ROWS.of(connection).text_bytes(self._output.tables.outputs.c.payload)
        query = self._query([self._step, size.label("size")])
        given = {"after": after, "upto": upto, "limit": limit}
        limited = query.limit(bindparam("limit", type_=Integer()))
        rows = (await connection.execute(limited, given)).all()
        return NextRows([position_of_step(row.step) for row in rows], [row.size for row in rows])

    async def read(
        self, connection: AsyncConnection, ranges: Sequence[BucketRange], *, after: int, upto: int
    ) -> SourceRows:
        """Return the results of these buckets and those without a key, in consumers' order."""
        query = self._within(tuple(sorted(ranges)))
        columns = await query.columns(connection, {"after": after, "upto": upto})
        await self.check_kept(connection, after)
        steps, los, seqs, buckets, keys, payloads = columns
        order = sorted(range(len(steps)), key=list(zip(steps, los, seqs, strict=True)).__getitem__)
        return SourceRows(
            self.name,
            [position_of_step(steps[index]) for index in order],
            # The bucket of a result without a key is that of the shard that had it.
            [None if keys[index] is None else buckets[index] for index in order],
            [KEYLESS if keys[index] is None else keys[index] for index in order],
            [payloads[index] for index in order],
            self.decoder,
        )

    def _within_ranges(self, ranges: tuple[BucketRange, ...]) -> GatheredQuery:
        c = self._output.tables.outputs.c
        found = self._query([c.step, c.lo, c.seq, c.bucket, c.key, c.payload])
        return GatheredQuery(found.where(in_ranges(c.bucket, ranges) | c.key.is_(None)))

    def _query(self, columns: Sequence[Any]) -> Any:
        step, c = self._step, self._output.tables.outputs.c
        after, upto = (bindparam(each, type_=BigInteger()) for each in ("after", "upto"))
        # A position is one more than its step.
        in_range = (step >= after, step < upto)
        found: Any = select(*columns).where(*self._own, *in_range)
        return found.order_by(step, c.lo, c.seq)
