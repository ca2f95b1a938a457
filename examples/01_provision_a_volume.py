"""A volume is provisioned: the whole day of a row, from a request to a disk.

The one idea: the volume's own row is the job. A service commits it and hints; the pipeline leases
it, creates the disk with no transaction open, and writes the result under the lease's token.

Run it: ``python examples/01_provision_a_volume.py``. It ends by itself and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from sqlalchemy import ColumnElement, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import (
    NOW_PLACEHOLDER,
    Apply,
    LockColumns,
    Pipeline,
    PipelineItem,
    PipelineManager,
    UtcDateTime,
    pipeline_hinter,
)

POLL_S = 0.02
"""How often `wait_until_active` looks. **Unit** seconds."""
WAIT_S_MAX = 20.0
"""How long it looks. **Unit** seconds."""


class Base(DeclarativeBase):
    """The host's mapped classes."""


class Volume(LockColumns, Base):
    """A volume as the host knows it; `LockColumns` lends it the four columns of the lease."""

    __tablename__ = "volumes"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    name: Mapped[str]
    size_gb: Mapped[int]
    status: Mapped[str] = mapped_column(default="submitted")
    disk_id: Mapped[str | None]
    active_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class VolumePipeline(Pipeline[Volume]):
    """Gives each submitted volume a disk."""

    model = Volume
    workers_num = 4

    def ready(self) -> ColumnElement[bool]:
        """Submitted volumes want work."""
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Volume]) -> Apply:
        """Create the disk; its key makes a second attempt for the same row find the first one's
        disk.
        """
        disk_id = await create_disk(item.row.size_gb, idempotency_key=str(item.id))
        return Apply({"status": "active", "disk_id": disk_id, "active_at": NOW_PLACEHOLDER})


async def create_disk(size_gb: int, *, idempotency_key: str) -> str:
    """Stand in for the cloud: slow, and outside of the database."""
    await asyncio.sleep(0.1)
    return f"disk-{idempotency_key[:8]}-{size_gb}gb"


async def create_volumes(session: AsyncSession, wanted: dict[str, int]) -> None:
    """Add volumes, as a request handler does: commit first, then hint."""
    session.add_all(Volume(name=name, size_gb=size_gb) for name, size_gb in wanted.items())
    await session.commit()
    pipeline_hinter.hint_fetch(Volume)


async def wait_until_active(
    sessions: async_sessionmaker[AsyncSession], names: Iterable[str]
) -> list[Volume]:
    """Return the volumes once all of them are active."""
    statement = select(Volume).where(Volume.name.in_(names)).order_by(Volume.name)
    async with asyncio.timeout(WAIT_S_MAX):
        while True:
            async with sessions() as session:
                volumes = list(await session.scalars(statement))
            if all(volume.status == "active" for volume in volumes):
                return volumes
            await asyncio.sleep(POLL_S)


async def main(folder: Path) -> None:
    """Run a host for as long as its three volumes take."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'app.db'}")
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)

    async with PipelineManager(sessions, [VolumePipeline()]) as manager:
        wanted = {"archive": 500, "home": 20, "scratch": 100}
        async with sessions() as session:
            await create_volumes(session, wanted)
        print(f"{len(wanted)} volumes submitted")

        for volume in await wait_until_active(sessions, wanted):
            held = "still leased" if volume.lock_token else "unlocked"
            print(f"{volume.name:8} {volume.status}, {held}, {volume.disk_id}")
    # A row is seen as soon as it is committed; it is counted a moment later, at the latest when the
    # manager has stopped.
    counters = manager.statistics()["VolumePipeline"].counters
    print(
        f"claimed {counters['claimed']}, applied {counters['applied']}, stale {counters['stale']}"
    )
    await engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
