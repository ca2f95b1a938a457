"""Load: read rows under their tokens when work on them begins.

Many items are read by one SELECT. A row whose token has changed meanwhile is not handed out: its
item is stale before it starts. What listeners of the host's session hide from reads is not
leased either: `as_seen`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    Result,
    Select,
    and_,
    event,
    select,
)
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.exc import NoResultFound
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import ORMExecuteState, Session, undefer
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock.database.binds import bind_of
from rowlock.execution import execute
from rowlock.leases.item import PipelineItem, leases_of
from rowlock.leases.lease_dialect import LEASES
from rowlock.rows.leased_table import LeasedTable, ModelT

NOT_DAMAGED = (LookupError, AssertionError, ConnectionError, TimeoutError, NoResultFound)
"""What SQLAlchemy raises for a member of an `Enum` and for a kind of row that the code does not
have, which newer code may; what a column's type raises that asks a server which is away; and
`row_hidden`."""


def row_hidden() -> Exception:
    """Return the error of a row that has the token of its item and is not returned."""
    return NoResultFound(
        "the row has the token of its claim, and SELECTs of the session do not return it: most"
        " likely with_loader_criteria, a do_orm_execute listener, or a join in options() leaves it"
        " out"
    )


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


async def as_seen(
    session: AsyncSession, leased: LeasedTable, condition: ColumnElement[bool]
) -> ColumnElement[bool]:
    """Return `condition` for those rows alone that SELECTs of `session` return.

    A ``do_orm_execute`` listener of the host's may filter them, as for soft deletion or tenants. A
    statement of the connection does not pass such listeners, so that they are asked here what they
    make of a SELECT, of which nothing is sent.
    """
    if not session.sync_session.dispatch.do_orm_execute:
        return condition
    plain, bind = select(leased.model), bind_of(session, leased)
    seen = await session.run_sync(_as_listeners_have_it, plain, bind)
    if seen is plain:
        return condition
    keys = seen.with_only_columns(leased.attribute(leased.key_name))
    # Criteria in options are rendered for a statement of the ORM alone, and never within a claim:
    # so the statement is taken as the ORM has compiled it.
    compiled: Any = keys.compile(dialect=bind.dialect)
    core: Select[Any] = compiled.compile_state.statement
    if core.get_final_froms() != [leased.table]:
        return and_(condition, leased.key.in_(core.correlate(None)))
    return condition if core.whereclause is None else and_(condition, core.whereclause)


def _as_listeners_have_it(
    session: Session, plain: Select[Any], bind: Engine | Connection
) -> Select[Any]:
    statements = [plain]

    def capture(state: ORMExecuteState) -> Result[Any]:
        if isinstance(state.statement, Select):
            statements.append(state.statement)
        return IteratorResult(SimpleResultMetaData(["row"]), iter(()))

    # On the instance, so behind those of its class.
    event.listen(session, "do_orm_execute", capture)
    try:
        Session.execute(session, plain, bind_arguments={"bind": bind})
    finally:
        event.remove(session, "do_orm_execute", capture)
    return statements[-1]
