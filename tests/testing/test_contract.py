"""The tests that a pipeline inherits, for rows that need others."""

from __future__ import annotations

import uuid

import pytest
from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import Apply, Outcome, Pipeline, PipelineItem
from rowlock.testing import PipelineContract, TemporaryDatabase
from tests.host import Attachment, Base, Volume

VOLUME = uuid.UUID(int=7)


class AttachmentPipeline(Pipeline[Attachment]):
    """Attaches what was submitted."""

    model = Attachment

    def ready(self) -> ColumnElement[bool]:
        """Attachments that were submitted."""
        return Attachment.status == "submitted"

    async def process(self, item: PipelineItem[Attachment]) -> Outcome:
        """Attach it."""
        return Apply({"status": "attached"})


class TestRowsWithAForeignKey(PipelineContract[Attachment]):
    """A pipeline whose rows have parents could not be tested on a database that looks after foreign keys."""

    pipeline_class = AttachmentPipeline

    @pytest.fixture
    async def session_factory(self, database: TemporaryDatabase) -> async_sessionmaker[AsyncSession]:
        """Bring the tables."""
        await database.create_tables(Base.metadata)
        return database.session_factory

    async def prepare(self, session: AsyncSession) -> None:
        """Add the parent."""
        session.add(Volume(id=VOLUME))

    def ready_row(self) -> Attachment:
        """Return a row that wants work."""
        return Attachment(volume_id=VOLUME)

    def unready_row(self) -> Attachment:
        """Return a row that wants none."""
        return Attachment(volume_id=VOLUME, status="attached")
