"""What one item holds of other tables: the related rows that were locked under its token.

Two sets, since a COMMIT may be lost: what is known to be held, on which a result may rest, and what
may be held, which is freed whatever became of it.

Written by the host's loop and read by heartbeats in another thread: what they read is replaced,
never changed in place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Column, inspect
from sqlalchemy.orm import InstanceState

from rowlock.errors import OutcomeError
from rowlock.leases.acquire import Acquired
from rowlock.rows.instances import changed_attributes
from rowlock.rows.leased_table import LeasedTable
from rowlock.rows.updates import Values, columns_written

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class HeldRows:
    """Related rows of one item, by table.

    Attributes:
        lock: held while rows are being locked: one call at a time, and none while the item is
            settled.
        rows: as they were given to the host.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    rows: list[Any] = field(default_factory=list)
    _tables: dict[type, LeasedTable] = field(default_factory=dict)
    _known: dict[type, dict[Any, None]] = field(default_factory=dict)
    _perhaps: dict[type, dict[Any, None]] = field(default_factory=dict)
    _reset_by: dict[type, dict[Any, str]] = field(default_factory=dict)
    _as_read: dict[type, dict[Any, dict[Column[Any], Any]]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self._perhaps.values()))

    def __repr__(self) -> str:
        held = ", ".join(f"{len(keys)} of {model.__name__}" for model, keys in self._known.items())
        return f"<HeldRows {held or 'none'}>"

    def count_with(self, leased: LeasedTable, acquired: Acquired) -> int:
        """Return how many rows there would be with those of `acquired`, some of which may be
        here already.
        """
        return len(self) + len(set(acquired.keys) - self._perhaps.get(leased.model, {}).keys())

    def may_hold(self, leased: LeasedTable, acquired: Acquired) -> None:
        """Note rows before the transaction that locks them is committed."""
        self._tables = self._tables | {leased.model: leased}
        self._reset_by = _added(self._reset_by, leased.model, acquired.reset_by)
        self._perhaps = _added(self._perhaps, leased.model, dict.fromkeys(acquired.keys))

    def holds(self, leased: LeasedTable, as_read: dict[Any, dict[Column[Any], Any]]) -> None:
        """Note rows once they are locked for certain, with those values that must still be there
        when they are written.
        """
        self._known = _added(self._known, leased.model, dict.fromkeys(as_read))
        self._as_read.setdefault(leased.model, {}).update(as_read)

    def as_read(self, leased: LeasedTable, key: object) -> dict[Column[Any], Any]:
        """Return what a service must not have changed since the row was locked."""
        return self._as_read[leased.model][key]

    def find(self, named: object) -> tuple[LeasedTable, Any]:
        """Return table and key of a row that is held, named by itself or by a pair of its model and
        key.

        Raises:
            OutcomeError: it is no row, or not held.
        """
        match named:
            case (type() as model, key):
                pass
            case _:
                state = inspect(named, raiseerr=False)
                if not isinstance(state, InstanceState) or state.identity is None:
                    raise OutcomeError(
                        "related names rows as lock_related() returned them, or pairs (Model,"
                        f" key), not {named!r:.100}"
                    )
                model, key = type(named), state.identity[0]
        for held_model, leased in self._tables.items():
            if issubclass(model, held_model) and key in self._known.get(held_model, ()):
                return leased, key
        raise OutcomeError(
            f"{model.__name__} {key} is not locked by this item; lock it with item.lock_related()"
            " first"
        )

    def unwritten(self, related: Mapping[Any, Values]) -> list[str]:
        """Return which attributes of `rows` were changed that an outcome with these `related` maps
        does not write.

        Raises:
            OutcomeError: `related` names what is not held.
        """
        changed = [(row, names) for row in self.rows if (names := changed_attributes(row))]
        if not changed:
            return []
        written = {
            (leased.model, key): columns_written(leased, values)
            for (leased, key), values in ((self.find(row), each) for row, each in related.items())
        }
        return [
            f"{leased.name}.{name}"
            for row, names in changed
            for leased, key in [self.find(row)]
            for name in names
            if leased.columns_by_name.get(name) not in written.get((leased.model, key), ())
        ]

    def is_known(self, leased: LeasedTable, key: object) -> bool:
        """Whether a row is known to be held."""
        return key in self._known.get(leased.model, ())

    def known(self) -> Iterator[tuple[LeasedTable, tuple[Any, ...]]]:
        """Give each table with the keys that are held."""
        return ((self._tables[model], tuple(keys)) for model, keys in self._known.items() if keys)

    def perhaps(self) -> Iterator[tuple[LeasedTable, Acquired]]:
        """Give each table with the rows that may be held."""
        return (
            (self._tables[model], Acquired(tuple(keys), self._reset_by.get(model, {})))
            for model, keys in self._perhaps.items()
            if keys
        )


def _added(
    tables: dict[type, dict[Any, T]], model: type, more: dict[Any, T]
) -> dict[type, dict[Any, T]]:
    return tables | {model: tables.get(model, {}) | more}
