"""Results of a flow: written with the step that they are of, and kept by step for those who read
them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.database.bulk_dialect import BULK
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.inputs.arguments import check_whole_number
from rowlock.streams.inputs.source import Source
from rowlock.streams.outputs.consumers import Consumer, FlowWait, StepOutput
from rowlock.streams.outputs.discarding import discard
from rowlock.streams.sliced_writes import write_rows
from rowlock.streams.tables import StreamTables, key_of

O = TypeVar("O")  # noqa: E741 - of an output
_COLUMNS = ("flow_id", "output", "step", "lo", "seq", "bucket", "key", "payload")


class ResultRow(NamedTuple):
    """A result, as it is stored.

    Attributes:
        step: that it is of.
        lo: the first bucket of the shard.
        seq: its number among the results of the shard in the step.
        bucket: of its key.
        key: its text; None if it has none.
        stored: the text of the value.
    """

    step: int
    lo: int
    seq: int
    bucket: int
    key: str | None
    stored: str | Mapping[str, Any]


class Output(Generic[O]):
    """An output of a flow; made by `StreamFlow.output`.

    Attributes:
        name: its own, within the flow.
        flow: the name of the flow.
        flow_id: the key of the flow's row.
        topic: of hints that there are new results.
        codec: writes and reads the values.
        tables: of the wing.
        sources: what the flow reads, by name.
        waits: waits for the flow; None where no other flow reads the output.
        is_kept: results stay here, by step, for those who read them.
    """

    is_kept = True

    def __init__(
        self,
        flow: str,
        name: str,
        type_: type[O] | None,
        *,
        tables: StreamTables,
        sources: Mapping[str, Source[Any]] = MappingProxyType({}),
        waits: FlowWait | None = None,
    ) -> None:
        """Declare an output.

        Raises:
            TypeError: values of this type cannot be stored.
        """
        self.name = name
        self.flow = flow
        self.flow_id = key_of("flow", flow)
        self.topic = f"stream:{flow}/{name}"
        self.codec: Codec[Any] = Codec(Any if type_ is None else type_)
        self.tables = tables
        self.sources = sources
        self.waits = waits

    def __repr__(self) -> str:
        return f"<Output {self.flow}/{self.name}>"

    def stored(self, value: O | Mapping[str, Any]) -> str | Mapping[str, Any]:
        """Return the text of a result.

        Raises:
            TypeError: it is of another type.
            ValueError: it is too long.
        """
        return self.codec.encode(value)

    def fingerprint(self) -> str:
        """Return what must not change while there are results."""
        return f"{self.name} {self.codec.name}"

    async def write(self, connection: AsyncConnection, rows: Sequence[ResultRow]) -> None:
        """Write results, of which there is one at least; joins the caller's transaction."""
        values = [(self.flow_id, self.name, *row) for row in rows]
        statement = BULK.of(connection).insert(self.tables.outputs, _COLUMNS)
        await write_rows(connection, statement, names=_COLUMNS, rows=values, text="payload")

    def consume(
        self,
        sessions: async_sessionmaker[AsyncSession],
        *,
        consumer: str | None = None,
        after: int | None = None,
        follow: bool = True,
    ) -> AsyncIterator[StepOutput[O]]:
        """Yield the results, step by step: whole steps, in their order, once every shard of the
        flow has done them. Steps without results are passed over.

        No session is open while the caller works on a step. It is read again after an error, and
        after a restart, unless it was acknowledged: `StepOutput.ack` in the transaction that writes
        what follows from it makes each step count once.

        Args:
            sessions: of the flow's database.
            consumer: the name under which it is remembered how far this is, from the first read
                on: what it has not acknowledged is not discarded. None: it is not remembered.
            after: begin behind this step. By default behind the last that was acknowledged, or with
                the first; without a name, with the first that is kept.
            follow: wait for further steps at the end; otherwise the iteration ends there.

        Raises:
            StepExpired: results behind `after`, or that were not read yet, were discarded; or
                `consumer` is new, and all before the first that is kept were.
            ShardsMissingError: the row of a shard is missing, so no step is known to be whole.
            ConfigurationError: the name of the consumer is none, or `after` is no step.
        """
        return Consumer(self, sessions, name=consumer, after=after).steps(follow=follow)

    async def discard(self, session: AsyncSession, before: int) -> int:
        """Delete the results of steps before `before`, whole steps and `DISCARD_ROWS_MAX` rows at
        most; joins the caller's transaction.

        Returns:
            How many were deleted; call again, in another transaction, until there are none.

        Raises:
            StillNeeded: a consumer has not acknowledged them, or a flow that reads them may have to
                read them again.
            ShardsMissingError: as `consume`.
            ConfigurationError: `before` is no step.
        """
        check_whole_number(before, "the first step whose results stay")
        return await discard(session, self, before)
