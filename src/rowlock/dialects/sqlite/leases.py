"""Leases on SQLite: one writer at a time, so a claim may read first and write then.

``BEGIN IMMEDIATE`` takes the file's write lock before the first read, which keeps several processes
on one file apart and never fails half-way for want of an upgrade; WAL lets readers go on meanwhile.
Within a process, keys that are held through the lockset of the table are left alone, as
``SKIP LOCKED`` does elsewhere.

SQLAlchemy's driver would begin a deferred transaction by itself before the first write; ours is
begun by hand, so it does not.

Source: SQLite, "The INDEXED BY Clause" and "EXPLAIN QUERY PLAN".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias
from uuid import uuid4

from sqlalchemy import (
    Column,
    ColumnElement,
    Dialect,
    Integer,
    Text,
    Update,
    Uuid,
    and_,
    bindparam,
    case,
    func,
    literal,
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
from sqlalchemy.types import NullType, TypeEngine

from rowlock.dialects.contract import LeaseDialect
from rowlock.dialects.sqlite.rows import (
    as_json,
    is_read_alike,
    is_time,
    is_unchanged_document,
    keeps_large,
)
from rowlock.leases.claim_request import (
    ClaimedRow,
    ClaimRequest,
    Lease,
    OwnRows,
    Query,
    Range,
    claim_parameters,
    count_deaths,
    plan_of,
)
from rowlock.leases.keys import (
    WrittenKey,
    check_keys,
    checked_keys,
    is_not_spoilt,
    key_as_read,
    spoilt_parameters,
    written_key,
)
from rowlock.locks.locker import LOCKERS
from rowlock.rows.assignments import Slot
from rowlock.rows.database_time import UtcDateTime, database_now, same_time
from rowlock.rows.eligibility import is_reserved_by, order_column, was_main_lease
from rowlock.rows.expressions import is_small, times_read
from rowlock.rows.lease_values import leased_values
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.lock_tokens import FEW_MAX

_SORTED = "USE TEMP B-TREE FOR ORDER BY"


async def explaining(connection: AsyncConnection) -> str:
    """Return what stands before a query to ask for its plan; joins the caller's transaction."""
    # The driver keeps statements that were prepared, and SQLite makes no plan anew of one that only
    # explains: on a connection that lives long it would be that of an index that is gone.
    version = (await connection.exec_driver_sql("PRAGMA schema_version")).scalar_one()
    return f"EXPLAIN QUERY PLAN /* {int(version)} */ "


Reader: TypeAlias = Callable[[Any], Any]
"""Makes a value of what is written; None where it is taken as it is."""
UNREADABLE: Any = object()
"""Stands for a time that is none."""


async def _read_due(
    connection: AsyncConnection, request: ClaimRequest, held: frozenset[Any], *, own_rows: OwnRows
) -> list[tuple[Any, Any]]:
    """Return what is due, each row with its key.

    A row that its key does not find, or that is in hand already, takes no place of the others: they
    are read again without it.
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
        await check_keys(connection, leased, [key for _, key in found])
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
        found = f"SELECT count(*) {triggers}"
        request.statements[_has_triggers] = bool(
            await connection.scalar(text(found), {"name": table.name})
        )
    return bool(request.statements[_has_triggers])


@dataclass(frozen=True, slots=True)
class _Values:
    """Reads what SQLite gives: a column may hold anything there, and one such row must not fail the
    claim of all others.
    """

    token: Reader | None
    place: Reader | None
    attempts: Reader | None
    times: dict[str, Reader | None]

    @classmethod
    def of(cls, request: ClaimRequest, dialect: Dialect) -> _Values:
        def reader(type_: TypeEngine[Any]) -> Reader | None:
            return type_.dialect_impl(dialect).result_processor(dialect, None)

        leased = request.leased
        times = {name: reader(column.type) for name, column in times_read(leased).items()}
        return cls(
            reader(leased.column("lock_token").type),
            reader(UtcDateTime()),
            reader(Integer()),
            times,
        )

    def read_token(self, written: object) -> Any:
        # A token that is none says all the same that its holder died; nothing is held under the one
        # that is returned instead.
        return None if written is None else self._read(self.token, written, otherwise=uuid4())

    def read_place(self, written: object) -> datetime | None:
        time: datetime | None = self._read(self.place, written, otherwise=None)
        return time

    def read_times(self, written: Sequence[object]) -> dict[str, Any]:
        """Return times by their attributes; `UNREADABLE` for what is none."""
        each = zip(self.times.items(), written, strict=True)
        return {name: self._read(reader, one, otherwise=UNREADABLE) for (name, reader), one in each}

    def read_attempts(self, written: object) -> int:
        attempts: int = self._read(self.attempts, written, otherwise=0)
        return attempts if isinstance(attempts, int) else 0

    @staticmethod
    def _read(reader: Reader | None, written: object, *, otherwise: object) -> Any:
        try:
            return written if reader is None else reader(written)
        except (TypeError, ValueError, AttributeError):
            return otherwise


def _claimed(
    request: ClaimRequest,
    due: Sequence[Any],
    values: _Values,
    *,
    key: Any,
    now: datetime,
    in_crowd: bool,
) -> ClaimedRow:
    leased, count = request.leased, len(values.times)
    times = values.read_times(due[:count])
    _written, _key, dead, died_here, is_reserved, failed, place_as_written, _now, is_whole, *row = (
        due[count:]
    )
    attempts = None
    if leased.has_schedule:
        attempts = min(values.read_attempts(failed), leased.attempts_max)
    unreadable = next((name for name, time in times.items() if time is UNREADABLE), None)
    dead_token = values.read_token(dead)
    token = leased.new_token(is_reserved=is_reserved, in_crowd=in_crowd)
    expires_at = now + request.lock_timeout
    is_read = request.with_rows and unreadable is None and is_whole
    if is_read:
        # It was read before it was leased.
        lease = {"lock_token": token, "lock_owner": request.owner, "lock_expires_at": expires_at}
        counted = {"attempts": attempts} if leased.has_schedule else {}
        places = leased.places
        for name, value in {**times, **lease, **counted, leased.key_name: key}.items():
            row[places[name]] = value
    place = values.read_place(place_as_written)
    return ClaimedRow(
        id=key,
        lock_token=token,
        lock_expires_at=expires_at,
        dead_token=dead_token,
        attempts=attempts,
        place=place,
        place_as_written=place_as_written,
        row=row if is_read else None,
        died_here=bool(died_here),
        unreadable=unreadable,
    )


def _due(
    request: ClaimRequest, key_range: Range, held: frozenset[Any]
) -> TypedReturnsRows[*tuple[Any, ...]]:
    leased = request.leased
    token, attempts = (
        leased.column("lock_token"),
        leased.column("attempts") if leased.has_schedule else null(),
    )
    ordered = select(
        *(
            type_coerce(time, Text).label(f"rowlock_time_{name}")
            for name, time in times_read(leased).items()
        ),
        written_key(leased).label("id"),
        key_as_read(leased).label("key_as_read"),
        type_coerce(case((was_main_lease(leased, request.lockers), token), else_=None), Text).label(
            "dead_token"
        ),
        and_(token.is_not(None), leased.column("lock_owner") == request.owner).label("died_here"),
        is_reserved_by(leased, request.owner).label("is_reserved"),
        type_coerce(attempts, Text).label("attempts"),
        type_coerce(order_column(leased), Text).label("place_as_written"),
        # The same for all of them: read once.
        type_coerce(database_now(), Text).label("now"),
        and_(true(), *map(_is_small, _large_of(request))).label("is_whole"),
        *_whole_row(request),
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


def _whole_row(request: ClaimRequest) -> list[ColumnElement[Any]]:
    # By names of ours: a column of the host's may be called like one of those above.
    leased = request.leased
    columns = leased.attributes.values() if request.with_rows else ()
    # What is there in these is read otherwise, or not at all.
    names = ("lock_token", "lock_expires_at", *(("attempts",) if leased.has_schedule else ()))
    as_written = {
        leased.key,
        *(leased.column(name) for name in names),
        *times_read(leased).values(),
    }
    large = {id(column) for column in _large_of(request)}
    as_read = (
        type_coerce(column, Text)
        if column in as_written
        else case((_is_small(column), column))
        if id(column) in large
        else column
        for column in columns
    )
    return [column.label(f"rowlock_row_{number}") for number, column in enumerate(as_read)]


def _large_of(request: ClaimRequest) -> list[Column[Any]]:
    columns = request.leased.attributes.values() if request.with_rows else ()
    kept = request.leased.kept_columns
    return [column for column in columns if column not in kept and keeps_large(column)]


def _is_small(column: Column[Any]) -> ColumnElement[bool]:
    return is_small(func.length(column))


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


def _leasing(request: ClaimRequest, *, together: bool) -> Update:
    """Return the statement that leases rows by their keys as written, since another row's key may
    be the same value in another shape: all of a JSON text, or one.
    """
    leased, has_schedule = request.leased, request.leased.has_schedule
    slots = _lease_slots(leased)
    given: dict[str, ColumnElement[Any]] = {
        name: bindparam(f"rowlock_{name}", type_=type_) for name, type_ in slots
    }
    if together:
        given = dict(_json_rows(slots).c)
    values = leased_values(
        leased,
        token=given["token"],
        owner=request.owner,
        expires_at=bindparam("rowlock_expiry", type_=UtcDateTime),
    )
    if has_schedule:
        values[leased.column("attempts")] = given["attempts"]
    return update(leased.table).where(written_key(leased) == given["key"]).values(values)


def _lease_slots(leased: LeasedTable) -> list[Slot]:
    slots: list[Slot] = [("key", NullType()), ("token", leased.column("lock_token").type)]
    return [*slots, ("attempts", Integer())] if leased.has_schedule else slots


def _json_rows(slots: Sequence[Slot]) -> FromClause:
    given = func.json_each(bindparam("rowlock_held", type_=Text)).table_valued("value")
    columns = [
        type_coerce(given.c.value.op("->>")(literal_column(str(place))), type_).label(name)
        for place, (name, type_) in enumerate(slots)
    ]
    return select(*columns).subquery("held")


def _is_sent_as_json(leased: LeasedTable) -> bool:
    # A text may hold a NUL, behind which JSON is cut.
    return all(
        isinstance(one.type, Integer | Uuid) and is_read_alike(one.type)
        for one in (leased.key, leased.column("lock_token"))
    )


class SqliteLeases(LeaseDialect):
    @asynccontextmanager
    async def excluding(self, leased: LeasedTable) -> AsyncIterator[frozenset[Any]]:
        """Hold the lockset of the table until the claim is committed."""
        lock, lockset = LOCKERS.on("sqlite").get_lockset(leased.table.name)
        async with lock:
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
        values = _Values.of(request, connection.dialect)
        now = values.read_place(found[0][0].now)
        assert now is not None
        in_crowd = own_rows.total + len(found) > FEW_MAX
        claimed = [
            _claimed(request, row, values, key=key, now=now, in_crowd=in_crowd)
            for row, key in found
        ]
        claimed = await count_deaths(connection, request, claimed, own_rows=own_rows)
        slots, expiry = _lease_slots(request.leased), {"rowlock_expiry": now + request.lock_timeout}
        columns: list[list[Any]] = [[due.id for due, _ in found]]
        columns += [[row.lock_token for row in claimed], [row.attempts for row in claimed]]
        given = as_json([type_ for _, type_ in slots], columns[: len(slots)])
        statement = request.prepared(
            (_leasing, given is None), lambda: _leasing(request, together=given is not None)
        )
        if given is not None:
            await connection.execute(statement, {"rowlock_held": given} | expiry)
            return claimed
        names = [f"rowlock_{name}" for name, _ in slots]
        each = [dict(zip(names, row, strict=False)) | expiry for row in zip(*columns, strict=True)]
        await connection.execute(statement, each)
        return claimed

    async def release_claim(self, connection: AsyncConnection, request: ClaimRequest) -> None:
        """Do nothing: the claim was rolled back."""

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
            given = self.held_parameters(leased, leases, (), columns=())
            assert given is not None
            return given
        return {
            "rowlock_held_key": [key for key, _ in leases],
            "rowlock_held_lease": list(leases),
        }

    def held_parameters(
        self,
        leased: LeasedTable,
        leases: Sequence[Lease],
        slots: Sequence[Slot],
        *,
        columns: Sequence[Sequence[Any]],
    ) -> dict[str, Any] | None:
        types = [leased.key.type, leased.column("lock_token").type, *(one for _, one in slots)]
        keys, tokens = [key for key, _ in leases], [token for _, token in leases]
        written = as_json(types, [keys, tokens, *columns])
        return None if written is None else {"rowlock_held": written}

    def takes_arrays(self, slots: Sequence[Slot]) -> bool:
        """As JSON, where values of these types are numbers or texts."""
        return all(is_read_alike(one) for _, one in slots)

    def reads_alike(self, slots: Sequence[Slot]) -> bool:
        """Whether they are all of SQLAlchemy's plain types, or ours."""
        return all(is_read_alike(one) for _, one in slots)

    def unnested(self, leased: LeasedTable, slots: Sequence[Slot]) -> FromClause:
        return _json_rows(
            [("key", leased.key.type), ("token", leased.column("lock_token").type), *slots]
        )

    def skip_locked(
        self, leased: LeasedTable, condition: ColumnElement[bool], *, limit: int | None = None
    ) -> ColumnElement[bool]:
        """With the write lock in hand there is nothing to wait for."""
        return (
            condition
            if limit is None
            else leased.key.in_(select(leased.key).where(condition).limit(limit))
        )

    def is_unchanged(self, column: Column[Any], value: object) -> ColumnElement[bool]:
        """Times and JSON are text here, which others may write in another shape."""
        if (is_document := is_unchanged_document(column, value)) is not None:
            return is_document
        given = literal(value, column.type)
        return same_time(column, given) if is_time(column) else column.is_not_distinct_from(given)

    async def kept_as(
        self, connection: AsyncConnection, column: Column[Any], values: Iterable[datetime]
    ) -> list[ColumnElement[Any]]:
        """What is kept is what the column's own type makes of a time."""
        return [literal(value, column.type) for value in values]

    async def is_served_by(
        self, connection: AsyncConnection, leased: LeasedTable, *, query: Query, index: str
    ) -> bool:
        preparer = connection.dialect.identifier_preparer
        table = f"FROM {preparer.format_table(leased.table)}"
        demanded = (table, f"{table} INDEXED BY {preparer.quote(index)}")
        prefix = await explaining(connection)
        try:
            plan = await plan_of(connection, query, prefix=prefix, instead=demanded)
        except OperationalError:  # no query solution
            return False
        return not any(_SORTED in str(row[-1]) for row in plan.all())
