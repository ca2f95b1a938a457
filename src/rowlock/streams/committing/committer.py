"""Writes the steps of many shards in one transaction, each under the token of its own lease.

The one idea: exactly once is one transaction. The guard comes first and locks the shards' rows
until the commit; then results, states, parts and the step that each shard does next are written, or
nothing is. A shard whose lease was lost is left out, and the others are written without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.database.bulk_dialect import BULK
from rowlock.errors import LeaseLost
from rowlock.leases.lasting.fence import Fenced, fence
from rowlock.rows.leased_table import LeasedTable
from rowlock.streams.committing.step_write import StepWrite
from rowlock.streams.cutting.flow_view import Transact
from rowlock.streams.outputs.output import ResultRow
from rowlock.streams.program import FlowProgram
from rowlock.streams.state.store import write_states

_PART = (
    "flow_id",
    "step",
    "lo",
    "hi",
    "rows",
    "input_digest",
    "outputs",
    "output_digest",
    "seconds",
)


class Committer:
    """Commits steps of one flow, for one replica.

    Args:
        program: the flow.
        leased: the table of the shards.
        transact: runs a transaction.
    """

    def __init__(self, program: FlowProgram, leased: LeasedTable, transact: Transact) -> None:
        self._program = program
        self._leased = leased
        self._transact = transact
        column = leased.column
        self._step = column("step")
        own = (
            *("step", "version", "snapshot", "replica", "failures", "failed_step", "last_error"),
            *("state_keys", "state_keys_at"),
        )
        self._columns = [column(name) for name in own]

    def __repr__(self) -> str:
        return f"<Committer of {self._program.name}>"

    async def commit(
        self, writes: Sequence[StepWrite], *, together: bool = False
    ) -> frozenset[UUID]:
        """Write the steps of shards in one transaction.

        Args:
            writes: of different shards.
            together: all of them are written, or none.

        Returns:
            The tokens of those that are written. The others are held no longer, or their rows say
            that they do another step next: nothing is written for them.

        Raises:
            Exception: as of the database; it may have been written.
        """

        async def work(session: AsyncSession, connection: AsyncConnection) -> frozenset[UUID]:
            tokens = await self._write(connection, writes)
            lost = [one.item for one in writes if one.item.lock_token not in tokens]
            if together and lost:
                # What its shard sent in memory is part of what the others write.
                raise lost[0].lease_lost()
            return tokens

        try:
            return await self._transact(work, purpose="write steps")
        except LeaseLost:
            return frozenset()

    async def _write(
        self, connection: AsyncConnection, writes: Sequence[StepWrite]
    ) -> frozenset[UUID]:
        # Before anything else: what follows counts for those alone that are held until the commit.
        tokens = await fence(
            connection, self._leased, [self._fenced(one) for one in writes], waits=True
        )
        held = [one for one in writes if one.item.lock_token in tokens]
        await self._write_parts(connection, held)
        for name, rows in _results_of(held).items():
            await self._program.outputs[name].write(connection, rows)
        states = [state for one in held for state in one.states]
        if states:
            table = self._program.tables.state
            await write_states(connection, table, self._program.id, states=states)
        for name, fold in self._program.folds.items():
            folded = [row for one in held for row in one.rows.get(name, ())]
            await fold.write(connection, folded)
        return tokens

    def _fenced(self, write: StepWrite) -> Fenced:
        failures = write.failures
        values = (
            write.step,
            write.version,
            write.snapshot,
            write.replica,
            failures.failures,
            failures.failed_step,
            None,  # What it has failed of before is over.
            write.state_keys,
            write.version,
        )
        assigned = dict(zip(self._columns, values, strict=True))
        return Fenced(write.item, assigned, unless_changed={self._step: write.before})

    async def _write_parts(self, connection: AsyncConnection, writes: Sequence[StepWrite]) -> None:
        rows: list[tuple[Any, ...]] = [
            (
                self._program.id,
                part.step,
                one.range.lo,
                one.range.hi,
                part.rows,
                part.input_digest,
                part.outputs,
                part.output_digest,
                part.seconds,
            )
            for one in writes
            for part in one.parts
        ]
        if rows:
            dialect = BULK.of(connection)
            statement = dialect.insert(self._program.tables.parts, _PART)
            await connection.execute(statement, dialect.insert_parameters(_PART, rows))


def _results_of(writes: Sequence[StepWrite]) -> dict[str, list[ResultRow]]:
    results: dict[str, list[ResultRow]] = {}
    for one in writes:
        for name, rows in one.results.items():
            results.setdefault(name, []).extend(rows)
    return results
