"""Runs the README's pipeline: ``python first_row.py``, beside its block as a module ``readme``."""

from __future__ import annotations

import asyncio

from my_app import Base
from readme import Volume, VolumePipeline, create_volume
from sqlalchemy import select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from rowlock import PipelineManager

POLL_S = 0.02
WAIT_S_MAX = 240.0


async def main() -> None:
    """Have the README's handler create a volume, and print its disk once it has one."""
    engine = create_async_engine("sqlite+aiosqlite:///app.db")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    sessions = async_sessionmaker(engine)
    async with PipelineManager(sessions, [VolumePipeline()]), asyncio.timeout(WAIT_S_MAX):
        async with sessions() as session:
            await create_volume(session)
        while True:
            async with sessions() as session:
                disks = list(await session.scalars(select(Volume.disk_id)))
            if disks != [None]:
                break
            await asyncio.sleep(POLL_S)
    print(disks)
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
