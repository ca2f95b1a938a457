"""What an outcome may write, as maps from columns to values.

Outcomes are written as update maps, never by mutating the detached row: only the named columns are
touched, and one `NOW_PLACEHOLDER`, resolved once per transaction, gives all of them the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, Final, TypeAlias, overload

from sqlalchemy import Column, PickleType
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped
from sqlalchemy.orm.attributes import InstrumentedAttribute, QueryableAttribute
from sqlalchemy.sql.elements import KeyedColumnElement
from sqlalchemy.types import NullType

from rowlock.errors import OutcomeError
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.model_check import innermost

NAMES_SHOWN_MAX = 30
"""Most column names that an error lists."""
KEYS_MAX = 1000
"""Of so many update maps a table remembers the columns; keys that are made anew each time are
resolved each time.
"""


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
    """Return the table's column that `key` (a mapped attribute, an attribute name or a column name)
    means.

    Raises:
        OutcomeError: the model has no such column.
    """
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
    """Return the column that `key` means, if what was read of it can be compared with what is
    there.

    Raises:
        OutcomeError: the model has no such column, or its type says too little.
    """
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


def columns_written(leased: LeasedTable, values: Values) -> tuple[Column[Any], ...]:
    """Return the table's columns that an update map writes, in its order; worked out once for maps
    with the same keys.

    Raises:
        OutcomeError: as `column_values`.
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
