"""Assignments of an UPDATE as data: values, and the one rule that depends on what the row holds at that moment.

The one idea: outcomes of one shape differ only in their parameters. Kept apart from their SQL, many of them become one statement
executed with many parameter sets.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import NoneType
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import Column, ColumnElement, bindparam, case, literal

from rowlock.rows.database_time import same_time
from rowlock.rows.parameter_names import with_names_of_its_own

ColumnValues: TypeAlias = dict[Column[Any], Any]
"""Columns and what they become: a plain value, an SQL expression, or `UnlessChanged`."""


@dataclass(frozen=True, slots=True)
class UnlessChanged:
    """The time `value` if the row still holds the time `as_read`; else what the row holds stands."""

    value: Any
    as_read: Any


Shape: TypeAlias = tuple[tuple[Column[Any], object], ...]
"""Columns and what happens to each: None for a plain value, a rule, or the very SQL expression."""


def split(values: Mapping[Column[Any], Any]) -> tuple[Shape, list[Any]]:
    """Return the shape of a map, which maps have in common that one statement can write, and the parameters that are its own."""
    shape: list[tuple[Column[Any], object]] = []
    parameters: list[Any] = []
    for column, value in values.items():
        rule: object = None
        if isinstance(value, UnlessChanged):
            rule = UnlessChanged
            parameters += (value.value, value.as_read)
        elif type(value) not in PLAIN and _is_sql(value):
            rule = value
        else:
            parameters.append(value)
        shape.append((column, rule))
    return tuple(shape), parameters


PLAIN = frozenset({bool, bytes, datetime, dict, float, int, list, NoneType, str, UUID})
"""Types of values that need not be looked at twice."""
_RULES = frozenset({None, UnlessChanged})


def can_be_kept(shape: Shape) -> bool:
    """Whether a statement of this shape may be written again: an expression of SQL is made anew by whoever writes it."""
    return all(rule in _RULES or isinstance(rule, Column) for _, rule in shape)


def kind_of(values: ColumnValues, *, stamped: frozenset[Column[Any]] = frozenset()) -> Hashable:
    """Return what maps have in common that a few round trips can write: their columns, and how each of them is written.

    Expressions of SQL are alike if they differ in nothing but bound values. One that SQLAlchemy cannot compare so is alike to none.

    Args:
        values: the map.
        stamped: columns for which host code is called for each row that is written, unless they are in the map. It would be called
            once for rows that are joined, so expressions must be the very same there.
    """
    shape, _ = split(values)
    if stamped.difference(values):
        return shape
    return tuple((column, _structure(rule)) for column, rule in shape)


def _structure(rule: Any) -> Hashable:  # noqa: ANN401 - as in a shape
    kept: Hashable = rule
    if rule in _RULES or isinstance(rule, Column):
        return kept
    element = rule.__clause_element__() if hasattr(rule, "__clause_element__") else rule
    # By this SQLAlchemy itself finds a statement that it has compiled before (2.0.38 to 2.1.9); its types are part of it.
    generate = getattr(element, "_generate_cache_key", None)
    cache_key = None if generate is None else generate()
    if cache_key is not None:
        kept = cache_key.key
    return kept


def set_clauses_by_key(key: Column[Any], rows: Sequence[tuple[Any, ColumnValues]]) -> dict[Column[Any], Any]:
    """Return one SET clause for rows whose maps are of one kind (`kind_of`), each given with its key."""
    if len(rows) == 1:
        return _with_values(rows[0][1])
    clauses = [_with_values(values) for _, values in rows]
    joined: dict[Column[Any], Any] = {}
    for column, rule in split(rows[0][1])[0]:
        expressions = [clause[column] for clause in clauses]
        if isinstance(rule, Column) or (rule is None and _all_same([values[column] for _, values in rows])):
            joined[column] = expressions[0]
            continue
        # A parameter of a type that no driver names takes the column's; an expression has a type, which need not be the column's.
        otherwise = column if rule in _RULES else None
        cases = [
            (key == key_, with_names_of_its_own(expression))
            for (key_, _), expression in zip(rows, expressions, strict=True)
        ]
        joined[column] = case(*cases, else_=otherwise)
    return joined


def _with_values(values: ColumnValues) -> dict[Column[Any], Any]:
    shape, parameters = split(values)
    slots = zip(slots_of(shape), parameters, strict=True)
    return set_clause(shape, {name: literal(value, column.type) for (name, column), value in slots})


def slots_of(shape: Shape) -> list[tuple[str, Column[Any]]]:
    """Return names and columns of the parameters of maps of this shape, in the order in which `split` gives them."""
    slots: list[tuple[str, Column[Any]]] = []
    for number, (column, rule) in enumerate(shape):
        if rule in _RULES:
            slots.append((f"rowlock_new_{number}", column))
        if rule is UnlessChanged:
            slots.append((f"rowlock_read_{number}", column))
    return slots


def set_clause(shape: Shape, given: Mapping[str, ColumnElement[Any]] | None = None) -> dict[Column[Any], Any]:
    """Return the SET clause for every map of this shape.

    Its parameters are named as `slots_of` says; what is `given` by their names stands in their place.
    """
    return {
        column: _expression(column, rule, number=number, given=given or {})
        for number, (column, rule) in enumerate(shape)
    }


def varying(rows: Sequence[Sequence[Any]]) -> list[int]:
    """Return at which places the parameters of these maps are not all the same."""
    return [place for place, values in enumerate(zip(*rows, strict=True)) if not _all_same(values)]


def _all_same(values: Sequence[Any]) -> bool:
    # Of most types equal values may be written differently: 1 and True within JSON, decimals, times in other zones.
    first, type_ = values[0], type(values[0])
    is_flat = type_ in _FLAT
    return all(value is first or (is_flat and type(value) is type_ and value == first) for value in values)


_FLAT = frozenset({bool, bytes, int, str, UUID})
"""Types of which equal values are written alike."""


# Parameters carry our name: SQLAlchemy refuses one that is called like a column of the host's table.
def _expression(column: Column[Any], rule: object, *, number: int, given: Mapping[str, ColumnElement[Any]]) -> Any:  # noqa: ANN401 - whatever SET takes
    if rule not in _RULES:
        return rule
    new = _parameter(f"rowlock_new_{number}", column, given)
    if rule is UnlessChanged:
        as_read = _parameter(f"rowlock_read_{number}", column, given)
        return case((same_time(column, as_read), new), else_=column)
    return new


def _parameter(name: str, column: Column[Any], given: Mapping[str, ColumnElement[Any]]) -> ColumnElement[Any]:
    return given[name] if name in given else bindparam(name, type_=column.type)


def _is_sql(value: object) -> bool:
    return hasattr(value, "__clause_element__") or isinstance(value, ColumnElement)
