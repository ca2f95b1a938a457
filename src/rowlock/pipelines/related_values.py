"""What an outcome says of related rows: which ones, and what to write to them.

A row is named by itself, as `lock_related` returned it, or by a pair of its model and key where instances cannot be keys of a dict.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from rowlock.errors import OutcomeError
from rowlock.leases.item import PipelineItem
from rowlock.rows.assignments import split
from rowlock.rows.updates import Values, column_values

RELATED_KINDS_MAX = 100
"""Most kinds of update maps in `related` of one outcome: of one kind are those that name the same columns, and whose expressions of
SQL differ in bound values alone. Each needs a statement at least, and the most rows that an item may hold, written a hundred at a
time, as many again: both together take half of the default `database_timeout` where a round trip takes 25 ms."""


def related_items(related: object) -> Iterable[tuple[Any, Values]]:
    """Return pairs of a row and its update map.

    Raises:
        OutcomeError: `related` is something else than a dict.
    """
    if type(related) is not dict and not isinstance(related, Mapping):
        raise OutcomeError(f"related must be a dict of locked rows and values, not {type(related).__name__}")
    return related.items()


def check_related(item: PipelineItem[Any], related: object) -> None:
    """Refuse what cannot be written to the related rows of `item`, before any transaction is opened.

    Raises:
        OutcomeError: says which row or value, and what to change.
    """
    seen: set[tuple[type, Any]] = set()
    kinds: set[Hashable] = set()
    for named, values in related_items(related):
        leased, key = item.held_rows().find(named)
        written = column_values(leased, values)
        kinds.add((leased.model, split(written)[0]))
        if len(kinds) > RELATED_KINDS_MAX:
            raise OutcomeError(
                f"related writes more than {RELATED_KINDS_MAX} kinds of values, each of which costs a statement; name the same "
                "columns for all rows, and write values, or SQL expressions that differ in bound values alone"
            )
        if (leased.model, key) in seen:
            raise OutcomeError(f"{leased.name} {key} is in related twice")
        seen.add((leased.model, key))
