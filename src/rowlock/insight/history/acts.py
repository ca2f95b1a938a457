"""What a person does, written to the history behind the commit of it.

The one idea: the action has happened, and the audit log has its line. So whatever is wrong with the
history is logged, and is no failure of the action.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker

from rowlock.containment import without_exits
from rowlock.database.transaction import in_transaction
from rowlock.errors import describe
from rowlock.insight.history.statements import write_action
from rowlock.insight.shown import shown
from rowlock.insight.steering.audit import Act
from rowlock.insight.tables import InsightTables
from rowlock.logs import get_logger
from rowlock.rows.leased_table import LeasedTable

logger = get_logger(__name__)

TIMEOUT: Final = timedelta(seconds=2)
"""Longest time for the entry of an action."""


async def tell_action(
    session_factory: async_sessionmaker[AsyncSession],
    leased: LeasedTable,
    *,
    tables: InsightTables | None,
    act: Act,
) -> None:
    """Write an entry for an action that was done, if the host has a history.

    Args:
        session_factory: the host's.
        leased: the table of the row, or of the pipeline.
        tables: the optional tables of the host.
        act: by whom, to what, and why.
    """
    history = None if tables is None else tables.history
    if history is None:
        return

    async def work(session: AsyncSession, connection: AsyncConnection) -> None:
        await write_action(connection, history, act, model="" if act.pipeline else leased.name)

    try:
        await without_exits(
            lambda: in_transaction(
                session_factory,
                leased,
                work,
                purpose="write an action to the history",
                timeout=TIMEOUT,
            )
        )
    except Exception as error:  # noqa: BLE001
        logger.warning(
            "What %s has done is not in the history: %s",
            shown(act.by),
            describe(error, chars_max=300),
            extra={"action": act.action, "actor": shown(act.by)},
        )
