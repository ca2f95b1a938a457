"""Reads the first rows in line as a claim would see them, and later what became of them; nothing is
locked and nothing is written.

Every function joins the transaction of the connection that it is given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import Column, ColumnElement, and_, case, select
from sqlalchemy.exc import DataError, DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock.database.faults import is_transient
from rowlock.errors import OutcomeError
from rowlock.insight.asking.column_labels import labelled_columns
from rowlock.insight.dialects.insight_dialect import INSIGHT
from rowlock.insight.questions import RowQuestion, ask_first, is_of_a_statement
from rowlock.insight.verdicts import Refused
from rowlock.leases.acquire import read_acquired
from rowlock.rows.database_time import database_now
from rowlock.rows.eligibility import oldest_first, order_column, was_main_lease
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.model_check import CLEARED_COLUMNS, with_zone

T = TypeVar("T")
RowValues: TypeAlias = Mapping[Column[Any], Any]
"""The values of a row at one moment, by the columns of its table."""


@dataclass(frozen=True, slots=True)
class SnapshotRow:
    """A row before a claim.

    Attributes:
        key: of the row.
        values: of all mapped columns.
        instance: what `process` gets; None if the row was changed while it was read.
        attempt: the number of the attempt that comes next.
        prev_lock_expired: whether a pipeline let its lease on the row end.
        place: as of a claimed item.
        unreadable: of a row that cannot be read, which columns; None of others.
    """

    key: Any
    values: RowValues
    instance: Any
    attempt: int
    prev_lock_expired: bool
    place: float
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class RowLook:
    """What some rows were at one moment.

    Attributes:
        at: when that was, by the database.
        rows: by their keys; one that was deleted is not among them.
        unreadable: the keys of those that cannot be read, and which columns.
    """

    at: datetime
    rows: Mapping[Any, RowValues]
    unreadable: Mapping[Any, str] = field(default_factory=dict)


def columns_of(leased: LeasedTable) -> tuple[Column[Any], ...]:
    """Return the mapped columns of a table, each once."""
    mapped = (each for prop in leased.mapper.column_attrs for each in prop.columns)
    return tuple(dict.fromkeys(each for each in mapped if isinstance(each, Column)))


async def read_snapshot(
    session: AsyncSession,
    connection: AsyncConnection,
    question: RowQuestion,
    *,
    limit: int,
    options: Sequence[LoaderOption],
    apart: bool,
) -> tuple[datetime, tuple[SnapshotRow, ...]]:
    """Return the database's time and the first rows that a claim would get, in its order.

    Args:
        session: makes the instances.
        connection: of the session.
        question: the condition of the pipeline's claims; its key is not asked.
        limit: most rows.
        options: the host's, of the instances.
        apart: read each row by itself; one that holds what cannot be read costs no other.
    """
    at, leased = await _now(connection), question.leased
    read = partial(_read_rows, session, connection, question, options=options)
    if not apart:
        return at, await read(where=question.parts.whole, limit=limit)
    ordered = select(leased.key).where(question.parts.whole).order_by(*oldest_first(leased))
    keys = (await connection.scalars(ordered.limit(limit))).all()
    rows = list[SnapshotRow]()
    for key in keys:
        one = partial(read, where=and_(question.parts.whole, leased.key == key), limit=1)
        found = await _read_alone(connection, leased, key, read=one)
        rows += [_unreadable_row(key, found)] if isinstance(found, str) else found
    return at, tuple(rows)


async def _read_rows(
    session: AsyncSession,
    connection: AsyncConnection,
    question: RowQuestion,
    *,
    options: Sequence[LoaderOption],
    where: ColumnElement[bool],
    limit: int,
) -> tuple[SnapshotRow, ...]:
    leased, columns = question.leased, columns_of(question.leased)
    was_main, was_own = (case((one, 1), else_=0) for one in _left_by(question))
    statement = (
        select(was_main.label("was_main"), was_own.label("was_own"), *labelled_columns(columns))
        .where(where)
        .order_by(*oldest_first(leased))
        .limit(limit)
    )
    found = (await connection.execute(statement)).all()
    values = [_values(columns, row[2:]) for row in found]
    keys = [one[leased.key] for one in values]
    read = await read_acquired(session, leased, keys, options=options) if keys else []
    instances = {getattr(row, leased.key_name): row for row in read}
    return tuple(
        _snapshot(
            leased,
            one,
            instances.get(one[leased.key]),
            prev_lock_expired=bool(row.was_main),
            deaths=int(row.was_own),
        )
        for row, one in zip(found, values, strict=True)
    )


async def read_look(
    connection: AsyncConnection, leased: LeasedTable, keys: Sequence[Any], *, apart: bool
) -> RowLook:
    """Return what the rows of `keys` are now; `apart` as for `read_snapshot`."""
    at = await _now(connection)
    if not apart:
        return RowLook(at, await _look(connection, leased, keys))
    rows, unreadable = dict[Any, RowValues](), dict[Any, str]()
    for key in keys:
        one = partial(_look, connection, leased, [key])
        found = await _read_alone(connection, leased, key, read=one)
        if isinstance(found, str):
            unreadable[key] = found
        else:
            rows |= found
    return RowLook(at, rows, unreadable)


async def _look(
    connection: AsyncConnection, leased: LeasedTable, keys: Sequence[Any]
) -> dict[Any, RowValues]:
    columns = columns_of(leased)
    found = await connection.execute(select(*labelled_columns(columns)).where(leased.key.in_(keys)))
    values = (_values(columns, row) for row in found)
    return {one[leased.key]: one for one in values}


def is_of_a_value(error: Exception) -> bool:
    """Whether an error may be about a value in one row, which Python or its type cannot read."""
    is_refused = isinstance(error, DBAPIError) and not isinstance(error, DataError)
    return is_of_a_statement(error) and not (is_refused or is_transient(error))


async def _read_alone(
    connection: AsyncConnection, leased: LeasedTable, key: Any, *, read: Callable[[], Awaitable[T]]
) -> T | str:
    """Return what `read` gives of one row; or which of its columns cannot be read, without their
    values, which may be hidden.
    """
    try:
        async with connection.begin_nested():
            return await read()
    except Exception as error:
        if not is_of_a_value(error):
            raise
    names = list[str]()
    for column in columns_of(leased):
        statement = select(*labelled_columns([column])).where(leased.key == key)
        if isinstance(await ask_first(connection, statement, apart=True), Refused):
            names.append(column.name)
    return f"{', '.join(names) or 'what options() loads'} cannot be read"


def _unreadable_row(key: Any, text: str) -> SnapshotRow:
    return SnapshotRow(key, {}, None, 1, prev_lock_expired=False, place=0.0, unreadable=text)


async def _now(connection: AsyncConnection) -> datetime:
    at = await connection.scalar(select(database_now()))
    assert isinstance(at, datetime)
    return at


def _left_by(question: RowQuestion) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Return whether a pipeline, and whether this one, let its lease on a row end; a claim counts
    the latter as an attempt.
    """
    leased = question.leased
    was_left = leased.attribute("lock_token").is_not(None)
    lockers = [locking.owner for locking in question.locking]
    was_own = leased.attribute("lock_owner") == question.owner
    return and_(was_left, was_main_lease(leased, lockers)), and_(was_left, was_own)


def _values(columns: Sequence[Column[Any]], row: Sequence[Any]) -> RowValues:
    return {column: with_zone(value, column) for column, value in zip(columns, row, strict=True)}


def _snapshot(
    leased: LeasedTable, values: RowValues, instance: Any, *, prev_lock_expired: bool, deaths: int
) -> SnapshotRow:
    attempts = int(values[leased.column("attempts")]) + deaths if leased.has_schedule else 0
    place = values[leased.column(order_column(leased).key)]
    is_it = instance is not None and _is_of(leased, instance, values)
    return SnapshotRow(
        values[leased.key],
        values,
        instance if is_it else None,
        attempts + 1,
        prev_lock_expired,
        float("-inf") if place is None else place.timestamp(),
    )


def _is_of(leased: LeasedTable, instance: Any, values: RowValues) -> bool:
    """Whether an instance, which was read by a statement of its own, has these values."""
    leases = {leased.column(name) for name in CLEARED_COLUMNS}
    return all(
        is_same(_loaded(leased, instance, column, otherwise=value), value) is not False
        for column, value in values.items()
        if column not in leases
    )


def _loaded(leased: LeasedTable, instance: Any, column: Column[Any], *, otherwise: Any) -> Any:
    try:
        return leased.value_as_read(instance, column)
    except OutcomeError:
        # The host's options leave it out.
        return otherwise


def is_same(one: Any, other: Any) -> bool | None:
    """Whether two values are equal, as two NaN are here; None if their own comparison does not
    say.
    """
    try:
        return one is other or bool(one == other) or bool(one != one and other != other)  # noqa: PLR0124
    # Of the host's types, which may raise anything, or arrays.
    except BaseException:  # noqa: BLE001
        return None


async def read_as_kept(connection: AsyncConnection, values: RowValues) -> dict[Column[Any], Any]:
    """Return values as their columns would keep them; one that the database refuses is left out."""
    dialect, kept = INSIGHT.of(connection), dict[Column[Any], Any]()
    for column, value in values.items():
        statement = select(dialect.as_kept(value, column.type))
        try:
            found = await ask_first(connection, statement, apart=True)
        # Of the host's value, as the driver looks at it.
        except Exception as error:
            if isinstance(error, SQLAlchemyError) or is_transient(error):
                raise
            continue
        if not isinstance(found, Refused):
            kept[column] = with_zone(found[0], column)
    return kept
