"""SQL of the host's without its bound values: outcomes whose expressions differ in nothing else
share a statement.

Source: SQLAlchemy's compiled cache, which finds a statement that it has compiled before by the same
key and puts other values in.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import BindParameter, ColumnElement
from sqlalchemy.sql.visitors import replacement_traverse


@dataclass(frozen=True, slots=True)
class Formula:
    """An expression; equal to another that differs in bound values alone.

    Attributes:
        structure: what equal ones have in common.
        expression: one of them.
        bound: where it has values.
    """

    structure: Hashable
    expression: ColumnElement[Any] = field(compare=False)
    bound: Sequence[BindParameter[Any]] = field(compare=False)

    def filled(self, values: Sequence[ColumnElement[Any]]) -> ColumnElement[Any]:
        """Return the expression with these in the places of its values."""
        places = {id(parameter): value for parameter, value in zip(self.bound, values, strict=True)}

        def replaced(element: Any, **_: Any) -> ColumnElement[Any] | None:
            return places.get(id(element))

        filled: ColumnElement[Any] = replacement_traverse(self.expression, {}, replaced)
        return filled


def formula_of(
    expression: Any,
) -> tuple[Formula, list[Any]] | None:
    """Return what `expression` has in common with others, and the values that are its own; None
    if that cannot be told.
    """
    element = (
        expression if isinstance(expression, ColumnElement) else expression.__clause_element__()
    )
    # Of SQLAlchemy 2.0.38 to 2.1.9; where there is none, each expression is like no other.
    generate = getattr(element, "_generate_cache_key", None)
    key = None if generate is None else generate()
    if key is None or not all(_is_plain(parameter) for parameter in key.bindparams):
        return None
    return Formula(key.key, element, tuple(key.bindparams)), [
        parameter.value for parameter in key.bindparams
    ]


def _is_plain(parameter: BindParameter[Any]) -> bool:
    """Whether it is one value that goes to the database as it is: not a list, part of the text,
    or asked for when it is sent.
    """
    is_asked_for = parameter.required or parameter.callable is not None
    return not (is_asked_for or parameter.expanding or parameter.literal_execute)
