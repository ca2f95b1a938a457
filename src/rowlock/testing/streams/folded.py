"""Rows of the host that a flow folds into: as they are in the database, and as one loop has them.

The one idea: the host may write these rows, too. So of what one loop has, those columns count that
the handler sets, and of these not what the database has given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.streams.computing.compute import KeyState
from rowlock.streams.computing.hashing import bucket_of
from rowlock.streams.folds import FoldModel, FoldTable

__all__ = ["ExpectedRows", "read_rows"]

Row = Mapping[str, Any]


async def read_rows(connection: AsyncConnection, fold: FoldTable) -> dict[Any, Row]:
    """Return the rows of a fold by their primary keys; joins the caller's transaction."""
    model = fold.model
    found = await connection.execute(select(*model.columns.values()))
    rows = (dict(zip(model.columns, row, strict=True)) for row in found)
    return {_key_in(model, row): row for row in rows}


class ExpectedRows:
    def __init__(self, fold: FoldTable) -> None:
        self._model = fold.model
        self._set: set[str] = set(fold.model.keys)

    def changed(self, before: Mapping[str, KeyState], after: Mapping[str, KeyState]) -> None:
        for key, state in after.items():
            old, new = before[key].value, state.value.values
            if old is None:
                made = self._model.make([new[name] for name in self._model.keys])
                values = {name: getattr(made, name) for name in self._model.columns}
            else:
                values = old.values
            self._set.update(self._model.changed(new, values))

    def bucket_of(self, key: str) -> int:
        """Return the bucket of the text of a row's key: that of its events."""
        return bucket_of(key if len(self._model.keys) == 1 else json.loads(key)[0])

    def rows(self, states: Mapping[str, KeyState]) -> dict[Any, Row]:
        rows = [state.value.values for state in states.values()]
        return {_key_in(self._model, row): self._counting(row) for row in rows}

    def _counting(self, row: Row) -> Row:
        return {
            name: value
            for name, value in row.items()
            if name in self._set and (value is not None or name not in self._model.given)
        }


def _key_in(model: FoldModel, row: Row) -> Any:
    key = [row[name] for name in model.keys]
    return key[0] if len(key) == 1 else tuple(key)
