"""Which pipeline locks whose rows: declared by `locks` on the class.

A row is not claimed by its own pipeline while a row of a pipeline that locks it waits for it, so
that busy children do not starve their parent. And pipelines that lock each other's rows in a circle
are refused before anything starts, since each may wait for the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

from sqlalchemy import Column, ColumnElement, ColumnExpressionArgument

from rowlock.errors import LockCycleError, ModelError
from rowlock.pipelines.attempt import as_condition, ready_condition
from rowlock.rows.eligibility import LockingPipeline
from rowlock.rows.leased_table import LeasedTable, relation_between


@dataclass(frozen=True, slots=True, eq=False)
class Related:
    """A model of which a pipeline locks rows, and how they belong to its own.

    Attributes:
        model: the related model.
        on: which related rows belong to a main row, such as ``Instance.fleet_id == Fleet.id``.
            Needed where there is not exactly one foreign key that says so.
    """

    model: type
    on: ColumnExpressionArgument[bool] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DeclaredLock:
    leased: LeasedTable
    on: ColumnElement[bool] | None


def declared_locks(
    name: str, leased: LeasedTable, locks: Sequence[type | Related]
) -> tuple[DeclaredLock, ...]:
    """Check the `locks` of a pipeline: models that can be leased, related to its own."""
    if not isinstance(locks, list | tuple):
        raise ModelError(
            f"{name}.locks is a list of models, not {locks!r:.100}; put it in brackets",
            model=leased.name,
        )
    declared = []
    for entry in locks:
        related = entry if isinstance(entry, Related) else Related(entry)
        table: LeasedTable = LeasedTable.of(related.model)
        table.check_owner(name)
        if related.on is None:
            on = relation_between(leased, table)
        elif (on := as_condition(related.on)) is None:
            raise ModelError(
                f"{name}.locks: `on` is one SQL expression over {table.name} and {leased.name}, not"
                f" {related.on!r:.100}",
                model=table.name,
            )
        declared.append(DeclaredLock(table, on))
    return tuple(declared)


class LockGraph:
    """The pipelines that run beside each other, and whose rows each of them locks."""

    def __init__(self, pipelines: Iterable[Any] = ()) -> None:
        self.pipelines = list(pipelines)

    def locking_pipelines_of(self, leased: LeasedTable, *, but: str) -> tuple[LockingPipeline, ...]:
        """Return which pipelines lock rows of this model as related ones, except `but`; calls
        `ready` of each. One over the same table is left out: its intent could not be told from the
        row's own state.
        """
        return tuple(
            LockingPipeline(
                pipeline.leased,
                owner=pipeline.name,
                ready=ready_condition(pipeline.name, pipeline.leased, pipeline.ready),
                on=lock.on,
                precedence_timeout=pipeline.settings.orphaned_after,
                precedence_timeout_at_work=pipeline.settings.retry_delay
                + pipeline.settings.lock_timeout,
            )
            for pipeline in self.pipelines
            for lock in pipeline.declared_locks
            if pipeline.name != but
            and _overlap(lock.leased, leased)
            and pipeline.leased.table is not leased.table
        )

    def intent_of(self, leased: LeasedTable) -> tuple[Column[Any], ...]:
        """Return the columns of this model that services own, as its pipelines declare."""
        alike = (one for one in self.pipelines if _overlap(one.leased, leased))
        return tuple(dict.fromkeys(column for one in alike for column in one.intent_columns))

    def check(self) -> None:
        """Raise `LockCycleError` if there is a circle."""
        edges = {
            pipeline.name: [
                other.name
                for other in self.pipelines
                if any(_overlap(lock.leased, other.leased) for lock in pipeline.declared_locks)
            ]
            for pipeline in self.pipelines
        }
        cycle = find_cycle(edges)
        if cycle:
            drawn = " → ".join((*cycle, cycle[0]))
            raise LockCycleError(
                f"pipelines lock each other's rows in a circle: {drawn}; each may wait for the next"
                " for ever. Let one of them do without the lock, for example by a request"
                " (request_update) to the other",
                cycle=cycle,
            )


def _overlap(one: LeasedTable, other: LeasedTable) -> bool:
    """Whether a row can be of both models; models of one table need not overlap."""
    return issubclass(one.model, other.model) or issubclass(other.model, one.model)


def find_cycle(edges: dict[str, list[str]]) -> tuple[str, ...]:
    """Return a circle of the directed graph, in order; empty if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        # Given backwards, and its first node once more at the end.
        return tuple(reversed(error.args[1][1:]))
    return ()
