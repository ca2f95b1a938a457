"""Parameters of a host's condition under names that nothing else in a statement has.

The trap this closes: SQLAlchemy takes two parameters of one name for one, and the last value wins.
A host's condition stands in a statement with those of other pipelines (a claim that respects
another's locks), and ``bindparam("kind", ...)`` in each of them is a natural thing to write.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BindParameter, ColumnElement, bindparam
from sqlalchemy.sql.visitors import iterate, replacement_traverse


def with_names_of_its_own(condition: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return `condition`, or a copy of it in which each parameter that has a name of the host's
    has one of its own.
    """
    if not any(_is_named(element) for element in iterate(condition)):
        return condition
    renamed: ColumnElement[Any] = replacement_traverse(
        condition, {}, lambda element, **_: _renamed(element)
    )
    return renamed


def _is_named(element: object) -> bool:
    return isinstance(element, BindParameter) and not element.unique


def _renamed(
    element: Any,
) -> BindParameter[Any] | None:
    if not _is_named(element):
        return None
    value = element.value if element.callable is None else None
    return bindparam(
        element.key,
        value,
        type_=element.type,
        unique=True,
        required=element.required,
        callable_=element.callable,
        expanding=element.expanding,
        literal_execute=element.literal_execute,
    )
