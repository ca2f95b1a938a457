"""The host of the chaos: jobs, and batches that lock the sites that they share; and the world
outside, where work leaves traces.

The one idea: every round of work writes one number more than it has read, so a round that was lost,
or written twice, shows in the numbers; and it leaves a trace in a file of its replica, which no
fault reaches and no transaction takes back.

Not here: what goes wrong (``monkey.py``), and the judge (``verdict.py``).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from sqlalchemy import ColumnElement
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Pipeline, PipelineItem, ScheduleColumns

JOBS, BATCHES, SITES = 200, 40, 60
SITES_PER_BATCH = 2
LOCK_TIMEOUT_S = 3.0
WORK_S = (0.01, 0.15)
ATTEMPTS_MAX = 100
LONG_WORK_S = 3 * LOCK_TIMEOUT_S
"""How long a round takes that must be renewed; one of `LONG_ROUNDS`."""
LONG_ROUNDS = 40
FAILING_ROUNDS = 25
"""One of so many rounds that are not long fails, with this chance each time: one half."""

QUICK: dict[str, Any] = {
    "lock_timeout": LOCK_TIMEOUT_S,
    "heartbeat_trigger": LOCK_TIMEOUT_S / 2,
    "heartbeat_interval": 0.2,
    "renew_timeout": 0.5,
    "database_timeout": 2,
    "min_processing_interval": 0.2,
    "retry_delay": 0.1,
    "retry_delay_max": 1,
    "cancel_grace": 1,
    "max_attempts": ATTEMPTS_MAX,
    "orphaned_after": 3 * LOCK_TIMEOUT_S,
    "fetch_delays": (0.1, 0.3, 0.5),
}


class Base(DeclarativeBase):
    """The tables of the host."""


class Rounds(LockColumns, ScheduleColumns):
    """Rows that want rounds of work.

    Attributes:
        wanted: how many; counted up by services, theirs alone.
        done: how many were applied.
    """

    id: Mapped[int] = mapped_column(primary_key=True)
    wanted: Mapped[int] = mapped_column(default=1)
    done: Mapped[int] = mapped_column(default=0)


class Job(Rounds, Base):
    __tablename__ = "jobs"


class Batch(Rounds, Base):
    __tablename__ = "batches"


class Site(LockColumns, Base):
    """Locked by batches. `touched`: how many rounds of batches were applied to it."""

    __tablename__ = "sites"
    id: Mapped[int] = mapped_column(primary_key=True)
    touched: Mapped[int] = mapped_column(default=0)


WATCHED = {Job: ["wanted", "done"], Batch: ["wanted", "done"], Site: ["touched"]}


def sites_of(batch: int) -> list[int]:
    return sorted(Random(batch).sample(range(1, SITES + 1), SITES_PER_BATCH))


class Traces:
    """What one replica did in the world outside: a line in a file for the begin and the end of
    each round of work.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @contextmanager
    def of(self, item: PipelineItem[Any], table: str, number: int) -> Iterator[None]:
        """Leave a trace of the work in the block, and of how it ended."""
        work = {"table": table, "key": item.id, "round": number, "token": item.lock_token.hex}
        self._leave("begun", work)
        try:
            yield
        except BaseException:
            self._leave("broken off", work)
            raise
        self._leave("done", work)

    def _leave(self, what: str, work: dict[str, Any]) -> None:
        # Of all clocks the one that every process of a machine shares.
        line = {"what": what, "at": time.clock_gettime(time.CLOCK_MONOTONIC), **work}
        os.write(self._file, json.dumps(line).encode() + b"\n")


class Worked(Pipeline[Any]):
    """What both pipelines have: work that takes a while, now and then long, and now and then
    fails.
    """

    table: ClassVar[str]

    def __init__(self, traces: Traces, **settings: Any) -> None:
        super().__init__(**(QUICK | settings))
        self._traces = traces

    async def work(self, item: PipelineItem[Any]) -> int:
        number = item.row.done + 1
        rng = Random(f"{self.table} {item.id} {number}")
        is_long, fails = rng.randrange(LONG_ROUNDS) == 0, rng.randrange(FAILING_ROUNDS) == 0
        with self._traces.of(item, self.table, number):
            await asyncio.sleep(LONG_WORK_S if is_long else rng.uniform(*WORK_S))
            if fails and not is_long and Random().random() < 0.5:
                raise ConnectionError("the world outside did not answer")
        return number


class JobPipeline(Worked):
    model = Job
    table = "jobs"
    workers_num = 8

    def ready(self) -> ColumnElement[bool]:
        return Job.done < Job.wanted

    async def process(self, item: PipelineItem[Job]) -> Apply:
        return Apply({"done": await self.work(item)}, unless_changed=[Job.done])


class BatchPipeline(Worked):
    model = Batch
    table = "batches"
    locks = (Site,)
    workers_num = 6

    def ready(self) -> ColumnElement[bool]:
        return Batch.done < Batch.wanted

    async def process(self, item: PipelineItem[Batch]) -> Apply:
        """Do one round on all sites, or come back for them."""
        sites = await item.lock_related(Site, Site.id.in_(sites_of(item.id)), shared=True)
        number = await self.work(item)
        return Apply(
            {"done": number}, related={site: {"touched": site.touched + 1} for site in sites}
        )
