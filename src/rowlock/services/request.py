"""Requests of services: write columns of the service's own to a row without its lease, and make it
due. Writes no lock column.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, ColumnElement, and_, case, null, select, true, update
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm.attributes import set_committed_value

from rowlock.database.transaction import bind_of
from rowlock.execution import execute
from rowlock.hints import hint_after_commit, is_intent
from rowlock.leases.apply import with_versions
from rowlock.rows.assignments import ColumnValues
from rowlock.rows.database_time import database_now
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import Values, checked_values, column_values, resolve_now_placeholders


async def write_past_lease(
    session: AsyncSession,
    leased: LeasedTable,
    key: object,
    *,
    values: ColumnValues,
    where: ColumnElement[bool] | None = None,
) -> bool:
    """Write to a row regardless of its lease, in the caller's transaction; False if there is no
    such row, or none that meets `where`. An instance in the session shows it until rolled back.
    """
    is_it = and_(leased.attribute(leased.key_name) == key, true() if where is None else where)
    bind = {"bind": bind_of(session, leased)}
    if not values:
        found = select(leased.key).where(is_it)
        return (await execute(session, found, bind_arguments=bind)).first() is not None
    names = {attribute_name(leased, column): value for column, value in values.items()}
    moved = (attribute_name(leased, column) for column in leased.columns_with_onupdate)
    touched = list(dict.fromkeys([*names, *moved]))
    # By way of the ORM, which notes the instance as changed in this transaction or savepoint.
    written = update(leased.model).where(is_it).values(names)
    statement = written.returning(*map(leased.attribute, touched))
    how = {"synchronize_session": "fetch"}
    result = await execute(session, statement, bind_arguments=bind, execution_options=how)
    row = result.one_or_none()
    identity = leased.mapper.identity_key_from_primary_key((key,))
    instance: object | None = session.sync_session.identity_map.get(identity)
    if row is not None and instance is not None:
        # What the statement returned, and not a refresh: a session that sends reads to a replica
        # would read what was before.
        for name, value in zip(touched, row, strict=True):
            set_committed_value(instance, name, value)
    return row is not None


def attribute_name(leased: LeasedTable, column: Column[Any]) -> str:
    return leased.mapper.get_property_by_column(column).key


async def request_update(
    session: AsyncSession | async_scoped_session[AsyncSession],
    model: type,
    id: Any,  # noqa: A002
    values: Values,
) -> bool:
    """Write a service's own columns of a row, regardless of its lease, make it due, and hint its
    pipelines after the commit.

        async with session_factory.begin() as session:
            found = await request_update(session, Volume, volume_id, {"to_be_deleted": True})

    Joins the caller's transaction, waits for no lease and writes no lock column. The next attempt
    sees the values. An attempt that runs now does not: name such columns in the pipeline's
    `intent`, and its outcome is not written but computed anew.

    A parked row is put back into play, with a clean count of attempts, if a column of `intent` is
    among the values: of any pipeline of the model that was built in this process. Where none was,
    each request counts as one.

    Without `ScheduleColumns` a row that was just processed still waits for
    `min_processing_interval`.

    Keys of `values` are attributes or names; `NOW_PLACEHOLDER` stands for the transaction's time.
    What is pending in the session is flushed first. Returns whether there is such a row.

    Raises:
        OutcomeError: a column is unknown, the key, or one that rowlock keeps.
        ModelError: `model` cannot be leased.
    """
    own = session() if isinstance(session, async_scoped_session) else session
    leased = LeasedTable.of(model)
    column_values(leased, values)
    # Where the row is written, also in a session that sends reads to a replica.
    bound = bind_of(own, leased)
    bind = {"bind": bound}
    await own.flush()
    now = (await execute(own, select(database_now()), bind_arguments=bind)).scalar_one()
    resolved = resolve_now_placeholders(values, now)
    written: ColumnValues = checked_values(leased, resolved, bound.dialect)
    if written:
        connection = await own.connection(bind_arguments=bind)
        [written] = await with_versions(connection, leased, [(id, leased.next_version | written)])
    if leased.has_schedule:
        if is_intent(model, written):
            # Else the request would be written, and never carried out.
            parked_at, attempts = leased.column("parked_at"), leased.column("attempts")
            written |= {
                parked_at: null(),
                attempts: case((parked_at.is_not(None), 0), else_=attempts),
            }
        # Second, so that a service that asks for a later time has the last word.
        written = {leased.column("due_at"): now} | written
    found = await write_past_lease(own, leased, id, values=written)
    if found:
        hint_after_commit(own, model)
    return found
