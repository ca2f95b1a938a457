"""Results of a flow, as rows by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.database.bulk_dialect import BULK
from rowlock.streams.computing.encoding import Codec
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
        stored: the text of the value, or the values of a row.
    """

    step: int
    lo: int
    seq: int
    bucket: int
    key: str | None
    stored: str | Mapping[str, Any]


class Output(Generic[O]):
    """An output of a flow."""

    def __init__(
        self,
        flow: str,
        name: str,
        type_: type[O] | None,
        *,
        into: type | None,
        tables: StreamTables,
    ) -> None:
        self.name = name
        self.topic = f"stream:{flow}/{name}"
        self._flow_id = key_of("flow", flow)
        self._codec: Codec[Any] = Codec(Any if type_ is None else type_)
        self._table = tables.outputs

    def stored(self, value: O | Mapping[str, Any]) -> str | Mapping[str, Any]:
        """Return the text of a result."""
        return self._codec.encode(value)

    def fingerprint(self) -> str:
        """Return what must not change."""
        return f"{self.name} {self._codec.name}"

    async def write(self, connection: AsyncConnection, rows: Sequence[ResultRow]) -> None:
        """Write results; joins the caller's transaction."""
        dialect = BULK.of(connection)
        values = [(self._flow_id, self.name, *row) for row in rows]
        statement = dialect.insert(self._table, _COLUMNS)
        await connection.execute(statement, dialect.insert_parameters(_COLUMNS, values))
