"""What a run of `crash_everywhere` came to, and how two runs differ.

The one idea: a database holds more than the row in question, and a pipeline may do harm to any of
it. So every row of the host's tables is looked at: that row column by column, the others as wholes,
since it is unknown which of them is which. Keys that are made anew in each run, and foreign keys
that follow them, say nothing, and are not compared.

Not here: the runs themselves (``crash_everywhere``).
"""

from __future__ import annotations

import pprint
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Table, select
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock.spi import LOCK_COLUMNS, LeasedTable, keeps_time

__all__ = ["Rows", "RunResult", "keys_made_anew", "read_rows"]

VALUE_SHOWN_MAX: Final = 500
"""Longest text of a value. **Unit** characters."""

NOT_COMPARED: Final = (*LOCK_COLUMNS, "due_at", "attempts", "last_error")


@dataclass(frozen=True)
class Rows:
    """What the host's tables hold: the row in question (None: gone), and all others by table."""

    row: dict[str, Any] | None
    is_locked: bool
    beside: dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class RunResult:
    """The rows and outside effects of a run, and what went wrong besides, in words."""

    rows: Rows
    effects: Any
    trouble: str | None = None

    def differences(self, other: RunResult, *, anew: Collection[str] = ()) -> Iterator[str]:
        """Yield what differs from `other`; the columns `anew` are not compared."""
        if self.trouble != other.trouble:
            yield self.trouble or f"not: {other.trouble}"
        yield from self.differences_of_rows(other, anew=anew)
        if self.effects != other.effects:
            yield f"effects: {_shown(self.effects)}, not {_shown(other.effects)}"

    def differences_of_rows(self, other: RunResult, *, anew: Collection[str] = ()) -> Iterator[str]:
        ours, theirs = self.rows, other.rows
        if ours.row is None or theirs.row is None:
            if ours.row is not theirs.row:
                yield f"the row {'is gone' if ours.row is None else 'is still there'}"
        else:
            for name, value in theirs.row.items():
                if ours.row[name] != value and name not in anew:
                    yield (
                        f"row.{name.rpartition('.')[-1]}: {_shown(ours.row[name])}, not"
                        f" {_shown(value)}"
                    )
        for table in ours.beside:
            here, there = (
                [_without(anew, row) for row in rows.beside[table]] for rows in (ours, theirs)
            )
            more, less = _not_in(there, here), _not_in(here, there)
            if more or less:
                yield f"rows of {table}: {_shown(more)}, not {_shown(less)}"


async def read_rows(
    session: AsyncSession, leased: LeasedTable, key: object, *, ignore: Collection[str]
) -> Rows:
    """Return the rows of all tables; `ignore` names columns, columns of a table, or tables."""
    ours, row, is_locked = _kept_by_rowlock(leased), None, False
    beside: dict[str, list[dict[str, Any]]] = {}
    for table in leased.table.metadata.sorted_tables:
        columns = [
            column
            for column in table.columns
            if column not in ours and not _names_of(column) & {*ignore}
        ]
        if table is not leased.table and not columns:
            continue
        rows = beside[table.fullname] = []
        for found in (await session.execute(select(table))).mappings():
            values = {
                f"{table.fullname}.{column.name}": _comparable(column, found[column])
                for column in columns
            }
            if table is leased.table and found[leased.key] == key:
                row, is_locked = values, found[leased.column("lock_token")] is not None
            else:
                rows.append(values)
    return Rows(row, is_locked, beside)


def keys_made_anew(first: Rows, second: Rows, tables: Sequence[Table]) -> frozenset[str]:
    """Return the keys, and foreign keys, that differ between two undisturbed runs."""
    return frozenset(
        name
        for table in tables
        for column in table.columns
        if column.primary_key or column.foreign_keys
        for name in [f"{table.fullname}.{column.name}"]
        if _not_in(_values(first, table, name), _values(second, table, name))
    )


def _values(rows: Rows, table: Table, name: str) -> list[Any]:
    found = [*rows.beside.get(table.fullname, ()), *([rows.row] if rows.row is not None else [])]
    return [row[name] for row in found if name in row]


def _kept_by_rowlock(leased: LeasedTable) -> set[Any]:
    # By attribute, since columns may have other names; and only where there are locks: others may
    # count attempts too.
    mappers = [
        mapper for mapper in leased.mapper.registry.mappers if LOCK_COLUMNS[0] in mapper.columns
    ]
    return {
        mapper.columns[name]
        for mapper in mappers
        for name in NOT_COMPARED
        if name in mapper.columns
    }


def _names_of(column: Column[Any]) -> set[str]:
    return {column.name, column.table.fullname, f"{column.table.fullname}.{column.name}"}


def _comparable(column: Column[Any], value: object) -> object:
    return "a time" if value is not None and keeps_time(column.type) else value


def _without(anew: Collection[str], row: dict[str, Any]) -> dict[str, Any]:
    return {name.rpartition(".")[-1]: value for name, value in row.items() if name not in anew}


def _not_in(these: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    """Return which of `others` exceed `these`, by number; they need not be hashable."""
    rest = list(these)
    missing = []
    for one in others:
        if one in rest:
            rest.remove(one)
        else:
            missing.append(one)
    return missing


def _shown(value: object) -> str:
    text = pprint.pformat(value, compact=True, width=VALUE_SHOWN_MAX)
    return text if len(text) <= VALUE_SHOWN_MAX else f"{text[:VALUE_SHOWN_MAX]}..."
