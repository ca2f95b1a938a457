"""Apply: write an outcome and unlock the row in one guarded statement; or delete the row under the
same guard.

The guard is the row's key and this claim's token; if it does not match, another holder continued
with the row. Rows that are not free are locked first, then compared with what was read of them,
then written shape by shape. A row that is deleted alone is first written like any outcome, which
proves that it is this claim's; what else belongs to the transaction comes between, such as the
deletion of rows that refer to it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeAlias

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
    null,
    select,
    type_coerce,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm.attributes import set_committed_value

from rowlock.dialects.contract import LEASES, LeaseDialect
from rowlock.errors import OutcomeError
from rowlock.leases.acquire import LEASES_PER_STATEMENT_MAX, in_pieces
from rowlock.leases.claim_request import Lease
from rowlock.leases.item import PipelineItem, leases_of
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
from rowlock.rows.leased_table import NEXT_VERSION, LeasedTable, ModelT
from rowlock.rows.updates import (
    Values,
    checked_values,
    column_values,
    comparison_of,
    resolve_now_placeholders,
)

AsRead: TypeAlias = tuple[Lease, ColumnValues]
"""A row's lease, and columns with the values that were read of it."""

_NUMBER: Slot = ("rowlock_number", Integer())


async def unchanged_of(
    connection: AsyncConnection, leased: LeasedTable, rows: Sequence[AsRead]
) -> frozenset[int]:
    """Return the numbers of those `rows`, locked by this transaction, that still have their tokens
    and what was read of them.
    """
    groups: dict[tuple[Column[Any], ...], list[int]] = {}
    for number, (_, values) in enumerate(rows):
        groups.setdefault(tuple(values), []).append(number)
    unchanged = set(groups.pop((), ()))
    for members in groups.values():
        for some in in_pieces(members, LEASES_PER_STATEMENT_MAX):
            unchanged |= await _compared(connection, leased, {each: rows[each] for each in some})
    return frozenset(unchanged)


async def _compared(
    connection: AsyncConnection, leased: LeasedTable, rows: Mapping[int, AsRead]
) -> set[int]:
    """As `unchanged_of`, for rows of which the same columns were read."""
    dialect, guarded = LEASES.of(connection), tuple(next(iter(rows.values()))[1])
    statement = leased.prepared(
        (_compared, dialect, guarded),
        lambda: select(leased.key, *guarded).where(dialect.matches_leases(leased)),
    )
    found = await connection.execute(
        statement, dialect.lease_parameters(leased, [lease for lease, _ in rows.values()])
    )
    # Not by their tokens: related rows of one item have the same one.
    there = {key: values for key, *values in found}
    comparisons = [comparison_of(column, connection.dialect) for column in guarded]
    return {
        number
        for number, ((key, _), as_read) in rows.items()
        if key in there
        and all(
            is_same(now, before)
            for is_same, now, before in zip(comparisons, there[key], as_read.values(), strict=True)
        )
    }


class Written(Enum):
    """The result of a write. Unknown: the answer to the COMMIT was lost, and the database could not
    be asked, or the row was written since.
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


MADE: Final = (Written.APPLIED, Written.PARKED)
"""The results with which the outcome is in the row."""


@dataclass(frozen=True, slots=True)
class RelatedWrite:
    """Values of one related row, lock columns included."""

    leased: LeasedTable
    key: Any
    values: ColumnValues


@dataclass(frozen=True, slots=True)
class RowWrite:
    """What to write to one row, lock columns included.

    Attributes:
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
    """Lock those rows of `items` that still carry their tokens, and return the transaction's one
    time (None if no row was locked), and by token the stamp of each row that is locked now.

    Unless it `waits` for them, locked rows are left out: a batch of writes must not wait for one
    row that a long transaction holds.
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
    """Write to rows that `lock_for_apply` has locked in this transaction."""
    # The lock makes the guard certain: no driver says how many rows each of many parameter sets has
    # matched.
    results = [write.once_written for _, write in writes]
    as_read = [((item.id, item.lock_token), write.unless_changed) for item, write in writes]
    unchanged = await unchanged_of(connection, leased, as_read)
    given = [(item.id, write.values) for item, write in writes]
    moved = await with_versions(connection, leased, given)
    together: list[tuple[Lease, ColumnValues]] = []
    for index, (item, write) in enumerate(writes):
        values = moved[index]
        if index not in unchanged:
            values, results[index] = write.when_changed, Written.CHANGED
        if values:
            together.append(((item.id, item.lock_token), values))
    await write_locked(connection, leased, together)
    return results


async def write_locked(
    connection: AsyncConnection, leased: LeasedTable, writes: Sequence[tuple[Lease, ColumnValues]]
) -> None:
    """Write to rows that are locked under their tokens; those of one shape are one round trip."""
    dialect, nothing = LEASES.of(connection), dict[Column[Any], Any]()
    # One mapping for all: maps that many writes share are looked at once.
    for (shape, _), group in _by_shape([(*write, nothing) for write in writes]).items():
        slots, differing = slots_of(shape), tuple(varying(group.rows))
        given: Any = _unnested_parameters(dialect, leased, group, shape=shape, differing=differing)
        if given is None:
            names = [name for name, _ in slots]
            given = [
                {"rowlock_key": key, "rowlock_token": token, **dict(zip(names, row, strict=True))}
                for (key, token), row in zip(group.leases, group.rows, strict=True)
            ]
            kind: Hashable = "each"
            build = partial(_updating_each, leased, shape)
        else:
            kind = dialect, differing
            own = [slots[place] for place in differing]
            build = partial(_updating_all, dialect, leased, shape, own=own)
        is_kept = can_be_kept(shape)
        statement = leased.prepared((write_locked, shape, kind), build) if is_kept else build()
        result = await connection.execute(statement, given)
        # Some drivers count nothing where there are many parameter sets.
        if 0 <= result.rowcount < len(group.leases):
            keys = ", ".join(str(key) for key, _ in group.leases)
            raise OutcomeError(
                f"{leased.name} {keys:.100} was not written: a trigger or a policy of the database"
                " keeps the row as it is"
            )


def _updating_each(leased: LeasedTable, shape: Shape) -> Update:
    token = leased.column("lock_token")
    guard = [
        leased.key == bindparam("rowlock_key", type_=leased.key.type),
        token == bindparam("rowlock_token", type_=token.type),
    ]
    return update(leased.table).where(*guard).values(set_clause(shape))


def _updating_all(
    dialect: LeaseDialect, leased: LeasedTable, shape: Shape, *, own: Sequence[Slot]
) -> Update:
    held = dialect.unnested(leased, own)
    ours = (leased.key == held.c.key, leased.column("lock_token") == held.c.token)
    in_place = {name: held.c[name] for name, _ in own}
    return update(leased.table).where(*ours).values(set_clause(shape, in_place))


def _unnested_parameters(
    dialect: LeaseDialect,
    leased: LeasedTable,
    group: _Group,
    *,
    shape: Shape,
    differing: Sequence[int],
    more: Mapping[Slot, Sequence[Any]] | None = None,
) -> dict[str, Any] | None:
    """Return the parameters of a statement that writes a whole group: arrays of `more`, and of
    what is `differing`, and the rest as it is in all rows. None where there is no such statement.
    """
    # Host code that stamps each row would be asked once for all of them.
    if not leased.columns_stamped_by_host_code.issubset(column for column, _ in shape):
        return None
    slots = slots_of(shape)
    own = {slots[place]: [row[place] for row in group.rows] for place in differing}
    given = dialect.held_parameters(leased, group.leases, {**(more or {}), **own})
    if given is not None:
        for place, ((name, _), value) in enumerate(zip(slots, group.rows[0], strict=True)):
            if place not in differing:
                given[name] = value
    return given


class _Group(NamedTuple):
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


async def time_of(connection: AsyncConnection) -> datetime:
    now: datetime = (await connection.execute(select(database_now()))).scalar_one()
    return now


async def write_free(
    connection: AsyncConnection,
    leased: LeasedTable,
    writes: Sequence[tuple[Lease, ColumnValues, ColumnValues]],
) -> frozenset[int]:
    """Write values to rows that carry their tokens still, are locked by none, and have the values
    that were read of them, in one round trip for each shape; return the numbers of those `writes`.
    The others, and those that no such statement can write, are for `lock_for_apply`.
    """
    made: set[int] = set()
    dialect = LEASES.of(connection)
    for (shape, guarded), group in _by_shape(writes).items():
        if not can_be_kept(shape):
            continue
        slots, differing = slots_of(shape), tuple(varying(group.rows))
        was = {f"rowlock_was_{place}": column for place, column in enumerate(guarded)}
        more: dict[Slot, list[Any]] = {_NUMBER: group.numbers} | {
            (name, column.type): [row[column] for row in group.as_read]
            for name, column in was.items()
        }
        parameters = _unnested_parameters(
            dialect, leased, group, shape=shape, differing=differing, more=more
        )
        if parameters is None:
            continue
        build = partial(
            dialect.guarded_update,
            leased,
            [*more, *(slots[place] for place in differing)],
            unless_changed=was,
            values=partial(set_clause, shape),
        )
        statement = leased.prepared((write_free, dialect, shape, guarded, differing), build)
        parameters["rowlock_count"] = len(group.leases)
        count, some = (await connection.execute(statement, parameters)).one()
        made.update(group.numbers if count == len(group.leases) else some or ())
    return frozenset(made)


async def cast_value(connection: AsyncConnection, column: Column[Any], value: Any) -> None:
    """Have the database or its driver refuse a value that a column cannot hold."""
    given = bindparam("rowlock_new", value, type_=column.type)
    await connection.execute(select(cast(given, column.type)))


async def with_versions(
    connection: AsyncConnection, leased: LeasedTable, writes: Sequence[tuple[Any, ColumnValues]]
) -> list[ColumnValues]:
    """Return the values of `writes`, given by key, with each row's next version; joins."""
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


async def processed_at(
    connection: AsyncConnection,
    leased: LeasedTable,
    items: Sequence[PipelineItem[Any]],
    *,
    stamps: frozenset[datetime],
    waits: bool = False,
) -> dict[Any, Written]:
    """Return for each row of `items`, by key, whether an outcome with one of `stamps` is in it.

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


async def delete_locked(
    connection: AsyncConnection, leased: LeasedTable, items: Sequence[PipelineItem[Any]]
) -> frozenset[Any]:
    """Delete those rows of `items` that still carry their tokens, and return their keys."""
    if not items:
        return frozenset()
    dialect = LEASES.of(connection)

    def build() -> Executable:
        ours = select(leased.key).where(dialect.matches_leases(leased))
        # A deletion needs a stronger lock than a write. It waits for none: rows to which a
        # reference is being added are left out.
        free = ours.with_for_update(skip_locked=True)
        return delete(leased.table).where(leased.key.in_(free)).returning(leased.key)

    statement = leased.prepared((delete_locked, dialect), build)
    parameters = dialect.lease_parameters(leased, leases_of(items))
    return frozenset((await connection.scalars(statement, parameters)).all())


async def delete_written(
    connection: AsyncConnection, leased: LeasedTable, item: PipelineItem[Any]
) -> None:
    """Delete the row of `item`, which this transaction has written and unlocked."""
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
    was not answered.

    A row that is there was not deleted (stale). A missing one was, as long as its lease would last;
    later, another holder may have deleted it (unknown). `waits`: as in `processed_at`.
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


# ---------------------------------------------------------------- while leases go on

# A patch is for what must be seen before the work is done, such as a progress. A fence is for work
# that writes as it goes, as part of a larger transaction: what else that writes counts for those
# rows alone that are fenced by it. Neither writes a lock column.
# Source: fencing tokens, M. Kleppmann, "How to do distributed locking" (2016).


@dataclass(frozen=True, slots=True, eq=False)
class Patch(Generic[ModelT]):
    """What to write to one row, unless the columns of `unless_changed` have other values."""

    item: PipelineItem[ModelT]
    values: Mapping[Any, Any]
    unless_changed: Values


async def write_patches(
    connection: AsyncConnection,
    leased: LeasedTable,
    patches: Sequence[Patch[ModelT]],
    *,
    waits: bool = False,
) -> list[ColumnValues | None]:
    """Write patches of different rows. Returns what was written of each; None if it was locked
    (unless it `waits`), or its guard did not match.
    """
    items = [each.item for each in patches]
    now, locked = await lock_for_apply(connection, leased, items, waits=waits)
    if now is None:
        return [None] * len(patches)
    rows = []
    for each in patches:
        resolved = resolve_now_placeholders(each.values, now)
        values = checked_values(leased, resolved, connection.dialect)
        rows.append(Fenced(each.item, values, column_values(leased, each.unless_changed)))
    written = await _write_locked(connection, leased, rows, locked=locked)
    return [row.values if row.item.lock_token in written else None for row in rows]


async def is_unchanged(
    connection: AsyncConnection, leased: LeasedTable, item: PipelineItem[ModelT], *, values: Values
) -> bool:
    """Whether the row of `item` still has its token and `values`."""
    as_read = (item.id, item.lock_token), column_values(leased, values)
    return bool(await _compared(connection, leased, {0: as_read}))


def show(leased: LeasedTable, row: object, written: ColumnValues) -> None:
    """Set in `row` what was written and committed, as if it had been read so."""
    for column, value in written.items():
        set_committed_value(row, leased.mapper.get_property_by_column(column).key, value)


@dataclass(frozen=True, slots=True)
class Fenced:
    """What to write to one row, guarded by the token of `item`: no lock column, and only if the
    columns of `unless_changed` still have their values.
    """

    item: PipelineItem[Any]
    values: ColumnValues
    unless_changed: ColumnValues = field(default_factory=dict)


async def fence(
    connection: AsyncConnection, leased: LeasedTable, rows: Sequence[Fenced], *, waits: bool = False
) -> frozenset[Any]:
    """Lock and write those of `rows` that are held under their tokens and unchanged, and return
    their tokens. What the transaction has written for rows that are not returned must be rolled
    back. On SQLite it has the write lock already, since reading rows locks none there. Rows that
    another one has locked are not fenced, unless it `waits` for them.
    """
    _, locked = await lock_for_apply(connection, leased, [row.item for row in rows], waits=waits)
    return await _write_locked(connection, leased, rows, locked=locked)


async def _write_locked(
    connection: AsyncConnection,
    leased: LeasedTable,
    rows: Sequence[Fenced],
    *,
    locked: Collection[Any],
) -> frozenset[Any]:
    # Trust is asked as late as it can be: rows may have been waited for.
    held = [row for row in rows if row.item.lock_token in locked and row.item.is_trusted()]
    writes = [(row.item, RowWrite(row.values, unless_changed=row.unless_changed)) for row in held]
    results = await apply_locked(connection, leased, writes)
    pairs = zip(held, results, strict=True)
    return frozenset(row.item.lock_token for row, result in pairs if result.is_made)
