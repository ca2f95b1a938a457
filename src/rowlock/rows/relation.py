"""How rows of two tables belong together: read from the foreign key between them."""

from __future__ import annotations

from sqlalchemy import ColumnElement, join
from sqlalchemy.exc import ArgumentError

from rowlock.errors import ModelError
from rowlock.rows.leased_table import LeasedTable


def relation_between(leased: LeasedTable, related: LeasedTable) -> ColumnElement[bool] | None:
    """Return the condition that a related row belongs to a main row; None if there is no foreign
    key to say so.

    Raises:
        ModelError: there are several foreign keys.
    """
    if leased.table is related.table or not _has_foreign_key(leased, related):
        return None
    try:
        return join(leased.table, related.table).onclause
    except ArgumentError as error:
        raise ModelError(
            f"several foreign keys connect {leased.name} and {related.name}; say which rows belong"
            f" together: Related({related.name}, on=...)",
            model=related.name,
        ) from error


def _has_foreign_key(one: LeasedTable, other: LeasedTable) -> bool:
    return any(
        key.references(b.table)
        for a, b in ((one, other), (other, one))
        for key in a.table.foreign_keys
    )
