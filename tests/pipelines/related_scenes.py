"""Scenes with related rows: a volume's pipeline that locks the volume's attachments."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import ColumnElement

from rowlock import Apply, PipelineItem
from rowlock.testing import Steps, TemporaryDatabase, stepping

from ..host import Attachment, AttachmentPipeline, RecordingPipeline, Volume
from .scenes import add, read, read_all

ATTACHMENTS = 3
"""How many attachments a volume has here."""


class GatheringPipeline(RecordingPipeline):
    """Locks all attachments of a volume, then answers.

    Attributes:
        locked: what `lock_related` returned, call by call.
    """

    model = Volume
    locks = (Attachment,)
    shared = False

    def __init__(self, *, then: Any = None, **settings: Any) -> None:
        """Take what follows the locking: an outcome, an exception, or a function of the item and
        the locked rows.
        """
        super().__init__(answer=self._gather, **settings)
        self.then = then
        self.locked: list[list[Attachment]] = []

    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "submitted"

    async def _gather(self, item: PipelineItem[Any]) -> Any:
        rows = await item.lock_related(
            Attachment, Attachment.volume_id == item.id, shared=self.shared
        )
        self.locked.append(rows)
        answer = self.then(item, rows) if callable(self.then) else self.then
        return await answer if hasattr(answer, "__await__") else answer


class SharingPipeline(GatheringPipeline):
    """As `GatheringPipeline`, for rows that many volumes may want."""

    shared = True


def write_all(item: PipelineItem[Any], rows: list[Attachment]) -> Apply:
    return Apply({"status": "active"}, related={row: {"status": "gathered"} for row in rows})


async def add_volume(
    database: TemporaryDatabase, *, attachments: int = ATTACHMENTS, **values: Any
) -> Volume:
    [volume] = await add(database, Volume(**values))
    await add(
        database,
        *(Attachment(volume_id=volume.id, name=str(number)) for number in range(attachments)),
    )
    return volume


async def attachments_of(database: TemporaryDatabase) -> list[Attachment]:
    return sorted(await read_all(database, Attachment), key=lambda row: row.name)


async def locks_of(database: TemporaryDatabase) -> dict[str, tuple[Any, Any, Any]]:
    """Return the lock columns of every attachment, and of every volume, that has one that is not
    null.
    """
    rows = [*await read_all(database, Volume), *await read_all(database, Attachment)]
    locks = {
        f"{type(row).__name__} {getattr(row, 'name', '')}": (
            row.lock_token,
            row.lock_owner,
            row.lock_expires_at,
        )
        for row in rows
    }
    return {
        name: columns
        for name, columns in locks.items()
        if any(column is not None for column in columns)
    }


@asynccontextmanager
async def at_work(
    database: TemporaryDatabase, pipeline: GatheringPipeline, *, attachments: int = ATTACHMENTS
) -> AsyncIterator[tuple[Steps[Any], Volume]]:
    """Give the steps of a pipeline that has claimed one volume with attachments."""
    volume = await add_volume(database, attachments=attachments)
    async with stepping(database.session_factory, pipeline, beside=[AttachmentPipeline()]) as steps:
        assert len(await steps.fetch_once()) == 1
        yield steps, await read(database, volume)
