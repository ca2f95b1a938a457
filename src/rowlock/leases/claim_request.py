"""Claims, as every dialect gets and answers them: the request, the rows that it gives, the count of
deaths, and keys that do not find their rows.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    Date,
    DateTime,
    Dialect,
    Enum,
    Float,
    Integer,
    Interval,
    Numeric,
    String,
    Text,
    Time,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    func,
    literal,
    literal_column,
    not_,
    null,
    or_,
    select,
    true,
    type_coerce,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine

from rowlock.errors import ModelError
from rowlock.logs import get_logger
from rowlock.rows.database_time import is_beyond_time, is_no_time
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.lock_tokens import (
    FEW_MAX,
    deaths_after,
    deaths_of,
    fresh_token,
    mark_of,
    with_deaths,
)

logger = get_logger(__name__)

# ---------------------------------------------------------------- requests and what they give


LOST_ROWS_SEARCHED = 100
"""How many due rows are searched for other rows of a dead replica."""
StatementT = TypeVar("StatementT")

Lease: TypeAlias = tuple[Any, Any]
"""Key and token."""


class Position(NamedTuple):
    """Where a claimed row stood in the order of claims: its time, None if it was never processed.
    On SQLite that is text, and only the very text finds those beside it.
    """

    place: Any
    key: Any


class Range(enum.Enum):
    """Which part of the order a claim looks at: one statement, one range of the index."""

    ALL = "from the head"
    NEVER_PROCESSED = "behind a row that was never processed"
    PLACED = "behind a row that has a place"

    @classmethod
    def of(cls, after: Position | None) -> Range:
        if after is None:
            return cls.ALL
        return cls.NEVER_PROCESSED if after.place is None else cls.PLACED


class OwnRows(NamedTuple):
    """Keys of rows that the pipeline has in hand itself, which a claim leaves out: their leases may
    have ended all the same, where the machine slept or the database's clock was set.

    Attributes:
        held: queued, or being written; free ones, which were written a moment ago, are claimed.
        total: how many rows the replica has in hand, of all its pipelines.
        is_trying: a row is being tried alone.
    """

    running: frozenset[Any] = frozenset()
    held: frozenset[Any] = frozenset()
    total: int = 0
    is_trying: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ClaimRequest:
    """Lease at most `limit` rows that are `eligible`, oldest first, for `owner`, until
    `lock_timeout` from now.

    Attributes:
        gates: those parts of `eligible` in which the row has no part, such as a pause.
        lockers: pipelines that lock rows of this model as related ones, for themselves alone.
        related: tables of which dead holders may have left rows locked under their tokens.
        after: look only behind this position, and if it is that of a row that was never processed,
            only at others like it; None looks from the head of the order.
        with_rows: whether whole rows are returned; of plain models alone.
        digits: where the database makes tokens, those of this claim have their first, and the mark.
        left_out: keys of rows that are left to other replicas.
        own_rows: asked when the claim is sent.
        max_deaths: after so many deaths in crowds, a row is tried alone.
        statements: shared by copies that differ in what `claim_parameters` gives.
    """

    leased: LeasedTable
    eligible: ColumnElement[bool]
    oldest_first: Sequence[ColumnElement[Any]]
    owner: str
    lock_timeout: timedelta
    limit: int
    gates: tuple[ColumnElement[bool], ...] = ()
    lockers: frozenset[str] = frozenset()
    related: Sequence[LeasedTable] = ()
    after: Position | None = None
    with_rows: bool = False
    digits: str = field(default_factory=lambda: fresh_token().hex)
    left_out: frozenset[Any] = frozenset()
    own_rows: Callable[[], OwnRows] = OwnRows
    max_deaths: int | None = None
    statements: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    def prepared(self, key: Hashable, build: Callable[[], StatementT]) -> StatementT:
        """Return what `build` gives, built once for each `key`."""
        if key not in self.statements:
            self.statements[key] = build()
        statement: StatementT = self.statements[key]
        return statement


class ClaimedRow(NamedTuple):
    """A row as the claim left it.

    Attributes:
        dead_token: of a pipeline that worked on this row and let its lease expire, if any.
        died_here: whether that was a pipeline of this owner.
        attempts: failed attempts so far; None without a schedule.
        place_as_written: `place`, as `Position` has it.
        row: the values of all attributes of a plain model, in their order, if they were asked for
            and can be read.
        unreadable: a column that holds what cannot be read, if any.
    """

    id: Any
    lock_token: Any
    lock_expires_at: datetime
    dead_token: Any
    attempts: int | None
    place: datetime | None
    place_as_written: Any
    row: Sequence[Any] | None = None
    died_here: bool = False
    unreadable: str | None = None

    @property
    def position(self) -> Position:
        return Position(self.place_as_written, self.id)


async def count_deaths(
    connection: AsyncConnection, request: ClaimRequest, rows: list[ClaimedRow], *, own_rows: OwnRows
) -> list[ClaimedRow]:
    """Return `rows`, in order, with tokens and attempts that count deaths of this owner's holders:
    the first that is to be tried alone counts as held alone, and the others wait for it.
    """
    dead = {_digits(row.dead_token) for row in rows if row.died_here}
    if not dead:
        return rows
    # What the dead replica had claimed stands at the head of the order, in other claims too.
    due = (
        select(cast(request.leased.attribute("lock_token"), Text))
        .where(request.eligible)
        .order_by(*request.oldest_first)
        .limit(LOST_ROWS_SEARCHED)
    )
    dead.update(map(_digits, await connection.scalars(due)))
    lost = Counter(map(mark_of, dead))
    in_crowd, is_trying = own_rows.total + len(rows) > FEW_MAX, own_rows.is_trying
    counted = []
    for row in rows:
        if not row.died_here:
            counted.append(row)
            continue
        dead_there = lost[mark_of(row.dead_token)]
        deaths = deaths_after(row.dead_token, lost=dead_there, max_deaths=request.max_deaths)
        is_first = deaths.are_trying(request.max_deaths) and not is_trying
        is_trying = is_trying or is_first
        token = with_deaths(row.lock_token, deaths, in_crowd=in_crowd and not is_first)
        given: dict[str, Any] = {"lock_token": request.leased.as_token(token)}
        if row.attempts is not None:
            attempts = row.attempts + (deaths.counted > deaths_of(row.dead_token).counted)
            given["attempts"] = min(attempts, request.leased.attempts_max)
        values = list(row.row or ())
        for name, value in given.items() if values else ():
            values[request.leased.places[name]] = value
        counted.append(row._replace(**given, row=values or None))
    return counted


def _digits(token: object) -> str:
    return str(token).replace("-", "")


# ---------------------------------------------------------------- values


CLAIMED_BYTES_MAX = 2**15
"""Largest value that a claim brings, in bytes; larger rows are read when work begins."""
TEXT_CHARS_MAX = 1000
"""A text of at most so many characters, by its type, is not asked for its size."""
_BOUNDED = (Boolean, Date, DateTime, Enum, Float, Integer, Interval, Numeric, Time, Uuid)


def _times_read(leased: LeasedTable) -> dict[str, Column[Any]]:
    """Return columns of times read before they are written, by attribute name."""
    more = ("due_at", "deadline_at") if leased.has_schedule else ()
    return {name: leased.column(name) for name in ("last_processed_at", *more)}


def unreadable_column(leased: LeasedTable) -> ColumnElement[str | None]:
    """Return the attribute name of a column that cannot be read, as SQL; null if all can."""
    found = []
    for name, column in _times_read(leased).items():
        unreadable: ColumnElement[bool] = is_no_time(column)
        if not leased.has_schedule:
            # A stamp behind all times would make the row due for ever, and stay.
            unreadable = or_(unreadable, is_beyond_time(column))
        found.append((unreadable, literal(name, Text)))
    return case(*found, else_=null())


def if_readable(time: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((not_(is_no_time(time)), time))


def _may_be_large(type_: TypeEngine[Any]) -> bool:
    """`type_` is as the database resolves it."""
    length = getattr(type_, "length", None) if isinstance(type_, String) else None
    return not isinstance(type_, _BOUNDED) and not (length and length <= TEXT_CHARS_MAX)


def values_read(
    leased: LeasedTable,
    *,
    resolved_type: Callable[[TypeEngine[Any]], TypeEngine[Any]],
    size_of: Callable[[Column[Any]], ColumnElement[int]],
    given: Collection[Column[Any]],
) -> tuple[list[ColumnElement[Any]], ColumnElement[bool]]:
    """Return what selects the values of a plain row's attributes, null for those that are `given`
    otherwise, and whether that is the whole row unless it has an `unreadable_column`: each other
    time can be read, and each value is small, by `size_of`, which selects its bytes.
    """
    guards: dict[Column[Any], ColumnElement[bool]] = {}
    for column in leased.attributes.values():
        type_ = resolved_type(column.type)
        if isinstance(type_, Date | DateTime):
            guards[column] = not_(is_no_time(column))
        elif _may_be_large(type_) and column not in leased.kept_columns:
            size = func.coalesce(size_of(column), 0)
            guards[column] = size <= literal_column(str(CLAIMED_BYTES_MAX), Integer)
    replaced: dict[Column[Any], ColumnElement[Any]]
    replaced = {column: case((guard, column)) for column, guard in guards.items()}
    replaced |= dict.fromkeys(given, null())
    reported = {*given, *_times_read(leased).values()}
    is_whole = and_(true(), *(guard for column, guard in guards.items() if column not in reported))
    return [replaced.get(column, column) for column in leased.attributes.values()], is_whole


def claim_parameters(request: ClaimRequest) -> dict[str, Any]:
    """Return what differs from one claim of an order to the next, by bound names."""
    given = {"rowlock_limit": request.limit}
    if request.after is not None:
        given["rowlock_after_key"] = request.after.key
        if request.after.place is not None:
            given["rowlock_after_place"] = request.after.place
    return given


# ---------------------------------------------------------------- keys

# A row whose key its type cannot read, or that is written in a shape in which no statement looks
# for it, can be neither worked on nor written. It is logged once, remembered by what is written
# there, and no claim reads it again; all others go on.

SPOILT_KEYS_MAX = 500
"""Most rows that a pipeline leaves alone for their keys; others take places of claims."""

_UNREAD: Any = object()


class WrittenKey(NamedTuple):
    """A key that is read otherwise than it is written, or not at all."""

    written: Any
    key: Any = _UNREAD


class _KeyAsRead(TypeDecorator[Any]):
    """Gives a `WrittenKey` where the key's own type raises, or would look for something else."""

    impl = NullType
    cache_ok = True

    def __init__(self, key_type: TypeEngine[Any]) -> None:
        super().__init__()
        self.key_type = key_type

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return self.key_type.dialect_impl(dialect)

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        read = super().result_processor(dialect, coltype)
        bind = super().bind_processor(dialect)
        if read is None and bind is None:
            return None

        def read_key(written: Any) -> Any:
            if written is None:
                return None
            try:
                key = written if read is None else read(written)
                sought = key if bind is None else bind(key)
            except Exception:  # noqa: BLE001 - a type may be the host's
                return WrittenKey(written)
            return key if sought == written else WrittenKey(written, key)

        return read_key


async def checked_keys(
    connection: AsyncConnection, leased: LeasedTable, keys: Iterable[Any], *, owner: str
) -> list[Any]:
    """Return the key for each `key_as_read`; those that do not find their rows, which are left
    alone from now on, as a `WrittenKey`.
    """
    checked = []
    for key in keys:
        # SQLite has keys that are null, where the table allows it; nothing equals them.
        one = WrittenKey(None) if key is None else key
        if isinstance(one, WrittenKey):
            # The same value may be written in two ways (a collation, a number as text); the
            # database knows.
            if one.key is not _UNREAD and await _finds(connection, leased, one):
                one = one.key
            else:
                _leave_alone(leased, one.written, owner=owner)
        checked.append(one)
    return checked


async def _finds(connection: AsyncConnection, leased: LeasedTable, one: WrittenKey) -> bool:
    written = bindparam("rowlock_written_key", one.written, type_=NullType())
    is_it = and_(leased.key == one.key, written_key(leased) == written)
    return await connection.scalar(select(leased.key.is_not(None)).where(is_it)) is not None


def _leave_alone(leased: LeasedTable, written: object, *, owner: str) -> None:
    spoilt = leased.spoilt_keys
    if written in spoilt or len(spoilt) >= SPOILT_KEYS_MAX:
        return
    spoilt.add(written)
    text = "%(pipeline)s: skipping a row of %(model)s: its key %(key)s cannot be read back"
    logger.error(text, {"pipeline": owner, "model": leased.name, "key": f"{written!r:.100}"})
    if len(spoilt) == SPOILT_KEYS_MAX:
        text = "%(pipeline)s: skipping %(rows)d rows by now; further ones are not logged"
        logger.error(text, {"pipeline": owner, "rows": SPOILT_KEYS_MAX})


def key_as_read(leased: LeasedTable) -> ColumnElement[Any]:
    """Return the key column, of which no value fails the statement; for `checked_keys`."""
    return type_coerce(leased.key, _KeyAsRead(leased.key.type))


def written_key(leased: LeasedTable) -> ColumnElement[Any]:
    return type_coerce(leased.key, NullType())


def is_spoilt(leased: LeasedTable) -> ColumnElement[bool]:
    """The row has one of the keys in `spoilt_parameters`."""
    return written_key(leased).in_(_spoilt())


def is_not_spoilt(leased: LeasedTable) -> ColumnElement[bool]:
    """The row has a key, and none of those in `spoilt_parameters`."""
    return and_(leased.key.is_not(None), written_key(leased).not_in(_spoilt()))


def _spoilt() -> Any:
    return bindparam("rowlock_spoilt_keys", expanding=True, type_=NullType())


def spoilt_parameters(written: Iterable[Any]) -> dict[str, Any]:
    return {"rowlock_spoilt_keys": [key for key in written if key is not None]}


def check_keys(leased: LeasedTable, keys: Iterable[Any]) -> None:
    """Refuse keys that are unequal to what is read again: no row would be one that is held, and its
    outcomes would be lost, at every attempt.
    """
    for class_ in set(map(type, keys)):
        equality: Any = class_.__eq__
        # There is one of each member of an enumeration.
        if equality is object.__eq__ and not issubclass(class_, enum.Enum):
            raise ModelError(
                f"{leased.name}.{leased.key_name} is read as objects of {class_.__name__}, and two"
                " that are read of one row are not equal: give that class __eq__ and __hash__, or"
                " read the key as a plain value",
                model=leased.name,
                column=leased.key_name,
            )
