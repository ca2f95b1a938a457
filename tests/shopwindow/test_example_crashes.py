"""What the examples do outside of the database is the same if a replica dies at any moment and
another goes on.
"""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path
from typing import Any

from rowlock.testing import TemporaryDatabase, crash_everywhere

from .example_modules import example


async def test_one_disk_for_each_volume(database_with_clock: TemporaryDatabase) -> None:
    """Example 5 would be copied, and with it a pipeline that creates a disk too many."""
    module = example(5)
    await database_with_clock.create_tables(module.Base.metadata)
    await crash_everywhere(
        database_with_clock,
        row=module.Volume,
        world=module.Cloud,
        build=module.VolumePipeline,
        effects=lambda cloud: cloud.disks,
    )


async def test_one_file_for_each_volume(
    database_with_clock: TemporaryDatabase, tmp_path: Path
) -> None:
    """Example 4 shows one crash; it would not survive the others."""
    module, numbers = example(4), itertools.count()

    def cloud() -> Any:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return module.Cloud(folder)

    async def nothing(sessions: Any, volume_id: uuid.UUID) -> None:
        return

    await database_with_clock.create_tables(module.Base.metadata)
    await crash_everywhere(
        database_with_clock,
        row=module.Volume,
        world=cloud,
        build=lambda world: module.VolumePipeline(
            database_with_clock.session_factory, world, meanwhile=nothing
        ),
        effects=lambda world: sorted(disk.name for disk in world.folder.glob("*.disk")),
    )
