"""Whether a column's type is SQLAlchemy's or ours, so that it is known what becomes of values,
or the host's own.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Dialect
from sqlalchemy.types import TypeEngine


def is_ours(type_: TypeEngine[Any], dialect: Dialect) -> bool:
    """Return whether no code of the host's makes values of the type, nor of what it is in the
    database of `dialect`.
    """
    both = (type_, type_.dialect_impl(dialect))
    return all(type(one).__module__.startswith(("sqlalchemy.", "rowlock.")) for one in both)
