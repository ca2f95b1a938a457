"""Assignments of an UPDATE as data: values, and the two rules that depend on what the row holds at that moment.

The one idea: outcomes of one shape differ only in their parameters. Kept apart from their SQL, many of them become one statement
executed with many parameter sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from sqlalchemy import Column, ColumnElement, bindparam, case

from rowlock.rows.database_time import same_time

ColumnValues: TypeAlias = dict[Column[Any], Any]
"""Columns and what they become: a plain value, an SQL expression, `Latest` or `UnlessChanged`."""


@dataclass(frozen=True, slots=True)
class Latest:
    """The later of `time` and what the row holds."""

    time: datetime


@dataclass(frozen=True, slots=True)
class UnlessChanged:
    """The time `value` if the row still holds the time `as_read`; else what the row holds stands."""

    value: Any
    as_read: Any


def shape_of(values: Mapping[Column[Any], Any]) -> tuple[tuple[Column[Any], object], ...]:
    """Return what two maps have in common if one statement can write both."""
    return tuple((column, value if _is_sql(value) else _rule_of(value)) for column, value in values.items())


def set_clause(
    values: Mapping[Column[Any], Any], given: Mapping[str, ColumnElement[Any]] | None = None
) -> dict[Column[Any], Any]:
    """Return the SET clause for every map of this shape.

    Its parameters are those of `parameters_of`; what is `given` by their names stands in their place.
    """
    return {
        column: _expression(column, value, number=number, given=given or {})
        for number, (column, value) in enumerate(values.items())
    }


def varying(parameters: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the parameters that are not the same in all of these sets."""
    first = parameters[0]
    return [name for name in first if any(not _same(first[name], each[name]) for each in parameters[1:])]


def _same(one: object, other: object) -> bool:
    return one is other or (type(one) is type(other) and bool(one == other))


def column_of_parameter(values: Mapping[Column[Any], Any], name: str) -> Column[Any]:
    """Return the column that a parameter of this map is for."""
    return tuple(values)[int(name.rpartition("_")[2])]


def parameters_of(values: Mapping[Column[Any], Any]) -> dict[str, Any]:
    """Return the parameters of `set_clause` for this map."""
    parameters: dict[str, Any] = {}
    for number, value in enumerate(values.values()):
        match value:
            case _ if _is_sql(value):
                pass
            case Latest(time):
                parameters[f"rowlock_new_{number}"] = time
            case UnlessChanged(new, as_read):
                parameters |= {f"rowlock_new_{number}": new, f"rowlock_read_{number}": as_read}
            case _:
                parameters[f"rowlock_new_{number}"] = value
    return parameters


# Parameters carry our name: SQLAlchemy refuses one that is called like a column of the host's table.
def _expression(column: Column[Any], value: object, *, number: int, given: Mapping[str, ColumnElement[Any]]) -> Any:  # noqa: ANN401 - whatever SET takes
    new = _parameter(f"rowlock_new_{number}", column, given)
    match value:
        case _ if _is_sql(value):
            return value
        case Latest():
            return case((column > new, column), else_=new)
        case UnlessChanged():
            as_read = _parameter(f"rowlock_read_{number}", column, given)
            return case((same_time(column, as_read), new), else_=column)
        case _:
            return new


def _parameter(name: str, column: Column[Any], given: Mapping[str, ColumnElement[Any]]) -> ColumnElement[Any]:
    return given[name] if name in given else bindparam(name, type_=column.type)


def _rule_of(value: object) -> type | None:
    return type(value) if isinstance(value, Latest | UnlessChanged) else None


def _is_sql(value: object) -> bool:
    return hasattr(value, "__clause_element__") or isinstance(value, ColumnElement)
