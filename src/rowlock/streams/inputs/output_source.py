"""Results of a flow as a stream of another one: its steps in their order, each of them whole.

The one idea: the position of a result is that of its step, so a step of the reader takes whole
steps of the other flow, and what belonged to one moment stays together. What no row can be added
to is what every shard has done: the frontier stands for the high-water mark, and no lock of the
table is looked at.

Not here: who may discard results (``outputs/discarding.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Integer, ScalarSelect, bindparam, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.database.bulk_dialect import BULK
from rowlock.stream_errors import PositionsWentBackError, StepExpired
from rowlock.streams.computing.buckets import BucketRange, merged
from rowlock.streams.computing.rows import SourceRows
from rowlock.streams.frontier import check_shards, frontier_of
from rowlock.streams.inputs.gathered_query import GatheredQuery
from rowlock.streams.inputs.high_water import HighWater
from rowlock.streams.inputs.row_reader import QUERIES_MAX
from rowlock.streams.inputs.source import NextRows, Source
from rowlock.streams.outputs.consumers import FlowWait, StepOutput
from rowlock.streams.outputs.cursors import ResultsOf, last_discarded, lock_discarding
from rowlock.streams.range_condition import has_all, in_ranges
from rowlock.streams.tables import check_lasts

E = TypeVar("E")

ROWS_PER_STEP = 1_000
"""So many rows a step of the other flow counts for, where steps are put together."""
KEYLESS = ""
"""The key of results that have none: they are worked on by one shard."""


def position_of_step(step: int) -> int:
    """Return the position of the results of a step; the first is 1, since 0 is before all."""
    return step + 1


class OutputSource(Source[E]):
    """An output that is kept, as a stream; made by `Streams.flow`.

    Args:
        output: of the other flow.
        upstream: waits for that flow.
    """

    rows_per_position = ROWS_PER_STEP

    def __init__(self, output: ResultsOf, upstream: FlowWait) -> None:
        self.name = f"{output.flow}/{output.name}"
        self.upstream = upstream
        self.topic = output.topic
        self.decoder = output.codec
        self._output = output
        rows = output.tables.outputs
        self._step = rows.c.step
        self._own = (rows.c.flow_id == output.flow_id, rows.c.output == output.name)
        self._queries: dict[object, GatheredQuery] = {}

    def __repr__(self) -> str:
        return f"<OutputSource {self.name}>"

    def fingerprint(self) -> str:
        """Return the output and the type of its values."""
        return f"{self.name} = output of {self._output.codec.name}"

    def watcher(self) -> OutputWatch:
        """Return what looks at the output."""
        return OutputWatch(self._output, name=self.name)

    def newest(self) -> ScalarSelect[Any]:
        """Return the query for the position of the last step with results that all shards have
        done.
        """
        is_done = self._step < frontier_of(self._output.tables, self._output.flow_id)
        return select(func.max(self._step) + 1).where(*self._own, is_done).scalar_subquery()

    def position_of(self, added: object) -> int | None:
        """Return the position of a step that a consumer of the output has got."""
        if isinstance(added, StepOutput) and added.stream == self.name:
            return position_of_step(added.step)
        return None

    async def last_position(self, connection: AsyncConnection, *, below: int) -> int:
        """Return the position of the last results before a step, 0 if there are none; joins the
        caller's transaction.
        """
        found = select(func.max(self._step)).where(*self._own, self._step < below)
        step = await connection.scalar(found)
        return 0 if step is None else position_of_step(step)

    async def begins_after(self, connection: AsyncConnection) -> int:
        """Return the position of the last step whose results were discarded, 0 if there is none;
        joins the caller's transaction.
        """
        return position_of_step(await last_discarded(connection, self._output))

    async def lock_begin(self, connection: AsyncConnection) -> int:
        """Return what `begins_after` does; nothing more is discarded until the caller's transaction
        ends.

        Raises:
            PipelineError: the flow is being deleted.
        """
        output, flows = self._output, self._output.tables.flows
        own = flows.c.id == output.flow_id
        # Written: of a deletion and a new reader, which is the later one sees the other.
        again = update(flows).where(own).values(fingerprint=flows.c.fingerprint)
        await connection.execute(again)
        found = select(flows.c.fingerprint).where(own)
        check_lasts(output.flow, await connection.scalar(found))
        await lock_discarding(connection, self._output)
        return await self.begins_after(connection)

    async def ahead(
        self, connection: AsyncConnection, *, after: int, upto: int, limit: int
    ) -> NextRows:
        """Return positions and sizes of the next rows, one for each row; joins the caller's
        transaction.
        """
        size = BULK.of(connection).text_bytes(self._output.tables.outputs.c.payload)
        query = self._query([self._step, size.label("size")])
        given = {"after": after, "upto": upto, "limit": limit}
        limited = query.limit(bindparam("limit", type_=Integer()))
        rows = (await connection.execute(limited, given)).all()
        return NextRows([position_of_step(row.step) for row in rows], [row.size for row in rows])

    async def read(
        self,
        connection: AsyncConnection,
        ranges: Sequence[BucketRange],
        *,
        after: int,
        upto: int,
    ) -> SourceRows:
        """Return the results of these buckets, and those without a key, step by step; those of a
        step in the order in which consumers get them. Joins the caller's transaction.

        Raises:
            StepExpired: some of them were discarded.
        """
        query = self._gathered(ranges)
        columns = await query.columns(connection, {"after": after, "upto": upto})
        # Behind it: what was discarded before was missing, and what is discarded now was read.
        discarded = await self.begins_after(connection)
        if after < discarded:
            raise StepExpired(source=self.name, step=after + 1, first=discarded + 1)
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

    def _gathered(self, ranges: Sequence[BucketRange]) -> GatheredQuery:
        key = tuple(merged(ranges))
        known = self._queries.get(key)
        if known is None:
            if len(self._queries) >= QUERIES_MAX:
                self._queries.clear()
            c = self._output.tables.outputs.c
            found = self._query([c.step, c.lo, c.seq, c.bucket, c.key, c.payload])
            if not has_all(ranges):
                found = found.where(in_ranges(c.bucket, ranges) | c.key.is_(None))
            known = self._queries[key] = GatheredQuery(found)
        return known

    def _query(self, columns: Sequence[Any]) -> Any:
        """Return the query for results of the steps whose positions are behind one and up to
        another.
        """
        step, c = self._step, self._output.tables.outputs.c
        after, upto = (bindparam(each, type_=BigInteger()) for each in ("after", "upto"))
        # A position is one more than its step.
        in_range = (step >= after, step < upto)
        found: Any = select(*columns).where(*self._own, *in_range)
        return found.order_by(step, c.lo, c.seq)


class OutputWatch:
    """Looks how far the flow of an output is.

    Args:
        output: whose.
        name: of the stream, for errors.
    """

    def __init__(self, output: ResultsOf, *, name: str) -> None:
        self._name, self._output = name, output
        rows, flows = output.tables.outputs, output.tables.flows
        frontier = frontier_of(output.tables, output.flow_id)
        newest = select(func.max(rows.c.step)).where(
            rows.c.flow_id == output.flow_id, rows.c.output == output.name
        )
        next_step = select(flows.c.next_step).where(flows.c.id == output.flow_id)
        # One statement, so that no step is seen done whose results were not there yet.
        self._look = select(
            frontier.label("frontier"),
            newest.scalar_subquery().label("newest"),
            newest.where(rows.c.step < frontier).scalar_subquery().label("done"),
            next_step.scalar_subquery().label("next_step"),
        )

    async def look(self, connection: AsyncConnection, *, recorded: int) -> HighWater:
        """Find the last step with results that all shards have done; joins the caller's
        transaction.

        Raises:
            PositionsWentBackError: the other flow has fewer steps than were read: it was begun
                anew, or a part of a backup was restored.
            ShardsMissingError: its shards do not have each bucket once.
        """
        seen, output = (await connection.execute(self._look)).one(), self._output
        if seen.frontier is None:
            await check_shards(connection, output.tables, output.flow)
        assigned = seen.next_step or 0
        if assigned < recorded:
            raise PositionsWentBackError(source=self._name, recorded=recorded, assigned=assigned)
        mark, newest = (
            0 if step is None else position_of_step(step) for step in (seen.done, seen.newest)
        )
        awaited = f"the flow {output.flow!r}, whose slowest shard is at step {seen.frontier}"
        return HighWater(mark, newest, (), upstream=awaited if newest > mark else None)
