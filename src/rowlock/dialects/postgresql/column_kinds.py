"""What a column's type is on PostgreSQL: whether arrays can give its values, and how two of them
are compared.

The one idea: a type is judged as SQLAlchemy resolves it for this database. A variant, or what a
decorator loads, may be another type here than in the model, and a statement that takes it for the
model's is refused for every row.
"""

from __future__ import annotations

from enum import Enum as PythonEnum
from functools import cache
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    Date,
    DateTime,
    Dialect,
    Enum,
    Float,
    Integer,
    Interval,
    LargeBinary,
    Numeric,
    String,
    Time,
    Uuid,
    make_url,
)
from sqlalchemy.types import TypeEngine

from rowlock.dialects.ownership import is_ours
from rowlock.rows.model_check import innermost

_PLAIN = (Boolean, Date, DateTime, Float, Integer, Numeric, String, Uuid)
_PLAIN_OR_BYTES = (*_PLAIN, LargeBinary, Time)


class Compared(PythonEnum):
    """How values of a type are compared."""

    AS_IT_IS = "by its own equality"
    AS_DOCUMENT = "as jsonb"
    AS_TEXT = "as text"


def as_there(type_: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return what a type comes down to on PostgreSQL."""
    return innermost(type_, _dialect())


def fits_array(type_: TypeEngine[Any]) -> bool:
    """Return whether every driver knows arrays of the type."""
    there = as_there(type_)
    # A host's own type may say how it is bound, for each value or in SQL; no array does that.
    return isinstance(there, _PLAIN) and not isinstance(there, Enum) and is_ours(type_, _dialect())


def unbounded(type_: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return the type of an array's values: of texts, without their greatest length."""
    # An array is cast to its type, and an explicit cast to VARCHAR(5) cuts what is longer without a
    # word. What is no text here must stay what it is, or the server would have to compare it with a
    # text.
    there = type_.dialect_impl(_dialect())
    return String() if isinstance(there, String) and not isinstance(there, Enum) else type_


def compared(type_: TypeEngine[Any]) -> Compared:
    """Return how values of the type are compared."""
    there = as_there(type_)
    if isinstance(there, JSON):
        return Compared.AS_DOCUMENT
    # SQLAlchemy's class for the server's own intervals is none of `Interval`.
    if (
        isinstance(there, _PLAIN_OR_BYTES)
        or isinstance(type_, Interval)
        or there.__visit_name__ == "INTERVAL"
    ):
        return Compared.AS_IT_IS
    return Compared.AS_TEXT


@cache
def _dialect() -> Dialect:
    # Of no engine: it resolves variants, for which its name is enough. It needs no driver, and is
    # imported only on PostgreSQL.
    return make_url("postgresql+asyncpg://").get_dialect()()
