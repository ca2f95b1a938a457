"""One replica dies in the middle of its work and another one finishes it; then a result comes too
late.

The one idea: execution is at least once, so whatever `process` does outside of the row must be safe
to do again. Here the row's id is the disk's idempotency key: the second replica is told that the
first one died (`prev_lock_expired`), asks under the same key and gets the disk that is there. And
where a service changed its mind meanwhile, nothing is applied and `on_stale` cleans up.

Run it: ``python examples/04_two_replicas_and_a_crash.py``. The first replica is a process of its
own, which kills itself. It ends by itself and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Outcome, Pipeline, PipelineItem, PipelineManager

POLL_S = 0.02
WAIT_S_MAX = 20.0
KILLED = 9
Sessions = async_sessionmaker[AsyncSession]
Meanwhile = Callable[[Sessions, uuid.UUID], Awaitable[None]]
"""What happens between the disk's creation and the row's update: this example's bad luck."""


class Base(DeclarativeBase):
    """The host's mapped classes."""


class Volume(LockColumns, Base):
    """A volume as the host knows it."""

    __tablename__ = "volumes"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    status: Mapped[str] = mapped_column(default="submitted")
    disk_id: Mapped[str | None]


class Cloud:
    """Stands in for a cloud that both replicas see: each disk is a file, named by its
    idempotency key.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def create_disk(self, *, idempotency_key: str) -> str:
        """Return the disk of that key, which is created unless it is there."""
        disk = self.folder / f"{idempotency_key}.disk"
        disk.touch(exist_ok=True)
        return disk.stem

    async def delete_disk(self, *, idempotency_key: str) -> None:
        """Delete the disk of that key if it is there."""
        (self.folder / f"{idempotency_key}.disk").unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(list(self.folder.glob("*.disk")))


class VolumePipeline(Pipeline[Volume]):
    """Gives each submitted volume a disk."""

    model = Volume
    lock_timeout = 1  # short, so that this example is; the default is 30 s
    heartbeat_trigger = 0.5
    fetch_delays = (0.1,)

    def __init__(self, sessions: Sessions, cloud: Cloud, *, meanwhile: Meanwhile) -> None:
        super().__init__()
        self.sessions = sessions
        self.cloud = cloud
        self.meanwhile = meanwhile
        self.settled = asyncio.Event()

    def ready(self) -> ColumnElement[bool]:
        """Submitted volumes want work."""
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Volume]) -> Outcome:
        """Create the disk, or find the one of an earlier attempt."""
        if item.prev_lock_expired:
            print(f"the previous holder died; disks that may be its own: {len(self.cloud)}")
        disk_id = await self.cloud.create_disk(idempotency_key=str(item.id))
        await self.meanwhile(self.sessions, item.id)
        # If a service changed the status meanwhile, this result rests on what is no longer true.
        return Apply({"status": "active", "disk_id": disk_id}, unless_changed=[Volume.status])

    async def on_stale(self, item: PipelineItem[Volume], outcome: Outcome) -> None:
        """Delete the disk if nobody wants it any more; otherwise leave it, since the next
        attempt will find it.
        """
        async with self.sessions() as session:
            volume = await session.get(Volume, item.id)
        if volume is None or volume.status == "cancelled":
            await self.cloud.delete_disk(idempotency_key=str(item.id))
            print("a result came too late: its disk was deleted")
        self.settled.set()


async def power_cut(sessions: Sessions, volume_id: uuid.UUID) -> None:
    """End this process at once, as ``kill -9`` does: nothing is released, closed or written."""
    print("first replica: disk created, and now the power fails", flush=True)
    os._exit(KILLED)


async def nothing(sessions: Sessions, volume_id: uuid.UUID) -> None:
    """Let all go well."""


async def cancellation(sessions: Sessions, volume_id: uuid.UUID) -> None:
    """Let a service cancel the volume. It need not ask whether the row is leased."""
    async with sessions.begin() as session:
        (await session.get_one(Volume, volume_id)).status = "cancelled"


async def add_volume(sessions: Sessions) -> uuid.UUID:
    """Submit a volume and return its id."""
    async with sessions.begin() as session:
        volume = Volume(id=uuid.uuid4())
        session.add(volume)
    return volume.id  # no hint: a fetch finds it within a tenth of a second


async def read_volume(sessions: Sessions, volume_id: uuid.UUID) -> Volume:
    """Return the volume as it is now."""
    async with sessions() as session:
        return await session.get_one(Volume, volume_id)


async def wait_until_active(sessions: Sessions, volume_id: uuid.UUID) -> None:
    """Return once the volume is active."""
    while True:
        if (await read_volume(sessions, volume_id)).status == "active":
            return
        await asyncio.sleep(POLL_S)


async def first_replica(sessions: Sessions, cloud: Cloud) -> None:
    """Work until the power fails."""
    async with PipelineManager(sessions, [VolumePipeline(sessions, cloud, meanwhile=power_cut)]):
        await asyncio.sleep(WAIT_S_MAX)


async def recovery(sessions: Sessions, cloud: Cloud, folder: Path) -> None:
    """Have a replica die with a lease in hand, and another one take over when the lease has run
    out.
    """
    volume_id = await add_volume(sessions)
    first = await asyncio.create_subprocess_exec(sys.executable, __file__, str(folder))
    print(f"first replica: ended with exit code {await asyncio.wait_for(first.wait(), WAIT_S_MAX)}")
    left = await read_volume(sessions, volume_id)
    print(f"the row: {left.status}, {'still leased' if left.lock_token else 'free'}")

    async with PipelineManager(sessions, [VolumePipeline(sessions, cloud, meanwhile=nothing)]):
        await wait_until_active(sessions, volume_id)
    print(f"second replica: volume active, disks {len(cloud)}")


async def late_result(sessions: Sessions, cloud: Cloud) -> None:
    """Have a service cancel a volume while its disk is being created."""
    pipeline = VolumePipeline(sessions, cloud, meanwhile=cancellation)
    async with PipelineManager(sessions, [pipeline]):
        volume_id = await add_volume(sessions)
        await pipeline.settled.wait()
    print(f"the row: {(await read_volume(sessions, volume_id)).status}, disks {len(cloud)}")


async def main(folder: Path, *, is_first_replica: bool) -> None:
    """Tell the story, or be the replica that dies in it."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'app.db'}")
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    cloud = Cloud(folder)
    async with asyncio.timeout(WAIT_S_MAX):
        if is_first_replica:
            await first_replica(sessions, cloud)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        await recovery(sessions, cloud, folder)
        await late_result(sessions, cloud)
    await engine.dispose()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(Path(sys.argv[1]), is_first_replica=True))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            asyncio.run(main(Path(temporary), is_first_replica=False))
