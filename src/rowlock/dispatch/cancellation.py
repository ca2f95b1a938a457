"""Cancel: fail the active row of a key, in the caller's transaction, whoever holds it.

The one idea: every write of an attempt is guarded by the status it left. So a cancellation asks nobody: it writes another status,
and the replica that holds the row finds that at its next status update, or at the end; then it closes the attempt and writes
nothing more.

Not here: how an attempt is closed (``delivery.py``). The lease is left to its holder, too.

"""

from __future__ import annotations

from typing import Any

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.database.binds import bind_of
from rowlock.dispatch.client_text import error_of
from rowlock.dispatch.states import CANCELLED, FAILED, is_active, shows_anew
from rowlock.rows.database_time import database_now
from rowlock.rows.leased_table import LeasedTable, ModelT


async def cancel(session: AsyncSession, leased: LeasedTable[ModelT], *, dedup_key: str, reason: str) -> ModelT | None:
    """Fail the active row of `dedup_key` with ``cancelled: reason`` and return it; None if no row of the key is active."""
    model: Any = leased.model
    values = {"status": FAILED, "error": error_of(CANCELLED, reason), "finished_at": database_now()}
    cancelled = update(model).where(model.dedup_key == dedup_key, is_active(leased)).values(values).returning(model)
    # What the session has of the row is shown as it is now.
    fresh = cancelled.execution_options(populate_existing=shows_anew(session, model), synchronize_session=False)
    # Where rows are written, also in a session that sends reads to a replica.
    where = {"bind": bind_of(session, leased)}
    row: ModelT | None = (await session.scalars(fresh, bind_arguments=where)).one_or_none()
    return row
