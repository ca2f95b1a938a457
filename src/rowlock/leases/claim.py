"""Claim: lease eligible rows in one short transaction and hand out tickets. Load: read the rows
under their tokens when work on them begins.

Trust is counted from before the statement is sent, so that a slow answer shortens it. Related rows
that a dead holder of a claimed row had locked are released in the same transaction. What listeners
of the host's session hide from reads is not leased either: `as_seen`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from traceback import walk_tb
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
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker
from sqlalchemy.orm import ORMExecuteState, Session
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock.clock import monotonic
from rowlock.database.faults import is_outage, is_refused
from rowlock.database.pools import claim_slot
from rowlock.database.transaction import bind_of, in_transaction
from rowlock.dialects.contract import LEASES
from rowlock.execution import execute
from rowlock.leases.acquire import needed_options
from rowlock.leases.claim_request import ClaimedRow, ClaimRequest, Position, check_keys
from rowlock.leases.item import PipelineItem, leases_of
from rowlock.leases.release import release_dead
from rowlock.rows.leased_table import LeasedTable, ModelT
from rowlock.rows.lock_tokens import fresh_token


async def claim(
    session_factory: async_sessionmaker[AsyncSession],
    request: ClaimRequest,
    *,
    lease_margin: timedelta,
    timeout: timedelta,
    locker: Any = None,
    reached: Callable[[Position], None] | None = None,
) -> list[PipelineItem[Any]]:
    """Lease up to `request.limit` rows, oldest first. The holder's trust ends before the lease, by
    `lease_margin`. `reached` is called with the position of the last row, once it is leased for
    good. `LockWaitTimeout` if the table's lockset was kept locked in this process for `timeout`.
    """
    engine = bind_of(session_factory(), request.leased).engine
    request = replace(request, digits=fresh_token().hex)
    async with (
        LEASES.on(engine.dialect.name).excluding(request.leased, timeout=timeout) as in_lockset,
        claim_slot(engine, wait_s=timeout.total_seconds() / 2),
    ):
        sent_at = monotonic()

        async def lease(session: AsyncSession, connection: AsyncConnection) -> list[ClaimedRow]:
            seen = request
            eligible = await as_seen(session, request.leased, request.eligible)
            if eligible is not request.eligible:
                # What a listener asks for may differ from claim to claim.
                seen = replace(request, eligible=eligible, statements={})
            held = in_lockset | request.left_out
            rows = await LEASES.of(connection).claim(connection, seen, held)
            check_keys(request.leased, [row.id for row in rows])
            await _release_related_of_dead(connection, request, rows)
            return rows

        transact = partial(in_transaction, session_factory, request.leased, timeout=timeout)
        autocommit = not request.related
        try:
            rows = await transact(lease, purpose="claim rows", autocommit=autocommit)
        except Exception as error:
            # An autocommitted claim has leased its rows before their values are decoded, and any
            # type may fail at that; without an answer their tokens are unknown here.
            if autocommit and not (is_outage(error) or is_refused(error)):
                await transact(
                    lambda _, connection: LEASES.of(connection).release_claim(connection, request),
                    purpose="release rows of a claim that cannot be read",
                )
            raise
    # A place that cannot be read is none to resume behind.
    last = next((row for row in reversed(rows) if row.unreadable is None), None)
    if last is not None and reached is not None:
        reached(last.position)
    return _items_of(
        rows,
        request,
        sent_at=sent_at,
        trust_s=(request.lock_timeout - lease_margin).total_seconds(),
        session_factory=session_factory,
        locker=locker,
    )


def _items_of(
    rows: Sequence[ClaimedRow],
    request: ClaimRequest,
    *,
    sent_at: float,
    trust_s: float,
    session_factory: async_sessionmaker[AsyncSession],
    locker: Any,
) -> list[PipelineItem[Any]]:
    return [
        PipelineItem(
            # Of the base class, where pyright does not look.
            id=row.id,  # pyright: ignore[reportCallIssue]
            lock_token=row.lock_token,
            lock_owner=request.owner,
            lock_expires_at=row.lock_expires_at,
            prev_lock_expired=row.dead_token is not None,
            attempt=1
            if row.attempts is None
            else min(row.attempts, request.leased.attempts_max) + 1,
            place=float("-inf") if row.place is None else row.place.timestamp(),
            claimed_at=sent_at,
            trusted_until=sent_at + trust_s,
            session_factory=session_factory,
            locker=locker,
            unreadable=row.unreadable,
            leased=request.leased,
            _claimed=row.row,
        )
        for row in rows
    ]


async def _release_related_of_dead(
    connection: AsyncConnection, request: ClaimRequest, rows: Sequence[ClaimedRow]
) -> None:
    for died_here in (True, False):
        ours = [row.dead_token for row in rows if row.died_here is died_here]
        dead = [token for token in ours if token is not None]
        for related in request.related if dead else ():
            await release_dead(connection, related, dead, only_ended=not died_here)


def may_be_newer(error: BaseException) -> bool:
    """Whether a row that could not be read because of `error` need not be damaged: newer code may
    have a member of an `Enum` or a kind of row for which SQLAlchemy raises LookupError or
    AssertionError, and Python's ``enum`` a ValueError. A column's type may ask a server that is
    away. And `row_hidden`.
    """
    *_, module = [None, *(one.f_globals.get("__name__") for one, _ in walk_tb(error.__traceback__))]
    kinds = (LookupError, AssertionError, ConnectionError, TimeoutError, NoResultFound)
    return isinstance(error, kinds) or module == "enum"


def row_hidden() -> Exception:
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
    """Return, in the order of `items`, detached rows with the `compared` columns; None where a
    lease is no longer theirs.
    """
    bind = bind_of(session, leased)
    dialect = LEASES.on(bind.dialect.name)

    def build() -> Select[Any]:
        found = select(leased.model).where(dialect.matches_leases(leased))
        return found.options(*options, *needed_options(leased, compared))

    # Options are the host's, made anew each time.
    statement = build() if options else leased.prepared((load_rows, dialect, *compared), build)
    parameters = dialect.lease_parameters(leased, leases_of(items))
    found = await execute(session, statement, parameters, bind_arguments={"bind": bind})
    rows: Sequence[Any] = found.scalars().unique().all()
    by_lease = {(getattr(row, leased.key_name), row.lock_token): row for row in rows}
    session.expunge_all()
    return [by_lease.get(lease) for lease in leases_of(items)]


async def as_seen(
    session: AsyncSession, leased: LeasedTable, condition: ColumnElement[bool]
) -> ColumnElement[bool]:
    """Return `condition` for those rows alone that SELECTs of `session` return: a
    ``do_orm_execute`` listener of the host's may filter them, as for soft deletion or tenants.
    Statements of the connection do not pass it, so it is given a SELECT here, which is not sent.
    """
    # Ours, such as that of the streams, which sees all sessions, filter nothing.
    listeners: Any = session.sync_session.dispatch.do_orm_execute
    if all(str(getattr(one, "__module__", "")).startswith("rowlock.") for one in listeners):
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
