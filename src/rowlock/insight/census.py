"""The census: exact counts of what waits, by a scan of each whole table, made in the background by
one replica of all.

The one idea: a scan costs as much as the table is large, so the live replica with the lowest mark
among the willing ones makes it. It ends after `SCAN_MAX` at the latest, and is followed by a rest
that is `REST_FACTOR` times as long as it took. So a census takes at most a fiftieth of one
connection, however large the tables are; and every number has its age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, and_, case, false, func, null, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock import Pipeline, PipelineManager, database_now
from rowlock.clock import monotonic, sleep
from rowlock.errors import describe
from rowlock.insight.dialects.insight_dialect import INSIGHT
from rowlock.insight.replicas import DEAD_AFTER, read_replicas
from rowlock.logs import get_logger
from rowlock.spi import (
    EligibleParts,
    LeasedTable,
    claim_parts,
    database_time_after,
    in_transaction,
    order_column,
    ready_condition,
    replica_mark,
    with_zone,
)

WILLING = "census"
"""In the report of a replica that counts, if its turn to do so comes."""


@dataclass(frozen=True, slots=True)
class ExactCounts:
    """What a pipeline has waiting.

    Attributes:
        oldest_s: for how long the first of them has been due; 0 if there is none, None if the model
            has no ``due_at``.
        parked: rows that were set aside; None if the model has no ``parked_at``.
    """

    due: int
    oldest_s: float | None
    resting: int
    ended: int
    parked: int | None


async def counts_here(connection: AsyncConnection, replicas: Table, mark: str) -> bool:
    columns = replicas.c
    lowest = select(func.min(columns.mark)).where(
        columns.seen_at > database_time_after(-DEAD_AFTER),
        columns.draining == false(),
        columns.report[WILLING].as_boolean(),
    )
    return bool((await connection.execute(lowest)).scalar() == mark)


async def running_replicas(connection: AsyncConnection, replicas: Table) -> Counter[str]:
    """Count the live replicas that run each pipeline; registered alone does not count."""
    known = await read_replicas(connection, replicas)
    return Counter(
        pipeline for one in known.live for pipeline in one.pipelines if one.runs(pipeline)
    )


async def exact_counts(
    connection: AsyncConnection, leased: LeasedTable, parts: EligibleParts
) -> ExactCounts:
    """Count by one scan of the table."""
    has_parked = leased.has_schedule
    waits = and_(parts.ready, parts.free)
    is_parked: ColumnElement[bool] = (
        leased.attribute("parked_at").is_not(None) if has_parked else false()
    )
    has_ended = and_(parts.ready, leased.attribute("lock_expires_at") <= database_now())
    due = and_(waits, parts.due)
    oldest: Any = null()
    if leased.has_schedule:
        oldest = func.min(case((due, order_column(leased))), type_=order_column(leased).type)
    statement = select(
        database_now(),
        _number_of(due),
        _number_of(and_(waits, ~parts.due, ~is_parked)),
        _number_of(has_ended),
        _number_of(is_parked),
        oldest,
    ).select_from(leased.model)
    at, *numbers, first = (await connection.execute(statement)).one()
    first = with_zone(first, leased.column(order_column(leased).key))
    counted = [int(number) for number in numbers]
    oldest_s = None
    if leased.has_schedule:
        oldest_s = 0.0 if first is None else max(0.0, (at - first).total_seconds())
    return ExactCounts(
        counted[0], oldest_s, counted[1], counted[2], counted[3] if has_parked else None
    )


def _number_of(condition: ColumnElement[bool]) -> Any:
    return func.coalesce(func.sum(case((condition, 1), else_=0)), 0)


logger = get_logger(__name__)

SCAN_MAX: Final = timedelta(seconds=5)
REST_FACTOR: Final = 50
"""The rest behind a scan is so many times as long as the scan."""
REST_S_MIN: Final = 15.0
"""Shortest rest between two rounds over all pipelines, in seconds."""
COUNTED_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class CensusCounts:
    """The census of one pipeline, made `at` a time of the monotonic clock; `replicas` that
    run it.
    """

    at: float
    counts: ExactCounts
    replicas: int | None

    @property
    def age_s(self) -> float:
        return monotonic() - self.at


class Census:
    """Counts again and again during `run`; with a table of replicas, only in one of them."""

    def __init__(self, managers: tuple[PipelineManager, ...], replicas: Table | None) -> None:
        self._managers, self._replicas = managers, replicas
        self._counted: dict[str, CensusCounts] = {}
        self._failing: set[str] = set()

    @property
    def counted(self) -> Mapping[str, CensusCounts]:
        """The last census of each pipeline; empty in a replica that does not count."""
        return self._counted

    async def run(self) -> None:
        while True:
            begun = monotonic()
            await self.count(rests=True)
            await sleep(max(0.0, REST_S_MIN - (monotonic() - begun)))

    async def count(self, *, rests: bool = False) -> None:
        """Count each pipeline once; `rests` adds a rest after each scan."""
        for manager, pipeline in self._pipelines():
            begun = monotonic()
            await self._count(manager, pipeline)
            if rests:
                await sleep(REST_FACTOR * (monotonic() - begun))

    def _pipelines(self) -> list[tuple[PipelineManager, Pipeline[Any]]]:
        every = [(manager, one) for manager in self._managers for one in manager.pipelines]
        return every[:COUNTED_MAX]

    async def _count(self, manager: PipelineManager, pipeline: Pipeline[Any]) -> None:
        name = pipeline.name
        try:
            counted = await self._counted_now(manager, pipeline)
        # Of the host's `ready` and database, whatever it is: it costs this census, and no row.
        except Exception as error:  # noqa: BLE001
            if name not in self._failing:
                self._failing.add(name)
                logger.warning(
                    "The census of %s failed (told once; no row is harmed): %s",
                    name,
                    describe(error, chars_max=300),
                    extra={"pipeline": name},
                )
            return
        self._failing.discard(name)
        if counted is None:
            self._counted.pop(name, None)
        else:
            self._counted[name] = counted

    async def _counted_now(
        self, manager: PipelineManager, pipeline: Pipeline[Any]
    ) -> CensusCounts | None:
        leased, replicas, mark = pipeline.leased, self._replicas, replica_mark()
        ready = ready_condition(pipeline.name, leased, pipeline)
        parts = claim_parts(pipeline, ready=ready, locking_pipelines=(), gates=())

        async def work(session: AsyncSession, connection: AsyncConnection) -> CensusCounts | None:
            await INSIGHT.of(connection).begin_reading(connection, statement_timeout=SCAN_MAX)
            running: Counter[str] | None = None
            if replicas is not None:
                if not await counts_here(connection, replicas, mark):
                    return None
                running = await running_replicas(connection, replicas)
            counts = await exact_counts(connection, leased, parts)
            live = None if running is None else running[pipeline.name]
            return CensusCounts(monotonic(), counts, live)

        return await in_transaction(
            manager.session_factory,
            leased,
            work,
            purpose="count what waits",
            timeout=SCAN_MAX,
            writes=False,
        )
