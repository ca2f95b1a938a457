"""Columns of a SELECT by their number, so that two of one name are told apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import ColumnElement, type_coerce


def labelled_columns(columns: Iterable[ColumnElement[Any]]) -> list[ColumnElement[Any]]:
    """Return the columns, each labelled by its place."""
    return [
        type_coerce(column, column.type).label(f"c{number}")
        for number, column in enumerate(columns)
    ]
