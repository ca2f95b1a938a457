"""The census: exact counts of what waits, made in the background by one replica of all.

The one idea: a scan ends after `SCAN_MAX` at the latest, and is followed by a rest that is
`REST_FACTOR` times as long as it took. So a census takes at most a fiftieth of one connection,
however large the tables are; and every number has its age.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import Table
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from rowlock.clock import monotonic, sleep
from rowlock.containment import without_exits
from rowlock.database.transaction import in_transaction
from rowlock.errors import describe
from rowlock.insight.counting.exact import (
    ExactCounts,
    counts_here,
    exact_counts,
    running_replicas,
)
from rowlock.insight.dialects.insight_dialect import INSIGHT
from rowlock.logs import get_logger
from rowlock.pipelines.fetching.claim_builder import claim_parts
from rowlock.pipelines.host_code.hooks import ready_condition
from rowlock.pipelines.manager import PipelineManager
from rowlock.pipelines.pipeline import Pipeline
from rowlock.rows.lock_tokens import replica_mark

logger = get_logger(__name__)

SCAN_MAX: Final = timedelta(seconds=5)
"""Longest time for the scan of one table."""
REST_FACTOR: Final = 50
"""The rest behind a scan is so many times as long as the scan."""
REST_S_MIN: Final = 15.0
"""Shortest rest between two rounds over all pipelines, in seconds."""
COUNTED_MAX: Final = 200
"""Most pipelines that are counted."""


@dataclass(frozen=True, slots=True)
class CensusCounts:
    """The census of one pipeline.

    Attributes:
        at: when it was made, on the monotonic clock, in seconds.
        counts: what was counted.
        replicas: how many live replicas run the pipeline; None without the table of replicas.
    """

    at: float
    counts: ExactCounts
    replicas: int | None

    @property
    def age_s(self) -> float:
        """How old it is, in seconds."""
        return monotonic() - self.at


class Census:
    """Counts again and again while it is `run`, if it is this replica's part.

    Args:
        managers: whose pipelines are counted.
        replicas: the optional table; without it every replica counts.
    """

    def __init__(self, managers: tuple[PipelineManager, ...], replicas: Table | None) -> None:
        self._managers, self._replicas = managers, replicas
        self._counted: dict[str, CensusCounts] = {}
        self._failing: set[str] = set()

    @property
    def counted(self) -> Mapping[str, CensusCounts]:
        """The last census of each pipeline; empty in a replica that does not count."""
        return self._counted

    async def run(self) -> None:
        """Count, rest, and count again, until cancelled."""
        while True:
            begun = monotonic()
            await self.count(rests=True)
            await sleep(max(0.0, REST_S_MIN - (monotonic() - begun)))

    async def count(self, *, rests: bool = False) -> None:
        """Count each pipeline once; `rests` has each scan be followed by its rest."""
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
            counted = await without_exits(lambda: self._counted_now(manager, pipeline))
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
