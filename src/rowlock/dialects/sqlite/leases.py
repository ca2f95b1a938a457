"""Leases on SQLite: one writer at a time, so a claim may read first and write then.

``BEGIN IMMEDIATE`` takes the file's write lock before the first read, which keeps several processes
on one file apart and never fails half-way for want of an upgrade; WAL lets readers go on meanwhile.
Within a process, keys that are held through the lockset of the table are left alone, as
``SKIP LOCKED`` does elsewhere.

Source: SQLite, "The INDEXED BY Clause" and "EXPLAIN QUERY PLAN".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Table,
    Text,
    Update,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    null,
    select,
    text,
    true,
    tuple_,
    type_coerce,
    union_all,
    update,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.selectable import FromClause, TypedReturnsRows
from sqlalchemy.types import NullType

from rowlock.dialects.contract import LeaseDialect
from rowlock.dialects.sqlite.rows import (
    as_json,
    is_read_alike,
    resolved_type,
)
from rowlock.errors import LockWaitTimeout
from rowlock.leases.claim_request import (
    ClaimedRow,
    ClaimRequest,
    Lease,
    OwnRows,
    Range,
    WrittenKey,
    checked_keys,
    claim_parameters,
    count_deaths,
    if_readable,
    is_not_spoilt,
    key_as_read,
    spoilt_parameters,
    unreadable_column,
    values_read,
    written_key,
)
from rowlock.leases.table_looks import IndexSeen, Query, plan_of
from rowlock.locks.locker import LOCKERS
from rowlock.rows.assignments import Slot
from rowlock.rows.database_time import UtcDateTime, database_now
from rowlock.rows.eligibility import is_reserved_by, order_column, was_main_lease
from rowlock.rows.lease_values import leased_values
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.lock_tokens import FEW_MAX

TOKEN_CHARS = 32
_SORTED = "USE TEMP B-TREE FOR ORDER BY"
_BODY = re.compile(r"\bON\b[^(]*(\(.*)", re.IGNORECASE | re.DOTALL)


def explaining(connection: Connection) -> str:
    # The driver keeps statements that were prepared, and SQLite makes no plan anew of one that only
    # explains: on a connection that lives long it would be that of an index that is gone.
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    return f"EXPLAIN QUERY PLAN /* {int(version)} */ "


async def _read_due(
    connection: AsyncConnection, request: ClaimRequest, held: frozenset[Any], *, own_rows: OwnRows
) -> list[tuple[Any, Any]]:
    """A row that its key does not find, or that is in hand already, takes no place of the others:
    they are read again without it.
    """
    leased, key_range, spoilt = request.leased, Range.of(request.after), request.leased.spoilt_keys
    while True:
        known, build = len(spoilt), partial(_due, request, key_range, held)
        due = (
            build()
            if held
            else request.prepared((_due, key_range, request.with_rows, known > 0), build)
        )
        parameters = claim_parameters(request) | (spoilt_parameters(spoilt) if spoilt else {})
        rows = (await connection.execute(due, parameters)).all()
        keys = [row.key_as_read for row in rows]
        keys = await checked_keys(connection, leased, keys, owner=request.owner)
        found = [
            (row, key)
            for row, key in zip(rows, keys, strict=True)
            if not isinstance(key, WrittenKey)
        ]
        left_out = len(held)
        if any(
            key in own_rows.running or (row.died_here and key in own_rows.held)
            for row, key in found
        ):
            held = held | own_rows.running | own_rows.held
        # Each iteration leaves another row alone, and those are bounded.
        if len(spoilt) == known and len(held) == left_out:
            return found


async def _has_triggers(connection: AsyncConnection, request: ClaimRequest) -> bool:
    if _has_triggers not in request.statements:
        table = request.leased.table
        schema = f"{table.schema}." if table.schema else ""
        triggers = f"FROM {schema}sqlite_master WHERE type = 'trigger' AND tbl_name = :name"
        found = await connection.scalar(text(f"SELECT count(*) {triggers}"), {"name": table.name})
        request.statements[_has_triggers] = bool(found)
    return bool(request.statements[_has_triggers])


def _claimed(request: ClaimRequest, due: Sequence[Any], *, key: Any, in_crowd: bool) -> ClaimedRow:
    leased = request.leased
    _written, _key, dead, died_here, is_reserved, attempts, place, as_written, now, *read = due
    unreadable, is_whole, *row = read
    token = leased.new_token(is_reserved=is_reserved, in_crowd=in_crowd)
    expires_at = now + request.lock_timeout
    given = {leased.key_name: key, "lock_token": token, "lock_owner": request.owner}
    given["lock_expires_at"] = expires_at
    if attempts is not None:
        given["attempts"] = attempts
    # It was read before it was leased.
    for name, value in given.items() if row else ():
        row[leased.places[name]] = value
    values = row if row and is_whole and unreadable is None else None
    return ClaimedRow(
        key,
        token,
        expires_at,
        dead,
        attempts,
        place,
        as_written,
        values,
        bool(died_here),
        unreadable,
    )


def _due(
    request: ClaimRequest, key_range: Range, held: frozenset[Any]
) -> TypedReturnsRows[*tuple[Any, ...]]:
    leased = request.leased
    token = leased.column("lock_token")
    attempts = leased.column("attempts") if leased.has_schedule else null()
    lease = ("lock_token", "lock_owner", "lock_expires_at")
    given = (*lease, "attempts") if leased.has_schedule else lease
    values, is_whole = (
        values_read(
            leased,
            resolved_type=resolved_type,
            size_of=func.length,
            given={leased.key, *map(leased.column, given)},
        )
        if request.with_rows
        else ((), true())
    )
    ordered = select(
        written_key(leased).label("id"),
        key_as_read(leased).label("key_as_read"),
        # What a script wrote there must not fail the claim of all rows.
        case(
            (
                and_(was_main_lease(leased, request.lockers), func.length(token) == TOKEN_CHARS),
                token,
            )
        ).label("dead_token"),
        and_(token.is_not(None), leased.column("lock_owner") == request.owner).label("died_here"),
        is_reserved_by(leased, request.owner).label("is_reserved"),
        cast(attempts, Integer).label("attempts"),
        if_readable(type_coerce(order_column(leased), UtcDateTime)).label("place"),
        type_coerce(order_column(leased), Text).label("place_as_written"),
        # The same for all of them: read once.
        database_now().label("now"),
        unreadable_column(leased).label("unreadable"),
        is_whole.label("is_whole"),
        # By names of ours: a column of the host's may be called like one of those above.
        *(value.label(f"rowlock_row_{number}") for number, value in enumerate(values)),
    ).where(request.eligible, leased.key.not_in(held) if held else true())
    if leased.spoilt_keys:
        ordered = ordered.where(is_not_spoilt(leased))
    first, *others = (ordered.where(range_) for range_ in _ranges(leased, key_range))
    limit: ColumnElement[int] = bindparam("rowlock_limit", type_=Integer)
    if request.gates:
        # Asked once, and first. In the condition alone SQLite asks it of each row that is due.
        limit = case((and_(*request.gates), limit), else_=0)
    if others:
        return union_all(first, *others).order_by("place_as_written", "id").limit(limit)
    return first.order_by(*request.oldest_first).limit(limit)


def _ranges(leased: LeasedTable, key_range: Range) -> list[ColumnElement[bool]]:
    # As text, because times that others wrote in another shape are found by the very text alone.
    place, key = type_coerce(order_column(leased), Text), leased.key
    after_place, after_key = (
        bindparam("rowlock_after_place", type_=Text),
        bindparam("rowlock_after_key", type_=key.type),
    )
    match key_range:
        case Range.ALL:
            return [true()]
        case Range.NEVER_PROCESSED:
            return [and_(place.is_(None), key > after_key)]
        case Range.PLACED:
            # Two ranges that are merged as they are read. Of a comparison of pairs SQLite would use
            # the first column alone, if the key is the rowid, and walk all rows of the place again.
            return [and_(place == after_place, key > after_key), place > after_place]


def _leasing(request: ClaimRequest) -> Update:
    # By its key as written, since another row's key may be the same value in another shape.
    leased = request.leased
    values = leased_values(
        leased,
        token=bindparam("rowlock_token", type_=leased.column("lock_token").type),
        owner=request.owner,
        expires_at=bindparam("rowlock_expiry", type_=UtcDateTime),
    )
    if leased.has_schedule:
        values[leased.column("attempts")] = bindparam("rowlock_attempts", type_=Integer)
    key = bindparam("rowlock_key", type_=NullType())
    return update(leased.table).where(written_key(leased) == key).values(values)


def _is_sent_as_json(leased: LeasedTable) -> bool:
    # A text may hold a NUL, behind which JSON is cut.
    return all(
        isinstance(one.type, Integer | Uuid) and is_read_alike(one.type)
        for one in (leased.key, leased.column("lock_token"))
    )


class SqliteLeases(LeaseDialect):
    @asynccontextmanager
    async def excluding(
        self, leased: LeasedTable, *, timeout: timedelta
    ) -> AsyncIterator[frozenset[Any]]:
        """Hold the lockset of the table until the claim is committed."""
        name, wait_s = leased.table.name, timeout.total_seconds()
        lock, lockset = LOCKERS.on("sqlite").get_lockset(name)
        async with AsyncExitStack() as stack:
            try:
                # Bounded by itself: once leases are sent for, no timeout may drop them.
                async with asyncio.timeout(wait_s):
                    await stack.enter_async_context(lock)
            except TimeoutError:
                raise LockWaitTimeout(namespace=name, keys=(), timeout_s=wait_s) from None
            yield frozenset(lockset)

    async def claim(
        self, connection: AsyncConnection, request: ClaimRequest, held: frozenset[Any]
    ) -> list[ClaimedRow]:
        """Read what is due, then lease it, under the write lock taken at the start."""
        if request.with_rows and await _has_triggers(connection, request):
            # What they write when the row is leased would not be in it.
            request = replace(request, with_rows=False)
        own_rows = request.own_rows()
        found = await _read_due(connection, request, held, own_rows=own_rows)
        if not found:
            return []
        in_crowd = own_rows.total + len(found) > FEW_MAX
        claimed = [_claimed(request, row, key=key, in_crowd=in_crowd) for row, key in found]
        claimed = await count_deaths(connection, request, claimed, own_rows=own_rows)
        leasing = request.prepared(_leasing, lambda: _leasing(request))
        each = [
            {
                "rowlock_key": due.id,
                "rowlock_token": row.lock_token,
                "rowlock_attempts": row.attempts,
                "rowlock_expiry": row.lock_expires_at,
            }
            for (due, _), row in zip(found, claimed, strict=True)
        ]
        await connection.execute(leasing, each)
        return claimed

    def matches_leases(self, leased: LeasedTable) -> ColumnElement[bool]:
        """By key, then by pairs: SQLite uses no index for a comparison of pairs."""
        pair = tuple_(leased.key, leased.column("lock_token"))
        if _is_sent_as_json(leased):
            held = self.unnested(leased, ())
            return and_(
                leased.key.in_(select(held.c.key)), pair.in_(select(held.c.key, held.c.token))
            )
        return and_(
            leased.key.in_(bindparam("rowlock_held_key", expanding=True)),
            pair.in_(bindparam("rowlock_held_lease", expanding=True)),
        )

    def lease_parameters(self, leased: LeasedTable, leases: Sequence[Lease]) -> dict[str, Any]:
        if _is_sent_as_json(leased):
            given = self.held_parameters(leased, leases, {})
            assert given is not None
            return given
        return {"rowlock_held_key": [key for key, _ in leases], "rowlock_held_lease": list(leases)}

    def held_parameters(
        self, leased: LeasedTable, leases: Sequence[Lease], values: Mapping[Slot, Sequence[Any]]
    ) -> dict[str, Any] | None:
        types = [type_ for _, type_ in values]
        if not all(map(is_read_alike, types)):
            return None
        types = [leased.key.type, leased.column("lock_token").type, *types]
        keys, tokens = [key for key, _ in leases], [token for _, token in leases]
        written = as_json(types, [keys, tokens, *values.values()])
        return None if written is None else {"rowlock_held": written}

    def unnested(self, leased: LeasedTable, slots: Iterable[Slot]) -> FromClause:
        given = func.json_each(bindparam("rowlock_held", type_=Text)).table_valued("value")
        leases = [("key", leased.key.type), ("token", leased.column("lock_token").type)]
        columns = [
            type_coerce(given.c.value.op("->>")(literal_column(str(place))), type_).label(name)
            for place, (name, type_) in enumerate([*leases, *slots])
        ]
        return select(*columns).subquery("held")

    def skip_locked(
        self, leased: LeasedTable, condition: ColumnElement[bool], *, limit: int | None = None
    ) -> ColumnElement[bool]:
        """With the write lock in hand there is nothing to wait for."""
        if limit is None:
            return condition
        return leased.key.in_(select(leased.key).where(condition).limit(limit))

    def indexes(self, connection: Connection, table: Table) -> tuple[IndexSeen, ...]:
        """Read the schema; indexes of constraints have no statement there."""
        quote = connection.dialect.identifier_preparer.quote
        schema = "" if table.schema is None else f"{quote(table.schema)}."
        statement = text(
            f"SELECT name, sql FROM {schema}sqlite_master"  # noqa: S608 - a name, quoted
            " WHERE type = 'index' AND tbl_name = :name AND sql IS NOT NULL ORDER BY name LIMIT 200"
        )
        # What stands in front of the columns is left out.
        return tuple(
            IndexSeen(name, found[1] if (found := _BODY.search(sql)) else sql)
            for name, sql in connection.execute(statement, {"name": table.name})
        )

    def serving(
        self, connection: Connection, query: Query, *, table: Table, names: Sequence[str]
    ) -> str | None:
        """Demand each index; SQLite refuses where it does not fit."""
        preparer, prefix = connection.dialect.identifier_preparer, explaining(connection)
        source = f"FROM {preparer.format_table(table)}"
        # Refused, if the query is, also where there is no index to ask about.
        plan_of(connection, query, prefix=prefix)
        for name in names:
            demanded = (source, f"{source} INDEXED BY {preparer.quote(name)}")
            try:
                plan = plan_of(connection, query, prefix=prefix, instead=demanded)
            except OperationalError as error:
                if "no query solution" not in str(error):
                    raise
                continue
            if not any(_SORTED in str(row[-1]) for row in plan):
                return name
        return None
