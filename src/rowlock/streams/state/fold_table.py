"""Reads and writes the rows of a fold in the host's table: many at once, and only what has changed.

The one idea: a step is computed from rows as they were read, and written to rows that are still so.
What the host does to a row in between is never overwritten: nothing is written then, and the step
is done again from what is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import ModelError
from rowlock.stream_errors import RowsChanged
from rowlock.streams.computing.compute import KeyState
from rowlock.streams.dialects.fold_dialect import FOLDS, KeyedTable
from rowlock.streams.state.cache import StageCache
from rowlock.streams.state.fold_model import FoldModel
from rowlock.streams.state.folded_row import FoldedRow, StoredRow


class FoldTable:
    """The rows of one fold.

    Args:
        model: of the host.
        is_cached: rows are kept in memory between steps, since there is no other writer.

    Attributes:
        model: as given.
        is_cached: as given.
        topic: of hints that rows were written.
    """

    def __init__(self, model: FoldModel, *, is_cached: bool) -> None:
        self.is_cached = is_cached
        self.topic = model.name
        self.model = model
        columns = tuple(model.columns.values())
        keys = tuple(model.columns[name] for name in model.keys)
        self._table = KeyedTable(model.table, keys, columns)

    def __repr__(self) -> str:
        return f"<FoldTable {self.model.name}>"

    async def read(self, connection: AsyncConnection, keys: Iterable[str]) -> dict[str, KeyState]:
        """Return the rows that are there, by the texts of their keys; joins the caller's
        transaction.

        Raises:
            ModelError: the database takes one key for another.
        """
        texts = self._texts(keys)
        if not texts:
            return {}
        names, width = list(self.model.columns), len(self.model.columns)
        found: dict[str, KeyState] = {}
        for row in await FOLDS.of(connection).read(connection, self._table, list(texts)):
            values = dict(zip(names, row[:width], strict=True))
            key = tuple(values[name] for name in self.model.keys)
            if key not in texts:
                raise self._mistaken(key)
            stored = StoredRow(values, None if self.is_cached else row[width])
            found[texts[key]] = KeyState(FoldedRow(values, stored))
        return found

    async def write(self, connection: AsyncConnection, rows: Sequence[FoldedRow]) -> None:
        """Write rows that steps have changed; joins the caller's transaction.

        Raises:
            RowsChanged: rows are not as they were when they were read: roll back.
        """
        missing = await self._insert(connection, [row for row in rows if row.stored is None])
        missing += await self._update(connection, [row for row in rows if row.stored is not None])
        if missing:
            raise RowsChanged(table=self.model.table.fullname, rows=missing)

    def is_written(self, cache: StageCache) -> None:
        """Note that the database has all rows of a shard that steps have changed."""
        written = cache.states(tuple(cache.dirty))
        cache.written(written)
        # What the model or the database has given to a new row is not known here.
        cache.forget(key for key, state in written.items() if self._lacks_some(state.value))
        for state in written.values():
            state.value.stored = StoredRow(state.value.values, None)

    def _lacks_some(self, row: FoldedRow) -> bool:
        return row.stored is None and any(row.values[name] is None for name in self.model.given)

    def _texts(self, keys: Iterable[str]) -> dict[tuple[Any, ...], str]:
        """Return the texts of keys by the primary keys of their rows."""
        texts = {}
        for text in keys:
            try:
                texts[self.model.key_of(self._parts(text))] = text
            except ValueError:
                # No row has it; and none can be made, which the step will say.
                continue
        return texts

    def _parts(self, text: str) -> Sequence[str]:
        return (text,) if len(self.model.keys) == 1 else json.loads(text)

    async def _insert(self, connection: AsyncConnection, rows: Sequence[FoldedRow]) -> int:
        """Insert new rows, those together that have the same columns; return how many were there
        already.
        """
        alike: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
        for row in rows:
            given = {name: value for name, value in row.values.items() if self._is_set(name, value)}
            alike.setdefault(tuple(given), []).append(tuple(given.values()))
        missing = 0
        for names, values in alike.items():
            keys = self._columns(names)
            done = await FOLDS.of(connection).insert(
                connection, self._table, names=keys, rows=values
            )
            missing += len(values) - done
        return missing

    async def _update(self, connection: AsyncConnection, rows: Sequence[FoldedRow]) -> int:
        """Update rows, in all columns that one of them has changed; return how many are not as
        they were.
        """
        changed: dict[str, None] = {}
        given = []
        for row in rows:
            assert row.stored is not None
            own = self.model.changed(row.values, row.stored.values)
            if own:
                changed.update(dict.fromkeys(own))
                given.append(row)
        if not given:
            return 0
        names, is_marked = sorted(changed), not self.is_cached
        values = [self._row(row, names, is_marked=is_marked) for row in given]
        done = await FOLDS.of(connection).update(
            connection, self._table, names=self._columns(names), rows=values, marked=is_marked
        )
        return len(values) - done

    def _row(self, row: FoldedRow, names: Sequence[str], *, is_marked: bool) -> tuple[Any, ...]:
        assert row.stored is not None
        key = [row.values[name] for name in self.model.keys]
        mark = [row.stored.mark] if is_marked else []
        return (*key, *mark, *(row.values[name] for name in names))

    def _is_set(self, name: str, value: Any) -> bool:
        """Whether a new row gets `value`, or what the model and the database give where nothing is
        set.
        """
        return value is not None or self.model.columns[name].type.should_evaluate_none

    def _columns(self, names: Iterable[str]) -> list[str]:
        columns: Mapping[str, Any] = self.model.columns
        return [columns[name].key for name in names]

    def _mistaken(self, key: tuple[Any, ...]) -> ModelError:
        columns = ", ".join(self.model.keys)
        msg = (
            f"{self.model.name} cannot be folded into: the database has found the row {key!r:.100}"
            f" by another key, so two keys are one row there; give {columns} a type and a collation"
            " that tell them apart"
        )
        return ModelError(msg, model=self.model.name)
