"""Assignments of an UPDATE as data: values, and the one rule that depends on what the row holds at
that moment.

The one idea: outcomes of one shape differ only in their parameters. Kept apart from their SQL, many
of them become one statement executed with many parameter sets.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import NoneType
from typing import Any, TypeAlias
from uuid import UUID

from sqlalchemy import BindParameter, Column, ColumnElement, bindparam, case
from sqlalchemy.sql.visitors import replacement_traverse
from sqlalchemy.types import TypeEngine

from rowlock.rows.database_time import same_time
from rowlock.rows.leased_table import LeasedTable


@dataclass(frozen=True, slots=True)
class Formula:
    """An expression; equal to another that differs in `bound` values alone."""

    structure: Hashable
    expression: ColumnElement[Any] = field(compare=False)
    bound: Sequence[BindParameter[Any]] = field(compare=False)

    def filled(self, values: Sequence[ColumnElement[Any]]) -> ColumnElement[Any]:
        places = {id(parameter): value for parameter, value in zip(self.bound, values, strict=True)}

        def replaced(element: Any, **_: Any) -> ColumnElement[Any] | None:
            return places.get(id(element))

        filled: ColumnElement[Any] = replacement_traverse(self.expression, {}, replaced)
        return filled


def cache_key_of(element: Any) -> Any:
    """Return its key in SQLAlchemy's cache of statements; None if that does not say everything."""
    # Of SQLAlchemy 2.0.38 to 2.1.9; where there is none, each expression is like no other.
    key = getattr(element, "_generate_cache_key", lambda: None)()
    # Since 2.1: what `params()` of a subquery has set.
    return None if getattr(key, "params", None) else key


def formula_of(expression: Any) -> tuple[Formula, list[Any]] | None:
    """Return what `expression` shares with others, and its own values; None if unknown."""
    is_element = isinstance(expression, ColumnElement)
    element = expression if is_element else expression.__clause_element__()
    key = cache_key_of(element)
    if key is None or not all(_is_plain(parameter) for parameter in key.bindparams):
        return None
    values = [parameter.value for parameter in key.bindparams]
    return Formula(key.key, element, tuple(key.bindparams)), values


def _is_plain(parameter: BindParameter[Any]) -> bool:
    """Whether one value goes to the database as it is: no list, no text, no callable."""
    is_asked_for = parameter.required or parameter.callable is not None
    return not (is_asked_for or parameter.expanding or parameter.literal_execute)


ColumnValues: TypeAlias = dict[Column[Any], Any]
"""Columns and what they become: a plain value, an SQL expression, or the rule below."""


@dataclass(frozen=True, slots=True)
class UnlessChanged:
    """The time `value` if the row still holds the time `as_read`; else what the row holds."""

    value: Any
    as_read: Any


Shape: TypeAlias = tuple[tuple[Column[Any], object], ...]
"""Columns and what happens to each: None for a plain value, the rule, a formula, or SQL."""
Slot: TypeAlias = tuple[str, TypeEngine[Any]]
"""Name and type of a parameter."""


def split(values: Mapping[Column[Any], Any]) -> tuple[Shape, list[Any]]:
    """Return the shape that one statement can write for many maps, and a map's parameters."""
    shape: list[tuple[Column[Any], object]] = []
    parameters: list[Any] = []
    for column, value in values.items():
        rule: object = None
        if isinstance(value, UnlessChanged):
            rule = UnlessChanged
            parameters += (value.value, value.as_read)
        elif type(value) not in PLAIN and is_sql(value):
            # A column of the row is the same expression for all.
            found = None if isinstance(value, Column) else formula_of(value)
            rule, own = found or (value, [])
            parameters += own
        else:
            parameters.append(value)
        shape.append((column, rule))
    return tuple(shape), parameters


PLAIN = frozenset({bool, bytes, datetime, dict, float, int, list, NoneType, str, UUID})
"""Types of values that need not be looked at twice."""
_RULES = frozenset({None, UnlessChanged})


def can_be_kept(shape: Shape) -> bool:
    """Whether a statement of this shape may be written again: some are made anew each time."""
    return all(rule in _RULES or isinstance(rule, Column | Formula) for _, rule in shape)


def is_like_no_other(value: object) -> bool:
    """Whether it is SQL that no two maps have in common."""
    return is_sql(value) and not isinstance(value, Column) and formula_of(value) is None


def slots_of(shape: Shape) -> list[Slot]:
    """Return names and types of the parameters of maps of this shape, in the order of `split`."""
    slots: list[Slot] = []
    for number, (column, rule) in enumerate(shape):
        if isinstance(rule, Formula):
            slots += _slots_of_formula(rule, number)
        elif rule in _RULES:
            slots.append((f"rowlock_new_{number}", column.type))
        if rule is UnlessChanged:
            slots.append((f"rowlock_read_{number}", column.type))
    return slots


def _slots_of_formula(formula: Formula, number: int) -> list[Slot]:
    return [
        (f"rowlock_in_{number}_{place}", parameter.type)
        for place, parameter in enumerate(formula.bound)
    ]


def set_clause(
    shape: Shape, given: Mapping[str, ColumnElement[Any]] | None = None
) -> dict[Column[Any], Any]:
    """Return the SET clause for a shape; `given` replaces parameters of `slots_of`."""
    return {
        column: _expression(column, rule, number=number, given=given or {})
        for number, (column, rule) in enumerate(shape)
    }


def varying(rows: Sequence[Sequence[Any]]) -> list[int]:
    """Return at which places the parameters of these maps are not all the same."""
    return [place for place, values in enumerate(zip(*rows, strict=True)) if not _all_same(values)]


def _all_same(values: Sequence[Any]) -> bool:
    # Of most types equal values may be written differently: 1 and True within JSON, decimals, times
    # in other zones.
    first, type_ = values[0], type(values[0])
    is_flat = type_ in _FLAT
    return all(
        value is first or (is_flat and type(value) is type_ and value == first) for value in values
    )


_FLAT = frozenset({bool, bytes, int, str, UUID})
"""Types of which equal values are written alike."""


# Parameters carry our name: SQLAlchemy refuses one that is called like a column of the host's
# table.
def _expression(
    column: Column[Any], rule: object, *, number: int, given: Mapping[str, ColumnElement[Any]]
) -> Any:
    if isinstance(rule, Formula):
        slots = _slots_of_formula(rule, number)
        return rule.filled([_parameter(name, type_, given) for name, type_ in slots])
    if rule not in _RULES:
        return rule
    new = _parameter(f"rowlock_new_{number}", column.type, given)
    if rule is UnlessChanged:
        as_read = _parameter(f"rowlock_read_{number}", column.type, given)
        return case((same_time(column, as_read), new), else_=column)
    return new


def _parameter(
    name: str, type_: TypeEngine[Any], given: Mapping[str, ColumnElement[Any]]
) -> ColumnElement[Any]:
    return given[name] if name in given else bindparam(name, type_=type_)


def is_sql(value: object) -> bool:
    """Whether a value is an expression, whose result only the database knows."""
    # Asked for its attributes, an expression takes its time.
    return isinstance(value, ColumnElement) or hasattr(value, "__clause_element__")


def without_onupdate(leased: LeasedTable, values: Mapping[Column[Any], Any]) -> ColumnValues:
    """Return `values` and, as they are, all columns that would change by themselves: SQLAlchemy
    would stamp an ``updated_at`` on each heartbeat, which is no change of the row's content.
    """
    return {**{column: column for column in leased.columns_with_onupdate}, **values}
