"""Results of a flow, written with the step that they are of: kept by step for their readers, or as
rows of the host's own table.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Column, Index, PrimaryKeyConstraint, UniqueConstraint, insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.errors import ConfigurationError
from rowlock.spi import ROWS, attributes_of, check_kept, mapper_of, single_table
from rowlock.streams.computing.encoding import Codec
from rowlock.streams.consumers import Consumer, StepOutput
from rowlock.streams.cursors import discard
from rowlock.streams.dialects.stream_dialect import write_rows
from rowlock.streams.inputs.source import Source
from rowlock.streams.settings import check_whole_number
from rowlock.streams.tables import StreamTables, key_of

O = TypeVar("O")  # noqa: E741 - of an output
_COLUMNS = ("flow_id", "output", "step", "lo", "seq", "bucket", "key", "payload")


class ResultRow(NamedTuple):
    """A result, as it is stored; `seq` is its number among those of the shard in the step."""

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
        waits: waits for the flow (`FlowWaits`); None where no other flow reads the output.
        is_kept: results stay here, by step, for their readers.
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
        waits: Any = None,
    ) -> None:
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
        statement = ROWS.of(connection).insert(self.tables.outputs, _COLUMNS)
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
        self._check_kept("read")
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
        self._check_kept("delete")
        check_whole_number(before, "the first step whose results stay")
        return await discard(session, self, before)

    def _check_kept(self, what: str) -> None:
        """Refuse what is asked of results that are not kept here."""


DEDUP_KEY = "dedup_key"
"""The column of an outbox that says what a row is about: a row that is there already is left."""


class TableOutput(Output[O]):
    """An output into a table of the host; made by `StreamFlow.output` with `into`."""

    # What is emitted are values by attribute names of the model, or instances of it. Columns that
    # are not given get the defaults of the model. Where ``dedup_key`` is unique, as in the table of
    # a dispatch pipeline, a row whose key is there already is left as it is.

    is_kept = False

    def __init__(self, flow: str, name: str, model: type[O], *, tables: StreamTables) -> None:
        super().__init__(flow, name, None, tables=tables)
        mapper = mapper_of(model)
        self.table = single_table(mapper)
        # The pipeline of these rows is woken as by any other insert.
        self.topic = model.__name__
        self._model = model
        self._columns = attributes_of(mapper)
        self._required = [name for name, column in self._columns.items() if _is_required(column)]
        rules = (*self.table.indexes, *self.table.constraints)
        self._unique: Any = next(filter(_is_outbox_rule, rules), None)

    @property
    def is_outbox(self) -> bool:
        """Whether a row whose `DEDUP_KEY` is there already is left as it is."""
        return self._unique is not None

    def fingerprint(self) -> str:
        return f"{self.name} into {self.table.fullname}"

    def stored(self, value: O | Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of a row, by the keys of its columns."""
        columns, model = self._columns, self._model.__name__
        if isinstance(value, self._model):
            given = {name: one for name, one in vars(value).items() if name in columns}
        elif isinstance(value, Mapping):
            given = dict(value)
        else:
            msg = f"{self.name} takes values of {model} by their names, not {value!r:.100}"
            raise TypeError(msg)
        unknown = given.keys() - columns.keys()
        if unknown:
            names = ", ".join(sorted(map(str, unknown)))
            msg = f"{model} has no column {names}; it has {', '.join(columns)}"
            raise TypeError(msg)
        missing = [name for name in self._required if given.get(name) is None]
        if missing:
            msg = f"{model} needs {', '.join(missing)}: never null, and without a default"
            raise ValueError(msg)
        return {columns[name].key: one for name, one in given.items()}

    async def write(self, connection: AsyncConnection, rows: Sequence[ResultRow]) -> None:
        alike: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
        for row in rows:
            assert not isinstance(row.stored, str)
            values = {self.table.columns[name]: value for name, value in row.stored.items()}
            check_kept(self._model.__name__, values, connection.dialect)
            alike.setdefault(tuple(sorted(row.stored)), []).append(row.stored)
        statement: Any = insert(self.table)
        if self._unique is not None:
            where = self._unique.dialect_options[connection.dialect.name].get("where")
            there = self._unique.columns
            statement = ROWS.of(connection).insert_unless_there(self.table, there, where)
        for some in alike.values():
            await connection.execute(statement, some)

    def _check_kept(self, what: str) -> None:
        raise ConfigurationError(
            f"results of {self.flow}/{self.name} are rows of {self.table.name}: {what} them there"
        )


def _is_required(column: Column[Any]) -> bool:
    is_given_by_database = (
        column.server_default is not None
        or column.identity is not None
        or column is column.table.autoincrement_column
    )
    return not (column.nullable or column.default is not None or is_given_by_database)


def _is_outbox_rule(one: Any) -> bool:
    if isinstance(one, Index):
        is_unique = one.unique
    else:
        # A deferrable one is checked too late for a row to be left out.
        is_unique = isinstance(one, UniqueConstraint | PrimaryKeyConstraint) and not one.deferrable
    return is_unique and one.columns.keys() == [DEDUP_KEY]
