"""Leases on PostgreSQL: one statement each; row locks keep replicas apart.

Locks are ``FOR NO KEY UPDATE``: a plain ``FOR UPDATE`` would collide with the ``FOR KEY SHARE``
that every insert of a referencing row takes. They skip what is locked, so that one long transaction
holds up no other row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    Column,
    ColumnElement,
    Connection,
    Executable,
    Integer,
    String,
    Table,
    Text,
    Update,
    Uuid,
    and_,
    any_,
    bindparam,
    case,
    cast,
    column,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
    text,
    true,
    tuple_,
    type_coerce,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate
from sqlalchemy.sql.selectable import TableValuedAlias
from sqlalchemy.types import NullType

from rowlock.dialects.contract import LeaseDialect
from rowlock.dialects.postgresql.rows import (
    fits_array,
    name_in_database,
    resolved_type,
    unnested,
)
from rowlock.errors import PipelineError
from rowlock.leases.claim_request import (
    ClaimedRow,
    ClaimRequest,
    Lease,
    Range,
    WrittenKey,
    checked_keys,
    claim_parameters,
    count_deaths,
    if_readable,
    is_not_spoilt,
    is_spoilt,
    key_as_read,
    spoilt_parameters,
    unreadable_column,
    values_read,
)
from rowlock.leases.table_looks import IndexSeen, Query, plan_of
from rowlock.rows.assignments import ColumnValues, Slot, without_onupdate
from rowlock.rows.database_time import UtcDateTime, database_now, database_time_after
from rowlock.rows.eligibility import is_reserved_by, order_column, was_main_lease
from rowlock.rows.lease_values import leased_values
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.lock_tokens import (
    CLAIM_DIGITS,
    COUNTED,
    COUNTS_AT,
    FEW_MAX,
    IN_CROWD,
    MARK_AT,
    VARIANT_DIGIT_AT,
    VERSION_DIGIT_AT,
    is_of_claim,
)


def _claimed(request: ClaimRequest, key: Any, returned: Sequence[Any]) -> ClaimedRow:
    unreadable, is_whole, place, expires_at, dead_token, died_here, attempts, token, *row = returned
    if token is None:
        raise PipelineError(
            f"rows of {request.leased.name} have no lock_token although they were leased: does a"
            " trigger clear it?"
        )
    values = row if request.with_rows and is_whole and unreadable is None else None
    if values is not None:
        values[request.leased.places[request.leased.key_name]] = key
    return ClaimedRow(
        key,
        token,
        expires_at,
        dead_token,
        attempts,
        place,
        place,
        values,
        bool(died_here),
        unreadable,
    )


def _claiming(
    request: ClaimRequest, key_range: Range, *, leaves_spoilt_out: bool
) -> ReturningUpdate[*tuple[Any, ...]]:
    leased = request.leased
    token = leased.column("lock_token")
    attempts = leased.column("attempts") if leased.has_schedule else null()
    ordered = (
        select(
            *([_ctid(leased).label("rowlock_place")] if leased.has_places else ()),
            leased.key.label("id"),
            case((was_main_lease(leased, request.lockers), token), else_=None).label("dead_token"),
            and_(token.is_not(None), leased.column("lock_owner") == request.owner).label(
                "died_here"
            ),
            is_reserved_by(leased, request.owner).label("is_reserved"),
            type_coerce(order_column(leased), UtcDateTime).label("place"),
        )
        .where(
            request.eligible,
            _is_behind(leased, key_range),
            _is_not_left_out(leased),
            is_not_spoilt(leased) if leaves_spoilt_out else true(),
        )
        .order_by(*request.oldest_first)
        .limit(bindparam("rowlock_limit", type_=Integer))
        .with_for_update(key_share=True, skip_locked=True, of=leased.model)
        .cte("rowlock_line")
    )
    # RETURNING keeps no order, and keys sort by the database's rules, not by Python's.
    due = select(
        ordered, func.row_number().over().label("number"), func.count().over().label("count")
    ).cte("rowlock_due")
    values, is_whole = (
        values_read(leased, resolved_type=resolved_type, size_of=_size_of, given={leased.key})
        if request.with_rows
        else ((), true())
    )
    returned = (
        due.c.number,
        key_as_read(leased),
        unreadable_column(leased),
        is_whole,
        if_readable(due.c.place),
        type_coerce(leased.column("lock_expires_at"), UtcDateTime),
        due.c.dead_token,
        due.c.died_here,
        attempts.cast(Integer),
        token,
        *values,
    )
    return (
        update(leased.table)
        .where(_is_in(leased, ordered), leased.key == due.c.id)
        .values(
            leased_values(
                leased,
                token=_new_token(token, due),
                owner=request.owner,
                expires_at=database_time_after(request.lock_timeout),
            )
        )
        .returning(*returned)
    )


def _ctid(leased: LeasedTable) -> ColumnElement[Any]:
    # Named by its table: what is ready may name others, which have one, too.
    place = column("ctid", NullType())
    place.table = leased.table
    return place


def _is_in(leased: LeasedTable, locked: CTE) -> ColumnElement[bool]:
    # By its place: for a join by key the planner reads, and hashes, the whole table up to some
    # 50,000 rows. A row that another transaction wrote between the snapshot of the statement and
    # its lock has a place that this snapshot does not see: it is left to the next statement.
    if not leased.has_places:
        return true()
    places = select(locked.c.rowlock_place).scalar_subquery()
    return any_(func.array(places)) == _ctid(leased)


def _size_of(column: Column[Any]) -> ColumnElement[int]:
    # Of text the server knows the length without reading it; of the rest, which may be of any type
    # there, how much is stored. What the column really is need not be what the model says.
    is_text = resolved_type(column.type).__visit_name__ == "JSON" or isinstance(
        resolved_type(column.type), String
    )
    return func.octet_length(cast(column, Text)) if is_text else func.pg_column_size(column)


def _is_not_left_out(leased: LeasedTable) -> ColumnElement[bool]:
    key, token = leased.key, leased.column("lock_token")
    left_out, held = (
        select(unnested([("key", key.type)], name=name, prefix=f"rowlock_{name}_").c.key)
        for name in ("left_out", "own")
    )
    return and_(key.not_in(left_out), or_(token.is_(None), key.not_in(held)))


def _is_behind(leased: LeasedTable, key_range: Range) -> ColumnElement[bool]:
    # Each is one range of the index. Both kinds of rows in one condition would be an OR, for which
    # the index is walked from its start; so the rows that were never processed are a line of their
    # own.
    place, key = leased.column(order_column(leased).key), leased.key
    after_key = bindparam("rowlock_after_key", type_=key.type)
    match key_range:
        case Range.ALL:
            return true()
        case Range.NEVER_PROCESSED:
            return and_(place.is_(None), key > after_key)
        case Range.PLACED:
            return tuple_(place, key) > tuple_(
                bindparam("rowlock_after_place", type_=place.type), after_key
            )


def _recounting(leased: LeasedTable) -> Update:
    token, attempts = leased.column("lock_token"), bindparam("rowlock_attempts", type_=Integer)
    values = {token: bindparam("rowlock_new_token", type_=token.type)}
    return (
        update(leased.table)
        .where(
            leased.key == bindparam("rowlock_key", type_=leased.key.type),
            token == bindparam("rowlock_token", type_=token.type),
        )
        .values(
            without_onupdate(
                leased,
                {**values, leased.column("attempts"): attempts} if leased.has_schedule else values,
            )
        )
    )


def _new_token(column: Column[Any], due: CTE) -> ColumnElement[Any]:
    random = func.replace(cast(func.gen_random_uuid(), Text), "-", "")
    between = func.substr(random, CLAIM_DIGITS + 1, MARK_AT - 1 - CLAIM_DIGITS)
    digits = func.overlay(bindparam("rowlock_digits", type_=Text), between, CLAIM_DIGITS + 1)

    def with_counts(variant: str, counts: Any) -> ColumnElement[Any]:
        return func.overlay(func.overlay(digits, variant, VARIANT_DIGIT_AT), counts, COUNTS_AT)

    old = func.replace(cast(due.c.dead_token, Text), "-", "")
    variant = func.substr(old, VARIANT_DIGIT_AT, 1)
    # Not `in_`, whose list would be put into the text of each claim anew.
    was_counted = or_(variant == COUNTED, variant == IN_CROWD)
    # What was counted is kept for `release_claim`, until it is counted further.
    counts = case((was_counted, func.substr(old, COUNTS_AT, MARK_AT - COUNTS_AT)), else_="0000")
    is_in_crowd = due.c.count + bindparam("rowlock_count", type_=Integer) > FEW_MAX
    text = case(
        (due.c.died_here, with_counts(COUNTED, counts)),
        (is_in_crowd, with_counts(IN_CROWD, "0000")),
        else_=digits,
    )
    version = case((due.c.is_reserved, "8"), else_="4")
    token = func.overlay(text, version, VERSION_DIGIT_AT)
    # A Uuid that is declared not to be native is kept as its 32 digits.
    return cast(token, Uuid) if getattr(resolved_type(column.type), "native_uuid", True) else token


_HAS_PLACES = text(
    "SELECT relkind = 'r' AND NOT relhassubclass FROM pg_catalog.pg_class "
    "WHERE oid = to_regclass(:table)"
)
# Not found by the `tableoid` of its rows: a view has none.
_TYPE_IN_DATABASE = text(
    "SELECT format_type(atttypid, atttypmod) FROM pg_catalog.pg_attribute "
    "WHERE attrelid = to_regclass(:table) AND attname = :column"
)


_INDEXES = text(
    "SELECT i.relname, pg_get_indexdef(x.indexrelid), x.indisvalid,"
    " EXISTS (SELECT 1 FROM pg_constraint k WHERE k.conindid = x.indexrelid),"
    " EXISTS (SELECT 1 FROM pg_stat_progress_create_index p WHERE p.index_relid = x.indexrelid)"
    " FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid"
    " WHERE x.indrelid = to_regclass(:name) AND NOT x.indisprimary ORDER BY i.relname LIMIT 200"
)


class PostgresqlLeases(LeaseDialect):
    async def claim(
        self, connection: AsyncConnection, request: ClaimRequest, held: frozenset[Any]
    ) -> list[ClaimedRow]:
        """Lease in one statement: the locking SELECT feeds the UPDATE.

        The SELECT stands in a CTE, which PostgreSQL evaluates once; as a plain subquery the planner
        may run it again for each row and lease more than the limit.
        """
        key_range, own_rows = Range.of(request.after), request.own_rows()
        leased, spoilt = request.leased, request.leased.spoilt_keys
        known = len(spoilt)
        statement = request.prepared(
            (_claiming, key_range, request.with_rows, known > 0),
            lambda: _claiming(request, key_range, leaves_spoilt_out=known > 0),
        )
        parameters = claim_parameters(request) | {
            "rowlock_digits": request.digits,
            "rowlock_count": own_rows.total,
            "rowlock_left_out_key": [*held, *own_rows.running],
            "rowlock_own_key": list(own_rows.held),
        }
        if spoilt:
            parameters |= spoilt_parameters(spoilt)
        rows = sorted((await connection.execute(statement, parameters)).all(), key=itemgetter(0))
        keys = await checked_keys(connection, leased, [row[1] for row in rows], owner=request.owner)
        claimed = [
            _claimed(request, key, row[2:])
            for key, row in zip(keys, rows, strict=True)
            if not isinstance(key, WrittenKey)
        ]
        if len(claimed) < len(rows):
            left = [key.written for key in keys if isinstance(key, WrittenKey)]
            await self.release_claim(connection, request, left)
            if not claimed and len(spoilt) > known:
                # Such rows alone must not make those behind them wait for the next fetch.
                return await self.claim(connection, request, held)
        counted = await count_deaths(connection, request, claimed, own_rows=own_rows)
        if counted is claimed:
            return claimed
        # Deaths are rare: what the token says of them is one more statement.
        recount = request.prepared(_recounting, lambda: _recounting(request.leased))
        recounted = [
            {
                "rowlock_key": row.id,
                "rowlock_token": before.lock_token,
                "rowlock_new_token": row.lock_token,
                "rowlock_attempts": row.attempts,
            }
            for before, row in zip(claimed, counted, strict=True)
            if row is not before
        ]
        await connection.execute(recount, recounted)
        return counted

    async def release_claim(
        self, connection: AsyncConnection, request: ClaimRequest, spoilt: Sequence[Any] = ()
    ) -> None:
        """A token after a death stays, ended and with what was counted before: the next claim
        counts that death.
        """
        leased = request.leased
        token, owner = leased.column("lock_token"), leased.column("lock_owner")
        ours = and_(owner == request.owner, is_of_claim(token, request.digits))
        digits = func.replace(cast(token, Text), "-", "")
        died = func.substr(digits, VARIANT_DIGIT_AT, 1) == COUNTED
        values: ColumnValues = {
            token: case((died, token), else_=null()),
            owner: case((died, owner), else_=null()),
            leased.column("lock_expires_at"): case(
                (died, database_time_after(-request.lock_timeout)), else_=null()
            ),
        }
        await connection.execute(
            update(leased.table)
            .where(self.skip_locked(leased, ours), is_spoilt(leased) if spoilt else true())
            .values(without_onupdate(leased, values)),
            spoilt_parameters(spoilt) if spoilt else None,
        )

    def matches_leases(self, leased: LeasedTable) -> ColumnElement[bool]:
        pairs = self.unnested(leased, ())
        return tuple_(leased.key, leased.column("lock_token")).in_(
            select(pairs.c.key, pairs.c.token)
        )

    def lease_parameters(self, leased: LeasedTable, leases: Sequence[Lease]) -> dict[str, Any]:
        return {
            "rowlock_held_key": [key for key, _ in leases],
            "rowlock_held_token": [token for _, token in leases],
        }

    def held_parameters(
        self, leased: LeasedTable, leases: Sequence[Lease], values: Mapping[Slot, Sequence[Any]]
    ) -> dict[str, Any] | None:
        if not all(fits_array(type_) for _, type_ in values):
            return None
        given = {f"rowlock_held_{name}": list(each) for (name, _), each in values.items()}
        return self.lease_parameters(leased, leases) | given

    async def has_places(self, connection: AsyncConnection, leased: LeasedTable) -> bool:
        """A view has none, and each partition, as each table that inherits, has its own."""
        table = name_in_database(connection, leased.table)
        return bool(await connection.scalar(_HAS_PLACES, {"table": table}))

    def guarded_update(
        self,
        leased: LeasedTable,
        slots: Sequence[Slot],
        *,
        unless_changed: Mapping[str, Column[Any]],
        values: Callable[[Mapping[str, ColumnElement[Any]]], ColumnValues],
    ) -> Executable:
        given = self.unnested(leased, slots)
        last = leased.column("last_processed_at")
        own = [given.c[name] for name, _ in slots if name not in unless_changed]
        free = (
            select(_ctid(leased).label("rowlock_place"), leased.key.label("rowlock_key"), *own)
            .where(
                leased.key == given.c.key,
                leased.column("lock_token") == given.c.token,
                or_(last.is_(None), last < database_now()),
                *(
                    column.is_not_distinct_from(given.c[name])
                    for name, column in unless_changed.items()
                ),
            )
            .with_for_update(key_share=True, skip_locked=True, of=leased.table)
            .cte("rowlock_free")
        )
        written = (
            update(leased.table)
            .where(_is_in(leased, free), leased.key == free.c.rowlock_key)
            .values(values({name: free.c[name] for name, _ in slots if name in free.c}))
            .returning(free.c[slots[0][0]].label("number"))
            .cte("rowlock_written")
        )
        are_all = func.count() == bindparam("rowlock_count", type_=Integer)
        numbers = func.array_agg(written.c.number, type_=ARRAY(Integer))
        return select(func.count(), case((are_all, null()), else_=numbers)).select_from(written)

    def unnested(self, leased: LeasedTable, slots: Iterable[Slot]) -> TableValuedAlias:
        leases = [("key", leased.key.type), ("token", leased.column("lock_token").type)]
        return unnested([*leases, *slots], name="held", prefix="rowlock_held_")

    def skip_locked(
        self, leased: LeasedTable, condition: ColumnElement[bool], *, limit: int | None = None
    ) -> ColumnElement[bool]:
        free = (
            select(leased.key.label("key"))
            .where(condition)
            .limit(limit)
            .with_for_update(key_share=True, skip_locked=True)
        )
        return leased.key.in_(select(free.cte("free").c.key))

    async def kept_as(
        self, connection: AsyncConnection, column: Column[Any], values: Iterable[datetime]
    ) -> list[ColumnElement[Any]]:
        """Cast to the type that the column has in the database, which rounds as storing does: the
        model may not have its precision.
        """
        written = [literal(value, column.type) for value in values]
        type_name = await connection.scalar(
            _TYPE_IN_DATABASE,
            {"table": name_in_database(connection, column.table), "column": column.name},
        )
        if not type_name:
            return list(written)
        return [value.op("::")(literal_column(type_name)) for value in written]

    def indexes(self, connection: Connection, table: Table) -> tuple[IndexSeen, ...]:
        name = connection.dialect.identifier_preparer.format_table(table)
        return tuple(
            IndexSeen(one, definition.partition(" USING ")[2], *states)
            for one, definition, *states in connection.execute(_INDEXES, {"name": name})
        )

    def serving(
        self, connection: Connection, query: Query, *, table: Table, names: Sequence[str]
    ) -> str | None:
        """The plan is made without sorting, which does better than an index in a small table."""
        connection.exec_driver_sql("SET LOCAL enable_sort = off")
        [[plan]] = plan_of(connection, query, prefix="EXPLAIN (FORMAT JSON) ")
        # As text, whatever the driver makes of JSON.
        told = plan if isinstance(plan, str) else json.dumps(plan, ensure_ascii=False)
        if '"Node Type": "Sort"' in told:
            return None
        named = ((name, f'"Index Name": {json.dumps(name, ensure_ascii=False)}') for name in names)
        return next((name for name, node in named if node in told), None)
