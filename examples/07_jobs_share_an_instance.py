"""Jobs are placed on one instance that all of them want, one job at a time, and it is never
overbooked.

The one idea: a decision that rests on a row is taken while that row is locked. With ``shared=True``
the owner in the instance's row names the very job that holds it, so two jobs of one pipeline
exclude each other like strangers; whoever comes second steps back.

Run it: ``python examples/07_jobs_share_an_instance.py``. Its tables are those of
``examples/hosting/tables.py``. It ends by itself and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from hosting.tables import Base, Fleet, Instance, Job
from sqlalchemy import ColumnElement, false, func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from rowlock import (
    Apply,
    Outcome,
    Pipeline,
    PipelineItem,
    PipelineManager,
    Related,
    RelatedLockUnavailable,
    Reset,
)

JOBS = 8
CPUS_PER_JOB = 2
CPUS = 10
POLL_S = 0.05
WAIT_S_MAX = 20.0
Sessions = async_sessionmaker[AsyncSession]


class JobPipeline(Pipeline[Job]):
    """Places each submitted job on an instance with room for it."""

    model = Job
    # No instance is a job's own, so none is kept idle for a job that steps back.
    locks = (Related(Instance, on=false()),)
    workers_num = JOBS
    fetch_delays = (0.05,)
    retry_delay = 0.05  # short, so that this example is; the default is a second

    def __init__(self) -> None:
        super().__init__()
        self.placing = self.placing_max = self.refusals = 0

    def ready(self) -> ColumnElement[bool]:
        """Submitted jobs want a place."""
        return Job.status == "submitted"

    async def process(self, item: PipelineItem[Job]) -> Outcome:
        """Choose an instance, lock it, and look again: what was read before the lock is only a
        hint of where to look.
        """
        async with item.session() as session:
            room = Instance.cpus - Instance.cpus_used
            instance_id = await session.scalar(
                select(Instance.id).where(room >= item.row.cpus).order_by(room).limit(1)
            )
        if instance_id is None:
            return Apply({"status": "no room"})
        try:
            locked = await item.lock_related(Instance, Instance.id == instance_id, shared=True)
        except RelatedLockUnavailable:
            self.refusals += 1
            raise  # becomes Reset()
        return await self.place(item.row, locked[0]) if locked else Reset()

    async def place(self, job: Job, instance: Instance) -> Outcome:
        """Place a job on an instance that is locked for it."""
        if instance.cpus - instance.cpus_used < job.cpus:
            return Reset()  # the room was taken meanwhile
        self.placing += 1
        self.placing_max = max(self.placing_max, self.placing)
        print(f"{job.name}: placed, the instance's owner is {instance.lock_owner}")
        await asyncio.sleep(0.05)  # the instance is told, which takes its time
        self.placing -= 1
        return Apply(
            {"status": "placed", "instance_id": instance.id},
            related={instance: {"cpus_used": instance.cpus_used + job.cpus}},
        )


async def count_jobs(sessions: Sessions) -> dict[str, int]:
    """Return how many jobs there are of each status."""
    async with sessions() as session:
        counted = await session.execute(select(Job.status, func.count()).group_by(Job.status))
        return {row[0]: row[1] for row in counted}


async def wait_until_settled(sessions: Sessions) -> dict[str, int]:
    """Return the counts once no job waits for a place."""
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            counts = await count_jobs(sessions)
            if "submitted" not in counts:
                return counts
            await asyncio.sleep(POLL_S)


async def main(folder: Path) -> None:
    """Run a host in which jobs want more than there is."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'app.db'}")
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with sessions.begin() as session:
        session.add(Fleet(id=1, name="main", status="packed"))
        session.add(Instance(id=1, fleet_id=1, name="a", cpus=CPUS))
        session.add_all(
            Job(name=f"job {number}", cpus=CPUS_PER_JOB) for number in range(1, JOBS + 1)
        )

    pipeline = JobPipeline()
    async with PipelineManager(sessions, [pipeline]):
        counts = await wait_until_settled(sessions)
    print(f"{counts['placed']} jobs placed, {counts['no room']} have no room")
    async with sessions() as session:
        instance = await session.get_one(Instance, 1)
    print(
        f"instance {instance.name}: {instance.cpus_used} of {instance.cpus} cpus used, owner"
        f" {instance.lock_owner}"
    )
    print(
        f"placed at once: {pipeline.placing_max} at most; refused and come back:"
        f" {pipeline.refusals} times"
    )
    await engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
