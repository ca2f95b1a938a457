"""Columns that services own: `Pipeline.intent`, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Column

from rowlock.errors import ModelError, OutcomeError
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import compared_column


def intent_columns(name: str, leased: LeasedTable[Any], intent: object) -> tuple[Column[Any], ...]:
    """Return the columns of `intent`, given as attributes or names.

    Raises:
        ModelError: the model has no such column, or rowlock writes it itself.
    """
    if isinstance(intent, str) or not isinstance(intent, Sequence):
        raise ModelError(f"{name}.intent is a list of columns, not {intent!r:.100}", model=leased.name)
    try:
        columns = tuple(dict.fromkeys(compared_column(leased, key) for key in intent))
    except OutcomeError as error:
        raise ModelError(f"{name}.intent: {error.args[0]}", model=leased.name, column=error.column) from None
    for column in columns:
        if column.key in leased.lease_columns or column is leased.key:
            raise ModelError(
                f"{name}.intent names {leased.name}.{column.name}, which no service changes for itself; list columns of the host's",
                model=leased.name,
                column=column.name,
            )
    return columns
