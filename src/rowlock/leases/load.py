"""Load: read rows under their tokens when work on them begins.

Many items are read by one SELECT. A row whose token has changed meanwhile is not handed out: its
item is stale before it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column, Select, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import undefer
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock.database.binds import bind_of
from rowlock.execution import execute
from rowlock.leases.item import PipelineItem, leases_of
from rowlock.leases.lease_dialect import LEASES
from rowlock.rows.leased_table import LeasedTable, ModelT


async def load_rows(
    session: AsyncSession,
    leased: LeasedTable,
    items: Sequence[PipelineItem[ModelT]],
    *,
    options: Sequence[LoaderOption] = (),
    compared: Sequence[Column[Any]] = (),
) -> list[ModelT | None]:
    """Return, in the order of `items`, each row as a detached instance, or None where the lease is
    no longer theirs.

    Joins the caller's transaction.

    Args:
        session: the caller's.
        leased: their table.
        items: whose rows.
        options: the host's.
        compared: columns that the outcome will compare with what was read.
    """
    bind = bind_of(session, leased)
    dialect = LEASES.on(bind.dialect.name)

    def build() -> Select[Any]:
        names = [
            *leased.lease_columns,
            *(leased.mapper.get_property_by_column(column).key for column in compared),
        ]
        # Last, so that a host's load_only cannot leave out what the outcome is planned from.
        needed = [undefer(leased.attribute(name)) for name in names]
        return select(leased.model).where(dialect.matches_leases(leased)).options(*options, *needed)

    # Options are the host's, made anew each time.
    statement = build() if options else leased.prepared((load_rows, dialect, *compared), build)
    found = await execute(
        session,
        statement,
        dialect.lease_parameters(leases_of(items)),
        bind_arguments={"bind": bind},
    )
    by_key: dict[Any, ModelT] = {
        getattr(row, leased.key_name): row for row in found.scalars().unique().all()
    }
    session.expunge_all()
    return [_if_held(by_key.get(item.id), item) for item in items]


def _if_held(row: ModelT | None, item: PipelineItem[ModelT]) -> ModelT | None:
    return row if row is not None and getattr(row, "lock_token", None) == item.lock_token else None
