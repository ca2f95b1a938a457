"""What the three hosts of ``17_metrics_in_fastapi.py`` and its neighbours have in common: a table,
a pipeline, and the optional tables in which a replica says that it lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from sqlalchemy import ColumnElement
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Pipeline, PipelineItem, ScheduleColumns
from rowlock.insight import insight_tables

WAIT_S_MAX = 20.0
POLL_S = 0.02


class Base(DeclarativeBase):
    """The mapped classes of the host."""


class Volume(LockColumns, ScheduleColumns, Base):
    """A volume as the host knows it."""

    __tablename__ = "volumes"

    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")


class VolumePipeline(Pipeline[Volume]):
    """Makes submitted volumes active."""

    model = Volume

    def ready(self) -> ColumnElement[bool]:
        """Submitted volumes want work."""
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Volume]) -> Apply:
        """Ask the cloud, slow and outside of the database."""
        await asyncio.sleep(0.05)
        return Apply({"status": "active"})


TABLES = insight_tables(Base.metadata)  # in the metadata of the host, so its migrations make them

Get = Callable[[str], Awaitable[tuple[int, str]]]
"""Ask the host for a page, and return its status and its text."""


async def look_around(get: Get, paths: Mapping[str, str]) -> None:
    """Be the Prometheus and the orchestrator of a host that has one volume to work on.

    Args:
        get: asks the host.
        paths: of the metrics, and of the two probes.
    """
    metrics = await metrics_of_one_applied(get, paths["metrics"])
    print(f"metrics: {metrics.count('# TYPE rowlock_')} of rowlock, 1 volume applied")
    for probe in ("healthz", "readyz"):
        status, text = await get(paths[probe])
        print(f"{probe}: {status}, {text}")


async def metrics_of_one_applied(get: Get, path: str) -> str:
    """Scrape until the volume is done, as a patient Prometheus does."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            _, metrics = await get(path)
            if has_applied_one(metrics):
                return metrics
            await asyncio.sleep(POLL_S)


def has_applied_one(metrics: str) -> bool:
    """Return whether a scrape says that the one volume is done."""
    outcomes = [line for line in metrics.splitlines() if line.startswith("rowlock_outcomes_total{")]
    return any('outcome="applied"' in line and line.endswith(" 1.0") for line in outcomes)
