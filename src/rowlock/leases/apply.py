"""Apply: write an outcome and unlock the row in one guarded statement; or delete the row under the
same guard.

Many outcomes are applied in one transaction: their rows are locked first, then compared with what
was read of them, then written shape by shape. The guard is the row's key and this claim's token. If
it does not match, another holder continued with the row and nothing is written. `RowWrite`
says what to write; who decided that is not this room's business.

A row that is deleted alone is first written like any outcome, which proves that it is this claim's
and that the transaction lasts; what else belongs to the transaction comes between, such as the
deletion of rows that refer to it. Rows that are deleted together are locked, and one statement
deletes them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import (
    Column,
    Executable,
    Integer,
    Select,
    Update,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    null,
    select,
    type_coerce,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.dialects.contract import LEASES
from rowlock.errors import OutcomeError
from rowlock.leases.claim_request import Lease
from rowlock.leases.item import PipelineItem, leases_of
from rowlock.leases.renew import LEASES_PER_STATEMENT_MAX
from rowlock.rows.assignments import (
    ColumnValues,
    Shape,
    Slot,
    can_be_kept,
    set_clause,
    slots_of,
    split,
    varying,
)
from rowlock.rows.database_time import (
    STAMP_AHEAD_MAX,
    UtcDateTime,
    database_instant,
    database_now,
    database_time_after,
    readable_time,
    stamp_after,
)
from rowlock.rows.leased_table import NEXT_VERSION, LeasedTable, with_zone

T = TypeVar("T")
AsRead: TypeAlias = tuple[Lease, ColumnValues]
"""A row's lease, and columns with the values that were read of it."""

COMPARED_MAX = 100
"""Most rows of one statement that no array can compare, in rows: each has a condition of its own
in it.
"""

_NUMBER: Slot = ("rowlock_number", Integer())
NOTHING_READ: Final[ColumnValues] = {}
"""Of a write without a guard."""


async def unchanged_of(
    connection: AsyncConnection, leased: LeasedTable, rows: Sequence[AsRead]
) -> frozenset[int]:
    """Return the numbers of those `rows` that still have their tokens and what was read of them,
    in a round trip for each set of columns where the database can compare many; joins the caller's
    transaction, which has locked them. A row of which nothing was read is unchanged.
    """
    dialect = LEASES.of(connection)
    groups: dict[tuple[Column[Any], ...], list[int]] = {}
    for number, (_, values) in enumerate(rows):
        groups.setdefault(tuple(values), []).append(number)
    unchanged = set(groups.pop((), ()))
    for guarded, members in groups.items():
        slots, compare, size = _slots_of(guarded), _compared_by_conditions, COMPARED_MAX
        if len(members) > 1 and dialect.reads_alike(slots):
            compare, size = _compared_in_python, LEASES_PER_STATEMENT_MAX
        elif len(members) > 1 and dialect.takes_arrays(slots):
            compare, size = _compared_in_database, LEASES_PER_STATEMENT_MAX
        for some in in_pieces(members, size):
            unchanged |= await compare(connection, leased, {each: rows[each] for each in some})
    return frozenset(unchanged)


def _slots_of(columns: Sequence[Column[Any]]) -> list[Slot]:
    return [(f"rowlock_was_{place}", column.type) for place, column in enumerate(columns)]


async def _compared_in_database(
    connection: AsyncConnection, leased: LeasedTable, rows: Mapping[int, AsRead]
) -> frozenset[int]:
    """Return the numbers of unchanged `rows`, all of which are compared in the same columns."""
    dialect, guarded = LEASES.of(connection), tuple(next(iter(rows.values()))[1])
    slots = _slots_of(guarded)

    def build() -> Select[Any]:
        given = dialect.unnested(leased, [_NUMBER, *slots])
        held = (leased.key == given.c.key, leased.column("lock_token") == given.c.token)
        pairs = zip(guarded, slots, strict=True)
        still = (column.is_not_distinct_from(given.c[name]) for column, (name, _) in pairs)
        return select(given.c[_NUMBER[0]]).where(*held, *still)

    statement = leased.prepared((_compared_in_database, dialect, guarded), build)
    columns = [[as_read[column] for _, as_read in rows.values()] for column in guarded]
    leases = [lease for lease, _ in rows.values()]
    parameters = dialect.held_parameters(
        leased, leases, [_NUMBER, *slots], columns=[list(rows), *columns]
    )
    return frozenset((await connection.scalars(statement, parameters)).all())


async def _compared_in_python(
    connection: AsyncConnection, leased: LeasedTable, rows: Mapping[int, AsRead]
) -> frozenset[int]:
    """As `_compared_in_database`, but in Python: for types whose equal values are read alike."""
    dialect, guarded = LEASES.of(connection), tuple(next(iter(rows.values()))[1])
    statement = leased.prepared(
        (_compared_in_python, dialect, guarded),
        lambda: select(leased.key, *guarded).where(dialect.matches_leases(leased)),
    )
    found = await connection.execute(
        statement, dialect.lease_parameters(leased, [lease for lease, _ in rows.values()])
    )
    # Not by their tokens: related rows of one item have the same one.
    there = {key: values for key, *values in found}

    def is_same(lease: Lease, as_read: ColumnValues) -> bool:
        values = there.get(lease[0])
        return values is not None and list(map(with_zone, values, guarded)) == list(
            as_read.values()
        )

    return frozenset(number for number, (lease, as_read) in rows.items() if is_same(lease, as_read))


async def _compared_by_conditions(
    connection: AsyncConnection, leased: LeasedTable, rows: Mapping[int, AsRead]
) -> frozenset[int]:
    """As `_compared_in_database`, with a condition for each: for types that no array takes."""
    dialect, token_of = LEASES.of(connection), leased.column("lock_token")
    each = (
        exists().where(
            leased.key == key,
            token_of == token,
            *(dialect.is_unchanged(column, value) for column, value in values.items()),
        )
        for (key, token), values in rows.values()
    )
    found = (await connection.execute(select(*each))).one()
    return frozenset(number for number, is_same in zip(rows, found, strict=True) if is_same)


def in_pieces(members: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (members[start : start + size] for start in range(0, len(members), size))


class Written(Enum):
    """The result of a write. Parked is applied, too.

    Related row lost: a related row was no longer held, so nothing was written. Unknown: the answer
    to the COMMIT was lost, and the database could not be asked, or the row was written since.
    """

    APPLIED = "applied"
    PARKED = "parked"
    STALE = "stale"
    CHANGED = "changed"
    RELATED_LOST = "related row lost"
    UNKNOWN = "unknown"

    def __init__(self, text: str) -> None:
        # Asked for each row: no property.
        self.is_made: Final = text in {"applied", "parked"}
        """Whether the outcome is in the row."""


MADE: Final = tuple(one for one in Written if one.is_made)
"""The results with which the outcome is in the row."""


@dataclass(frozen=True, slots=True)
class RelatedWrite:
    """Values of one related row, lock columns included."""

    leased: LeasedTable
    key: Any
    values: ColumnValues


@dataclass(frozen=True, slots=True)
class RowWrite:
    """What to write to one row.

    Attributes:
        values: lock columns included.
        unless_changed: columns that must still have these values.
        when_changed: what is written instead if they have not.
        deletes: whether the row is deleted: after these values were written, or instead.
    """

    values: ColumnValues
    parks: bool = False
    unless_changed: dict[Column[Any], Any] = field(default_factory=dict)
    when_changed: ColumnValues = field(default_factory=dict)
    related: Sequence[RelatedWrite] = ()
    deletes: bool = False

    @property
    def once_written(self) -> Written:
        return Written.PARKED if self.parks else Written.APPLIED


async def lock_for_apply(
    connection: AsyncConnection,
    leased: LeasedTable,
    items: Sequence[PipelineItem[Any]],
    *,
    waits: bool = False,
) -> tuple[datetime | None, dict[Any, datetime]]:
    """Lock those rows of `items` that still carry their tokens; joins the caller's transaction.

    Unless it `waits` for them, locked rows are left out: a batch of writes must not wait for one
    row that a long transaction holds.

    Returns:
        The transaction's one time (None if no row was locked), and by token the stamp of each row
        that is locked now.
    """
    if not items:
        return None, {}
    dialect, last = LEASES.of(connection), leased.column("last_processed_at")

    def build() -> Select[*tuple[Any, ...]]:
        # Read only where it matters, and is a time that every driver can read.
        is_ahead = and_(last >= database_now(), last <= database_time_after(STAMP_AHEAD_MAX))
        ahead = case((is_ahead, readable_time(last)), else_=null())
        found = select(leased.column("lock_token"), database_now(), type_coerce(ahead, UtcDateTime))
        # Nothing to be said to SQLite, where the transaction has the write lock already.
        return found.where(dialect.matches_leases(leased)).with_for_update(
            key_share=True, skip_locked=not waits
        )

    statement = leased.prepared((lock_for_apply, dialect, waits), build)
    rows = (
        await connection.execute(statement, dialect.lease_parameters(leased, leases_of(items)))
    ).all()
    return (rows[0][1] if rows else None), {
        token: stamp_after(now, ahead, token) for token, now, ahead in rows
    }


async def apply_locked(
    connection: AsyncConnection,
    leased: LeasedTable,
    writes: Sequence[tuple[PipelineItem[Any], RowWrite]],
) -> list[Written]:
    """Write to rows that `lock_for_apply` has locked in this transaction; those of one shape in one
    round trip.
    """
    # The lock makes the guard certain: no driver says how many rows each of many parameter sets has
    # matched.
    results = [write.once_written for _, write in writes]
    as_read = [((item.id, item.lock_token), write.unless_changed) for item, write in writes]
    unchanged = await unchanged_of(connection, leased, as_read)
    together: list[tuple[Lease, ColumnValues]] = []
    given = [(item.id, write.values) for item, write in writes] if leased.version_generator else []
    moved = await with_versions(connection, leased, given)
    for index, (item, write) in enumerate(writes):
        values = moved[index] if moved else write.values
        if index not in unchanged:
            values, results[index] = write.when_changed, Written.CHANGED
        together.append(((item.id, item.lock_token), values))
    await write_locked(connection, leased, together)
    return results


async def write_locked(
    connection: AsyncConnection, leased: LeasedTable, writes: Sequence[tuple[Lease, ColumnValues]]
) -> None:
    """Write to rows that this transaction has locked under their tokens, by their leases; those of
    one shape in one round trip.
    """
    unguarded = [(lease, values, NOTHING_READ) for lease, values in writes]
    for (shape, _), group in _by_shape(unguarded).items():
        await _update_together(connection, leased, shape, leases=group.leases, rows=group.rows)


class _Group(NamedTuple):
    """Writes of one shape: their numbers, the leases, the parameters of each, and what was read."""

    numbers: list[int]
    leases: list[Lease]
    rows: list[list[Any]]
    as_read: list[ColumnValues]


def _by_shape(
    writes: Sequence[tuple[Lease, ColumnValues, ColumnValues]],
) -> dict[tuple[Shape, tuple[Column[Any], ...]], _Group]:
    groups: dict[tuple[Shape, tuple[Column[Any], ...]], _Group] = {}
    last: tuple[Any, Any] = (None, None)
    parameters: list[Any] = []
    group = _Group([], [], [], [])
    for number, (lease, values, as_read) in enumerate(writes):
        if last[0] is not values or last[1] is not as_read:
            shape, parameters = split(values)
            group = groups.setdefault((shape, tuple(as_read)), _Group([], [], [], []))
            last = (values, as_read)
        group.numbers.append(number)
        group.leases.append(lease)
        group.rows.append(parameters)
        group.as_read.append(as_read)
    return groups


def _are_alike(leased: LeasedTable, shape: Shape) -> bool:
    # Host code that stamps each row would be asked once for all of them.
    return leased.columns_stamped_by_host_code.issubset(column for column, _ in shape)


def _columns(rows: Sequence[Sequence[Any]], places: Sequence[int]) -> list[list[Any]]:
    return [[row[place] for row in rows] for place in places]


def _equal_parameters(
    slots: Sequence[Slot], row: Sequence[Any], *, differing: Sequence[int]
) -> dict[str, Any]:
    return {
        name: value
        for place, ((name, _), value) in enumerate(zip(slots, row, strict=True))
        if place not in differing
    }


async def time_of(connection: AsyncConnection) -> datetime:
    """Return the one time of the caller's transaction, on a database with such a time."""
    now: datetime = (await connection.execute(select(database_now()))).scalar_one()
    return now


async def write_free(
    connection: AsyncConnection,
    leased: LeasedTable,
    writes: Sequence[tuple[Lease, ColumnValues, ColumnValues]],
) -> frozenset[int]:
    """Write values to rows that carry their tokens still, are locked by none, and have the values
    that were read of them, in one round trip for each shape; joins the caller's transaction, and
    returns the numbers of the `writes` that it has made. The others, and those that no such
    statement can write, are for `lock_for_apply`.
    """
    made: set[int] = set()
    dialect = LEASES.of(connection)
    for (shape, guarded), group in _by_shape(writes).items():
        slots, was, differing = slots_of(shape), _slots_of(guarded), tuple(varying(group.rows))
        own = [*was, *(slots[place] for place in differing)]
        if not (_are_alike(leased, shape) and dialect.takes_arrays(own) and can_be_kept(shape)):
            continue
        build = partial(
            dialect.guarded_update,
            leased,
            [_NUMBER, *own],
            unless_changed=dict(zip((name for name, _ in was), guarded, strict=True)),
            values=partial(set_clause, shape),
        )
        statement = leased.prepared((write_free, dialect, shape, guarded, differing), build)
        columns = [group.numbers, *([row[column] for row in group.as_read] for column in guarded)]
        columns += _columns(group.rows, differing)
        given = dialect.held_parameters(leased, group.leases, [_NUMBER, *own], columns=columns)
        if given is None:
            continue
        parameters = given | _equal_parameters(slots, group.rows[0], differing=differing)
        parameters["rowlock_count"] = len(group.leases)
        count, some = (await connection.execute(statement, parameters)).one()
        made.update(group.numbers if count == len(group.leases) else some or ())
    return frozenset(made)


async def cast_value(connection: AsyncConnection, column: Column[Any], value: Any) -> None:
    """Have the database or its driver refuse a value that a column cannot hold; joins the caller's
    transaction, and writes nothing.
    """
    given = bindparam("rowlock_new", value, type_=column.type)
    await connection.execute(select(cast(given, column.type)))


async def with_versions(
    connection: AsyncConnection, leased: LeasedTable, writes: Sequence[tuple[Any, ColumnValues]]
) -> list[ColumnValues]:
    """Return the values of `writes`, given by key, with each row's next version; joins the caller's
    transaction.
    """
    each, generator = [values for _, values in writes], leased.version_generator
    if generator is None:
        return each
    column = leased.mapper.version_id_col
    assert isinstance(column, Column)
    keys = [key for key, values in writes if values.get(column) is NEXT_VERSION]
    if not keys:
        return each
    there = select(leased.key, column).where(leased.key.in_(keys)).with_for_update(key_share=True)
    present = {key: version for key, version in await connection.execute(there)}  # noqa: C416
    return [
        values | {column: generator(present.get(key))}
        if values.get(column) is NEXT_VERSION
        else values
        for key, values in writes
    ]


async def _update_together(
    connection: AsyncConnection,
    leased: LeasedTable,
    shape: Shape,
    *,
    leases: Sequence[Lease],
    rows: Sequence[Sequence[Any]],
) -> None:
    """Write to locked rows what has one shape: by one statement if the values are the same, or the
    database takes arrays.
    """
    dialect, slots, differing = LEASES.of(connection), slots_of(shape), tuple(varying(rows))
    names = [name for name, _ in slots]
    own = [slots[place] for place in differing]
    given = None
    if _are_alike(leased, shape) and dialect.takes_arrays(own):
        given = dialect.held_parameters(leased, leases, own, columns=_columns(rows, differing))
    parameters: Any
    if given is None:
        parameters = [
            {"rowlock_key": key, "rowlock_token": token, **dict(zip(names, row, strict=True))}
            for (key, token), row in zip(leases, rows, strict=True)
        ]
        statement = _prepared(leased, shape, "each", build=partial(_statement, leased, shape))
    else:

        def build() -> Update:
            held = dialect.unnested(leased, own)
            ours = (leased.key == held.c.key, leased.column("lock_token") == held.c.token)
            in_place = {name: held.c[name] for name, _ in own}
            return update(leased.table).where(*ours).values(set_clause(shape, in_place))

        parameters = given | _equal_parameters(slots, rows[0], differing=differing)
        statement = _prepared(leased, shape, (dialect, differing), build=build)
    result = await connection.execute(statement, parameters)
    # Some drivers count nothing where there are many parameter sets.
    if 0 <= result.rowcount < len(leases):
        keys = ", ".join(str(key) for key, _ in leases)
        raise OutcomeError(
            f"{leased.name} {keys:.100} was not written: a trigger or a policy of the database"
            " keeps the row as it is"
        )


def _prepared(
    leased: LeasedTable, shape: Shape, kind: Hashable, *, build: Callable[[], Update]
) -> Update:
    return (
        leased.prepared((_update_together, shape, kind), build) if can_be_kept(shape) else build()
    )


async def processed_at(
    connection: AsyncConnection,
    leased: LeasedTable,
    items: Sequence[PipelineItem[Any]],
    *,
    stamps: frozenset[datetime],
    waits: bool = False,
) -> dict[Any, Written]:
    """Return for each row of `items`, by key, whether an outcome with one of `stamps` is in it;
    joins the caller's transaction.

    Settles COMMITs whose answers were lost: no two outcomes of a row have the same stamp, and none
    has an earlier one than the outcome before it. So an earlier stamp in the row means that nothing
    was committed (stale); a later one, or no row, leaves it open (unknown). PostgreSQL may still be
    carrying a COMMIT out: with `waits`, the answer is given after that has ended.
    """
    column, keys = leased.column("last_processed_at"), [item.id for item in items]
    kept = await LEASES.of(connection).kept_as(connection, column, sorted(stamps))
    # The stamp is no condition: a row is found by what was committed before, and only one that is
    # found is waited for.
    found = select(leased.key, column.in_(kept), column > kept[0]).where(leased.key.in_(keys))
    rows = await connection.execute(found.with_for_update(key_share=True) if waits else found)
    there = {
        key: Written.APPLIED if is_one else Written.UNKNOWN if is_later else Written.STALE
        for key, is_one, is_later in rows
    }
    return {key: there.get(key, Written.UNKNOWN) for key in keys}


def _statement(leased: LeasedTable, shape: Shape) -> Update:
    token = leased.column("lock_token")
    guard = [
        leased.key == bindparam("rowlock_key", type_=leased.key.type),
        token == bindparam("rowlock_token", type_=token.type),
    ]
    return update(leased.table).where(*guard).values(set_clause(shape))


async def delete_locked(
    connection: AsyncConnection, leased: LeasedTable, items: Sequence[PipelineItem[Any]]
) -> frozenset[Any]:
    """Delete those rows of `items` that still carry their tokens, and return their keys; joins the
    caller's transaction, which has locked them.

    A deletion needs a stronger lock than a write: rows to which a reference is being added are left
    out, so that it waits for none.
    """
    if not items:
        return frozenset()
    dialect = LEASES.of(connection)

    def build() -> Executable:
        ours = select(leased.key).where(dialect.matches_leases(leased))
        free = ours.with_for_update(skip_locked=True)
        return delete(leased.table).where(leased.key.in_(free)).returning(leased.key)

    statement = leased.prepared((delete_locked, dialect), build)
    parameters = dialect.lease_parameters(leased, leases_of(items))
    return frozenset((await connection.scalars(statement, parameters)).all())


async def delete_written(
    connection: AsyncConnection, leased: LeasedTable, item: PipelineItem[Any]
) -> None:
    """Delete the row of `item`, which this transaction has written and unlocked; joins it.

    Raises:
        OutcomeError: a trigger or a policy of the database keeps it.
    """
    free = leased.column("lock_token").is_(None)
    statement = delete(leased.table).where(leased.key == item.id, free)
    if (await connection.execute(statement)).rowcount == 0:
        raise OutcomeError(
            f"{leased.name} {item.id} was not deleted: a trigger or a policy of the database, or"
            " also, keeps it or has deleted it before"
        )


async def deleted(
    connection: AsyncConnection,
    leased: LeasedTable,
    items: Sequence[PipelineItem[Any]],
    *,
    waits: bool = False,
) -> dict[Any, Written]:
    """Return for each row of `items`, by key, whether it was deleted by a transaction whose COMMIT
    was not answered; joins the caller's transaction.

    A row that is there was not deleted (stale). A missing one was, as long as its lease would last;
    later, another holder may have deleted it (unknown). PostgreSQL may still be carrying a COMMIT
    out: with `waits`, the answer is given after that has ended.
    """
    found = select(leased.key).where(leased.key.in_([item.id for item in items]))
    rows = await connection.scalars(found.with_for_update(key_share=True) if waits else found)
    there = frozenset(rows.all())
    # Asked afterwards: as long as the lease lasts now, it lasted when the row was looked for.
    now = await connection.scalar(select(database_instant()))
    assert now is not None
    return {
        item.id: Written.STALE
        if item.id in there
        else Written.APPLIED
        if now < item.lock_expires_at
        else Written.UNKNOWN
        for item in items
    }
