"""What an outcome may write, as maps from columns to values.

Outcomes are written as update maps, never by mutating the detached row: only the named columns are
touched, and one `NOW_PLACEHOLDER`, resolved once per transaction, gives all of them the same time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias, overload

from sqlalchemy import (
    ARRAY,
    JSON,
    Column,
    DateTime,
    Dialect,
    Float,
    Integer,
    LargeBinary,
    Numeric,
    PickleType,
    String,
    Time,
    Uuid,
    bindparam,
)
from sqlalchemy import Enum as EnumType
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped
from sqlalchemy.orm.attributes import InstrumentedAttribute, QueryableAttribute
from sqlalchemy.sql.elements import KeyedColumnElement
from sqlalchemy.types import NullType, TypeEngine

from rowlock.dialects.contract import ROWS
from rowlock.errors import OutcomeError
from rowlock.rows.assignments import PLAIN, is_sql
from rowlock.rows.leased_table import LeasedTable, innermost, is_ours, with_zone

NAMES_SHOWN_MAX = 30
"""Most column names that an error lists."""
KEYS_MAX = 1000
"""Of so many columns it is remembered how their values are tried."""


class _NowPlaceholder(Enum):
    NOW = "now"

    def __repr__(self) -> str:
        return "NOW_PLACEHOLDER"


NOW_PLACEHOLDER: Final = _NowPlaceholder.NOW
"""Stands for the single database time of the transaction that writes the values."""

ColumnKey: TypeAlias = str | Mapped[Any] | KeyedColumnElement[Any]
"""What names a column: an attribute name, a column name, or a mapped attribute."""

# A mapping is invariant in its keys: of one with attributes alone, type checkers do not see that it
# fits one with keys of either kind.
Values: TypeAlias = (
    Mapping[str, Any]
    | Mapping[InstrumentedAttribute[Any], Any]
    | Mapping[Mapped[Any], Any]
    | Mapping[KeyedColumnElement[Any], Any]
    | Mapping[ColumnKey, Any]
)
"""Update map. Keys: attribute names, column names or mapped attributes."""


@overload
def resolve_now_placeholders(values: Values, now: datetime) -> dict[Any, Any]: ...
@overload
def resolve_now_placeholders(values: list[Values], now: datetime) -> list[dict[Any, Any]]: ...
def resolve_now_placeholders(
    values: Values | list[Values], now: datetime
) -> dict[Any, Any] | list[dict[Any, Any]]:
    """Return a copy of an update map, or of a list of them, with `now` for every `NOW_PLACEHOLDER`.

    At the top of a map the placeholder becomes the datetime itself. Inside a value (a dict or list
    bound for a JSON column) it becomes ISO 8601 text, which is what JSON can hold.
    """
    if isinstance(values, list):
        return [resolve_now_placeholders(one, now) for one in values]
    return {
        key: now if value is NOW_PLACEHOLDER else _resolve_nested(value, now)
        for key, value in values.items()
    }


def _resolve_nested(value: Any, now: datetime) -> Any:
    match value:
        case _NowPlaceholder():
            return now.isoformat()
        case dict():
            return {key: _resolve_nested(inner, now) for key, inner in value.items()}
        case list():
            return [_resolve_nested(inner, now) for inner in value]
        case tuple() if type(value) is tuple:
            return tuple(_resolve_nested(inner, now) for inner in value)
        case _:
            return value


def column_of(leased: LeasedTable, key: object) -> Column[Any]:
    """Return the table's column that `key` means; `OutcomeError` if the model has none."""
    if isinstance(key, Column) and key.table is leased.table:
        return key
    name = key
    if isinstance(key, QueryableAttribute):
        name = key.key if leased.mapper.isa(key.parent.mapper) else str(key)
    column = leased.columns_by_name.get(name) if isinstance(name, str) else None
    if column is None:
        known = ", ".join(sorted(leased.columns_by_name)[:NAMES_SHOWN_MAX])
        mapped = leased.mapper.all_orm_descriptors.get(str(name))
        is_hybrid = isinstance(mapped, hybrid_property)
        cure = "it is a hybrid, so write the columns behind it: " if is_hybrid else "it has "
        raise OutcomeError(f"{leased.name} has no column {name!r}; {cure}{known}", column=str(name))
    return column


def compared_column(leased: LeasedTable, key: object) -> Column[Any]:
    """Return the column that `key` means; `OutcomeError` if its values cannot be compared."""
    column = column_of(leased, key)
    type_ = innermost(column.type)
    if isinstance(type_, NullType):
        raise OutcomeError(
            f"{leased.name}.{column.name} has no type that SQLAlchemy knows, so it cannot be"
            " compared; declare one, or compare another column, such as a version",
            column=column.name,
        )
    if isinstance(column.type, PickleType):
        raise OutcomeError(
            f"{leased.name}.{column.name} holds pickles, which may differ although the objects are"
            " equal; compare another column, such as a version",
            column=column.name,
        )
    return column


def column_values(leased: LeasedTable, values: Values) -> dict[Column[Any], Any]:
    """Return the host's update map keyed by the table's columns; `OutcomeError` if it is none."""
    return dict(zip(columns_written(leased, values), values.values(), strict=True))


def checked_values(leased: LeasedTable, values: Values, dialect: Dialect) -> dict[Column[Any], Any]:
    """As `column_values`, of values that columns keep and models read back; or `OutcomeError`."""
    written = column_values(leased, values)
    check_kept(leased.name, written, dialect)
    return written


def check_kept(model: str, values: Mapping[Column[Any], Any], dialect: Dialect) -> None:
    """Refuse, by `OutcomeError`, a value that its column cannot keep, or that is not read back."""
    for column, value in values.items():
        trial = _trial_of(column, dialect)
        if trial is None or value is None or (type(value) not in PLAIN and is_sql(value)):
            continue
        if (why := trial(value)) is not None:
            raise OutcomeError(
                f"{model}.{column.name} cannot be set to a value of type {type(value).__name__}:"
                f" {why}",
                column=column.name,
            )


Trial: TypeAlias = Callable[[Any], str | None]
"""Returns why a column cannot be set to a value; None if it can."""


@lru_cache(KEYS_MAX)
def _trial_of(column: Column[Any], dialect: Dialect) -> Trial | None:
    """Return what tries whether a column keeps a value, and the model reads it back; None if it
    takes any value, or only the database knows.
    """
    inner, is_own = innermost(column.type, dialect), not is_ours(column.type, dialect)
    is_array = isinstance(inner, ARRAY) and isinstance(
        innermost(inner.item_type, dialect), EnumType
    )
    way = dialect if is_array else _without_driver(dialect)
    type_ = column.type.dialect_impl(way)
    if (
        type_.bind_expression(bindparam(None, type_=type_)) is not None
        or type_.column_expression(column) is not None
    ):
        # What reaches the column is not known.
        return None
    # A host's own type may keep UTC where the database keeps no zone; it may refuse others.
    keeps_zones = ROWS.on(dialect.name).keeps_zones or not is_own
    check = _check_of(inner, keeps_zones=keeps_zones)
    is_text_of_uuid = isinstance(inner, Uuid) and not inner.as_uuid
    is_converted = is_own or is_array or is_text_of_uuid
    if not (is_converted or isinstance(inner, EnumType) or isinstance(type_, PickleType)):
        return check
    bind = type_.bind_processor(way)
    # Of other types only the driver knows how a bound value will be read.
    is_read = isinstance(inner, ARRAY | Integer | JSON | LargeBinary | String | Uuid)
    read = type_.result_processor(way, None) if is_read else None

    def trial(given: Any) -> str | None:
        try:
            value = bind(given) if bind else given
            why = None if value is None or check is None else check(value)
            if why is None and read:
                read(value)
        # Its text holds the value.
        except Exception as error:  # noqa: BLE001
            is_zoned = isinstance(inner, DateTime | Time) and inner.timezone
            why = _without_zone(given) if is_zoned else None
            return why or f"{column.type!r:.200} raises {type(error).__name__}"
        return why

    return trial


@lru_cache(KEYS_MAX)
def comparison_of(column: Column[Any], dialect: Dialect) -> Callable[[Any, Any], bool]:
    """Return what compares two values that were read of `column`, as they would be written: equal
    objects may be written differently, such as 1 and True within JSON.
    """
    way = _without_driver(dialect)
    bind = column.type.dialect_impl(way).bind_processor(way)

    def is_same(one: Any, other: Any) -> bool:
        one, other = with_zone(one, column), with_zone(other, column)
        if bind is not None:
            one, other = bind(one), bind(other)
        # A value that is no number is unequal to itself.
        return one == other or (isinstance(one, _MAY_BE_NAN) and repr(one) == repr(other))

    return is_same


_MAY_BE_NAN = (float, Decimal, list)


def _without_driver(dialect: Dialect) -> Dialect:
    """Return a dialect in which types convert values themselves: some drivers do a part of it."""
    plain: Any = DefaultDialect()
    for name in ("name", "driver", "_json_serializer", "_json_deserializer"):
        setattr(plain, name, getattr(dialect, name, None))
    return plain  # type: ignore[no-any-return]


def _check_of(inner: TypeEngine[Any], *, keeps_zones: bool) -> Trial | None:
    match inner:
        case EnumType():
            return None
        case String(length=int(length)):
            # PostgreSQL cuts spaces at the end.
            return lambda value: (
                f"its text is longer than {length} characters"
                if isinstance(value, str) and len(value) > length < len(value.rstrip(" "))
                else None
            )
        case DateTime(timezone=True) | Time(timezone=True):
            return _without_zone if keeps_zones else None
        case Integer() | Numeric() | Float():
            return _no_number
        case _:
            return None


def _without_zone(value: Any) -> str | None:
    is_aware = getattr(value, "tzinfo", None) is not None
    if not isinstance(value, date | time) or is_aware:
        return None
    return "it has no time zone; pass an aware one, such as datetime.now(UTC)"


_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)


def _no_number(value: Any) -> str | None:
    # SQLite keeps any text, bytes or time in a column of numbers; text of a number is one.
    is_text = isinstance(value, str)
    if is_text and _NUMBER.fullmatch(value):
        return None
    return "it is no number" if is_text or isinstance(value, bytes | date | time) else None


def columns_written(leased: LeasedTable, values: Values) -> tuple[Column[Any], ...]:
    """Return the columns that an update map writes, in its order."""
    if type(values) is not dict and not isinstance(values, Mapping):
        raise OutcomeError(
            f"values must be a dict of columns and values, not {type(values).__name__}"
        )
    keys = tuple(values)
    return leased.prepared((columns_written, keys), partial(_columns_written, leased, keys))


def _columns_written(leased: LeasedTable, keys: Iterable[object]) -> tuple[Column[Any], ...]:
    kept = leased.kept_columns
    written: dict[Column[Any], None] = {}
    for key in keys:
        column = column_of(leased, key)
        if column in kept:
            raise OutcomeError(
                f"{leased.name}.{column.name} is written by rowlock; take it out of the values and"
                " return the outcome that means what you want",
                column=column.name,
            )
        if column is leased.key:
            raise OutcomeError(
                f"{leased.name}.{column.name} is the primary key; it cannot be changed",
                column=column.name,
            )
        if column in written:
            raise OutcomeError(
                f"{leased.name}.{column.name} is in the values twice", column=column.name
            )
        written[column] = None
    return tuple(written)
