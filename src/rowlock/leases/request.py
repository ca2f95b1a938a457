"""Requests of services: write columns of the service's own to a row without its lease, and make it due.

A lease keeps pipelines apart; it does not keep a service from saying what it wants. What it writes is seen by the next attempt, and
an outcome that was computed before is kept from overwriting it by the pipeline's `intent`. Writes no lock column.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import literal, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm.attributes import set_committed_value

from rowlock.rows.database_time import database_now
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import Values, column_values, resolve_now_placeholders


async def write_request(session: AsyncSession, leased: LeasedTable[Any], key: object, *, values: Values) -> bool:
    """Write `values` to the row of `key` and make it due, in the caller's transaction; False if there is no such row.

    What is pending in the session is flushed first; an instance that the session has is set to what was written.

    Raises:
        OutcomeError: a column is unknown, the key, or one that rowlock keeps.
    """
    column_values(leased, values)
    await session.flush()
    bind = {"mapper": leased.mapper}
    now = (await session.execute(select(database_now()), bind_arguments=bind)).scalar_one()
    written = column_values(leased, resolve_now_placeholders(values, now))
    version = leased.version_column
    changed = written | ({} if version is None else {version: version + 1})
    if leased.has_schedule:
        # First in the map: a service that asks for a later time has the last word.
        changed = {leased.column("due_at"): database_now()} | changed
    columns = tuple(changed)
    statement = (
        update(leased.table).where(leased.key == key).values(changed).returning(literal(True).label("found"), *columns)
    )
    row = (await session.execute(statement, bind_arguments=bind)).one_or_none()
    instance = session.sync_session.identity_map.get(leased.mapper.identity_key_from_primary_key((key,)))
    if row is not None and instance is not None:
        for column, value in zip(columns, row[1:], strict=True):
            set_committed_value(instance, leased.mapper.get_property_by_column(column).key, value)
    return row is not None
