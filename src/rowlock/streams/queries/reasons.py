"""Why a wait for a flow was in vain, asked once at its end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.database.faults import is_transient
from rowlock.database.transaction import in_transaction
from rowlock.errors import describe
from rowlock.rows.leased_table import LeasedTable
from rowlock.streams.program import FlowProgram
from rowlock.streams.queries.absence import absence_of
from rowlock.streams.queries.frontier_watch import DoneUpto, done_upto
from rowlock.streams.queries.status import why_not_done
from rowlock.streams.queries.status_reader import look_at

REASON_TIMEOUT: Final = timedelta(seconds=5)
"""How long the question may take."""


async def done_or_reason(
    session_factory: async_sessionmaker[AsyncSession],
    program: FlowProgram,
    positions: Mapping[str, int],
) -> DoneUpto | str:
    """Return why rows at `positions`, by source, are not done; or how far the flow is, if they are
    done by now.
    """

    async def look(session: AsyncSession, connection: AsyncConnection) -> DoneUpto | str:
        done = await done_upto(connection, program)
        if done is None:
            return (await absence_of(connection, program)).text
        if all(done.upto.get(name, 0) >= at for name, at in positions.items()):
            return done
        seen = await look_at(connection, program)
        if seen is None:
            return (await absence_of(connection, program)).text
        return why_not_done(seen, positions)

    leased = LeasedTable.of(program.tables.flow_model)
    purpose = "ask why a flow is not further"
    try:
        return await in_transaction(
            session_factory, leased, look, purpose=purpose, timeout=REASON_TIMEOUT, writes=False
        )
    except Exception as error:
        if not is_transient(error):
            raise
        return f"the database does not answer: {describe(error)}"
