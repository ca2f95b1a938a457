"""What a column's type is on SQLite: how two of its values are compared, in SQL or once they are
read.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ColumnElement,
    Date,
    DateTime,
    Dialect,
    Float,
    Integer,
    Numeric,
    String,
    Text,
    Uuid,
    func,
    literal,
    make_url,
    null,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.types import TypeEngine

from rowlock.dialects.ownership import is_ours
from rowlock.rows.expressions.unreadable import may_be_large
from rowlock.rows.model_check import innermost, keeps_time

_PLAIN = (Boolean, Date, DateTime, Float, Integer, Numeric, String, Uuid)


def is_read_alike(type_: TypeEngine[Any]) -> bool:
    """Return whether a value of the type is the same, in Python, whenever it is read: a host's
    own may compare as it likes.
    """
    return isinstance(innermost(type_, _dialect()), _PLAIN) and is_ours(type_, _dialect())


def is_unchanged_document(column: Column[Any], value: object) -> ColumnElement[bool] | None:
    """Return the condition that a JSON column has `value`; None if the column is no such column.
    JSON's null is read as SQL's.
    """
    if not isinstance(innermost(column.type, _dialect()), JSON):
        return None
    if value is None:
        return or_(column.is_(null()), type_coerce(column, Text) == "null")
    return _is_same_document(column, value)


def is_time(column: Column[Any]) -> bool:
    """Return whether the column keeps times."""
    return keeps_time(column.type, _dialect())


def keeps_large(column: Column[Any]) -> bool:
    """Return whether values of the column may be large."""
    return may_be_large(innermost(column.type, _dialect()))


def _is_same_document(column: Column[Any], value: object) -> ColumnElement[bool]:
    """Compare as text without its blanks; and by values, since a letter or a number may be written
    in several ways.

    The paths of `json_tree` keep names as they are written: with letters as they are, or escaped as
    Python does it.
    """
    given = literal(value, column.type)
    alike = [func.json(column) == func.json(given), _values_of(column) == _values_of(given)]
    try:
        unescaped = json.dumps(value, ensure_ascii=False)
        unescaped.encode()
    except (TypeError, ValueError):
        # The host's own serializer knows how to write it, or it holds half a letter, which is
        # always escaped.
        return or_(*alike)
    return or_(*alike, _values_of(column) == _values_of(literal(unescaped, Text)))


def _values_of(document: ColumnElement[Any]) -> ColumnElement[Any]:
    each = func.json_tree(document).table_valued("fullkey", "type", "atom")
    listed = func.json_group_array(func.json_array(each.c.fullkey, each.c.type, each.c.atom))
    return select(listed).scalar_subquery()


@cache
def _dialect() -> Dialect:
    # Names no engine of anybody's: it resolves variants, for which the database's name is enough.
    return make_url("sqlite+aiosqlite://").get_dialect()()
