"""The first row: a table, a pipeline, a service, and a host that runs them.

The one idea: the row itself is the job. This is the program of the README, with types and start-up.

Run it: ``python examples/00_first_row.py``. It ends by itself and leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import Apply, LockColumns, Pipeline, PipelineItem, PipelineManager, pipeline_hinter

POLL_S = 0.02
"""How often `read_when_active` looks at the row. **Unit** seconds."""
WAIT_S_MAX = 20.0
"""How long it looks. **Unit** seconds."""


class Base(DeclarativeBase):
    """The host's mapped classes."""


class Volume(LockColumns, Base):
    """The host's own table; `LockColumns` adds the four columns of the lease."""

    __tablename__ = "volumes"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="submitted")
    disk_id: Mapped[str | None]


class VolumePipeline(Pipeline[Volume]):
    """Gives each submitted volume a disk."""

    model = Volume

    def ready(self) -> ColumnElement[bool]:
        """Submitted volumes want work."""
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Volume]) -> Apply:
        """Create the disk, with no transaction open, and return the values to write."""
        disk_id = await create_disk(idempotency_key=str(item.id))
        return Apply({"status": "active", "disk_id": disk_id})


async def create_disk(*, idempotency_key: str) -> str:
    """Stand in for a cloud: slow, and outside of the database."""
    await asyncio.sleep(0.1)
    return f"disk-{idempotency_key}"


async def create_volume(session: AsyncSession) -> int:
    """Add a volume, as a request handler does: commit first, then hint."""
    volume = Volume()
    session.add(volume)
    await session.commit()
    pipeline_hinter.hint_fetch(Volume)
    return volume.id


async def main(folder: Path) -> None:
    """Run a host until its one volume is active."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'app.db'}")  # or PostgreSQL
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    async with PipelineManager(sessions, [VolumePipeline()]):
        async with sessions() as session:
            volume_id = await create_volume(session)
        print(f"volume {volume_id} is submitted")
        async with asyncio.timeout(WAIT_S_MAX):
            print(await read_when_active(sessions, volume_id))
    await engine.dispose()


async def read_when_active(sessions: async_sessionmaker[AsyncSession], volume_id: int) -> str:
    """Return a line about the volume once it is active."""
    while True:
        async with sessions() as session:
            volume = await session.get_one(Volume, volume_id)
        if volume.status == "active":
            return f"volume {volume.id} is active, with {volume.disk_id}"
        await asyncio.sleep(POLL_S)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
