"""What an outcome may write, as maps from columns to values.

Outcomes are written as update maps, never by mutating the detached row: only the named columns are
touched, and one `NOW_PLACEHOLDER`, resolved once per transaction, gives all of them the same time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from enum import Enum
from functools import lru_cache
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
)
from sqlalchemy import Enum as EnumType
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped
from sqlalchemy.orm.attributes import InstrumentedAttribute, QueryableAttribute
from sqlalchemy.sql.elements import KeyedColumnElement
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine

from rowlock.dialects.contract import ROWS
from rowlock.errors import OutcomeError
from rowlock.rows.assignments import PLAIN, is_sql
from rowlock.rows.leased_table import LeasedTable, innermost

NAMES_SHOWN_MAX = 30
"""Most column names that an error lists."""
KEYS_MAX = 1000
"""Of so many update maps a table remembers the columns; others are resolved each time."""


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
    """Return the host's update map keyed by the table's columns.

    Raises:
        OutcomeError: it is no map, or a key is unknown, named twice, the primary key, or a column
            that rowlock itself keeps.
    """
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
    layers, inner = _layers_of(column.type, dialect)
    binds = [one.process_bind_param for one in layers if _has_own(one, "process_bind_param")]
    reads = [one.process_result_value for one in layers if _has_own(one, "process_result_value")]
    check = _check_of(inner, dialect, is_converted=bool(binds))
    if isinstance(own := column.type, PickleType):
        # What can be pickled need not be what can be read.
        check = _raising(lambda value: own.pickler.loads(own.pickler.dumps(value, own.protocol)))
    is_read_so = not any(_has_own(one, "result_processor") for one in layers)
    stored = _stored_by(inner, dialect) if reads and is_read_so else None
    if check is None and stored is None:
        return None

    def trial(given: Any) -> str | None:
        value = given
        try:
            for bind in binds:
                value = bind(value, dialect)
            why = None if value is None or check is None else check(value)
            if why is None and stored is not None:
                value = None if value is None else stored(value)
                for read in reversed(reads):
                    value = read(value, dialect)
        # Its text holds the value.
        except Exception as error:  # noqa: BLE001
            is_zoned = isinstance(inner, DateTime | Time) and inner.timezone
            why = _without_zone(given) if is_zoned else None
            return why or f"{column.type!r:.200} raises {type(error).__name__}"
        return why

    return trial


def _layers_of(
    type_: TypeEngine[Any], dialect: Dialect
) -> tuple[list[TypeDecorator[Any]], TypeEngine[Any]]:
    layers, inner = [], type_.dialect_impl(dialect)
    while isinstance(inner, TypeDecorator):
        layers.append(inner)
        inner = inner.impl_instance.dialect_impl(dialect)
    by_sql = ("bind_expression", "column_expression")
    if any(_has_own(one, name) for one in (*layers, inner) for name in by_sql) or any(
        _has_own(one, "bind_processor") for one in layers
    ):
        # What reaches the column is not known.
        return [], NullType()
    return layers, inner


def _has_own(layer: TypeEngine[Any], name: str) -> bool:
    base = TypeDecorator if isinstance(layer, TypeDecorator) else TypeEngine
    return getattr(type(layer), name) is not getattr(base, name)


def _check_of(inner: TypeEngine[Any], dialect: Dialect, *, is_converted: bool) -> Trial | None:
    match inner:
        case EnumType() | Uuid(as_uuid=False):
            return _raising(_as_read(inner, dialect))
        case ARRAY() if isinstance(innermost(inner.item_type, dialect), EnumType):
            return _raising(_as_read(inner, dialect))
        case String(length=int(length)):
            # PostgreSQL cuts spaces at the end.
            return lambda value: (
                f"its text is longer than {length} characters"
                if isinstance(value, str) and len(value) > length < len(value.rstrip(" "))
                else None
            )
        case DateTime(timezone=True) | Time(timezone=True):
            # A host's own type may keep UTC where the database keeps no zone; it may refuse others.
            is_checked = ROWS.on(dialect.name).keeps_zones or not is_converted
            return _without_zone if is_checked else lambda _value: None
        case Integer() | Numeric() | Float():
            return _no_number
        case _:
            return None


def _raising(convert: Callable[[Any], object]) -> Trial:
    def check(value: Any) -> None:
        convert(value)

    return check


def _stored_by(inner: TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any] | None:
    """Return what says how a bound value will be read; None where only the driver knows."""
    match inner:
        case EnumType():
            return _as_read(inner, dialect)
        case JSON():
            write: Any = getattr(dialect, "_json_serializer", None) or json.dumps
            read: Any = getattr(dialect, "_json_deserializer", None) or json.loads
            return lambda value: read(write(value))
        case String():
            return lambda value: value if isinstance(value, bytes) else str(value)
        case LargeBinary():
            return lambda value: bytes(memoryview(value))
        case Integer():
            return lambda value: value
        case _:
            return None


def _as_read(type_: TypeEngine[Any], dialect: Dialect) -> Callable[[Any], Any]:
    bind, read = type_.bind_processor(dialect), type_.result_processor(dialect, None)

    def convert(value: Any) -> Any:
        value = bind(value) if bind else value
        return read(value) if read else value

    return convert


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
    """Return the columns that an update map writes, in its order, worked out once for the same
    keys; `OutcomeError` as `column_values`.
    """
    if type(values) is not dict and not isinstance(values, Mapping):
        raise OutcomeError(
            f"values must be a dict of columns and values, not {type(values).__name__}"
        )
    keys = tuple(values)
    try:
        known = leased.columns_by_keys.get(keys)
    except TypeError:
        # Of which one is compared as SQL, or cannot be hashed.
        return _columns_written(leased, keys)
    if known is None:
        known = _columns_written(leased, keys)
        if len(leased.columns_by_keys) < KEYS_MAX:
            leased.columns_by_keys[keys] = known
    return known


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
