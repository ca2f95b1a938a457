"""Whether two SQL expressions say the same, so that a statement made of one serves for the other.

The one idea: when in doubt, they do not. What a host has written itself may keep something that a comparison does not see.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import BindParameter

_KNOWN = ("sqlalchemy.", "rowlock.")
"""Packages whose elements are compared whole."""


def is_same_sql(one: ColumnElement[bool] | None, other: ColumnElement[bool] | None) -> bool:
    """Whether both are the same expression with the same values."""
    if one is other:
        return True
    if one is None or other is None:
        return False
    try:
        return all(map(_is_known, visitors.iterate(other))) and one.compare(other)
    except Exception:  # noqa: BLE001 - values of the host's own types are compared, and whatever they raise, the safe answer is no
        return False


def _is_known(element: object) -> bool:
    # A value that is asked for at each execution is another one each time.
    is_late = isinstance(element, BindParameter) and element.callable is not None
    return not is_late and type(element).__module__.startswith(_KNOWN)
