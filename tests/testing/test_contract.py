"""The tests that a pipeline inherits, for rows that need others, and for pipelines that lock
related rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import SkipTest

import pytest
from sqlalchemy import ColumnElement, update
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from rowlock import Apply, Outcome, Pipeline, PipelineItem, RelatedLockUnavailable
from rowlock.testing import PipelineContract, TemporaryDatabase
from tests.host import Attachment, Base, Volume

pytestmark = pytest.mark.either_database

VOLUME = uuid.UUID(int=7)


class AttachmentPipeline(Pipeline[Attachment]):
    model = Attachment

    def ready(self) -> ColumnElement[bool]:
        return Attachment.status == "submitted"

    async def process(self, item: PipelineItem[Attachment]) -> Outcome:
        return Apply({"status": "attached"})


class TestRowsWithAForeignKey(PipelineContract[Attachment]):
    """A pipeline whose rows have parents could not be tested on a database that looks after
    foreign keys.
    """

    pipeline_class = AttachmentPipeline

    @pytest.fixture
    async def session_factory(
        self, database: TemporaryDatabase
    ) -> async_sessionmaker[AsyncSession]:
        await database.create_tables(Base.metadata)
        return database.session_factory

    async def prepare(self, session: AsyncSession) -> None:
        session.add(Volume(id=VOLUME))

    def ready_row(self) -> Attachment:
        return Attachment(volume_id=VOLUME)

    def unready_row(self) -> Attachment:
        return Attachment(volume_id=VOLUME, status="attached")


class VolumePipeline(Pipeline[Volume]):
    model, locks = Volume, (Attachment,)

    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "submitted"

    async def process(self, item: PipelineItem[Volume]) -> Outcome:
        await item.lock_related(Attachment, Attachment.volume_id == item.id)
        return Apply({"status": "active"})


class TestRelatedRows(PipelineContract[Volume]):
    """A pipeline that locks related rows as it should would be refused."""

    pipeline_class = VolumePipeline

    @pytest.fixture
    async def session_factory(
        self, database: TemporaryDatabase
    ) -> async_sessionmaker[AsyncSession]:
        await database.create_tables(Base.metadata)
        return database.session_factory

    def ready_row(self) -> Volume:
        return Volume(id=uuid.uuid4())

    def unready_row(self) -> Volume:
        return Volume(id=uuid.uuid4(), status="active")

    def related_rows(self, row: Volume) -> Sequence[Attachment]:
        return [Attachment(id=uuid.uuid4(), volume_id=row.id, name=name) for name in "ab"]


class Ignoring(VolumePipeline):
    async def process(self, item: PipelineItem[Volume]) -> Outcome:
        try:
            return await super().process(item)
        except RelatedLockUnavailable:
            return Apply({"status": "active"})


class Giving(VolumePipeline):
    """Gives the row up at the first refusal."""

    async def process(self, item: PipelineItem[Volume]) -> Outcome:
        try:
            return await super().process(item)
        except RelatedLockUnavailable:
            return Apply({"status": "failed"})


class Hoarding(VolumePipeline):
    """Takes what it can get, by hand and under a token that nobody will free."""

    async def process(self, item: PipelineItem[Volume]) -> Outcome:
        attachment = update(Attachment).where(
            Attachment.volume_id == item.id, Attachment.lock_token.is_(None)
        )
        async with item.session() as session, session.begin():
            await session.execute(attachment.values(lock_token=uuid.uuid4()))
        return await super().process(item)


class Elsewhere(VolumePipeline):
    async def process(self, item: PipelineItem[Volume]) -> Outcome:
        return Apply({"status": "active"})


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Ignoring, "process went on though somebody held a related row"),
        (Giving, "process went on though somebody held a related row"),
        (Hoarding, "a refusal left rows locked"),
        (Elsewhere, "process went on though somebody held a related row"),
    ],
)
async def test_a_pipeline_that_does_not_step_back_is_found(
    database: TemporaryDatabase, kind: type[Pipeline[Volume]], text: str
) -> None:
    """A pipeline would pass that works without what it needs, keeps half of it, or gives up."""
    await database.create_tables(Base.metadata)
    contract = TestRelatedRows()
    contract.pipeline_class = kind
    with pytest.raises(AssertionError, match=text):
        await contract.test_steps_back_while_somebody_holds_a_related_row(database.session_factory)


async def test_a_pipeline_that_never_comes_back_is_found(database: TemporaryDatabase) -> None:
    """A row that was refused once would be waited for by its customer."""
    await database.create_tables(Base.metadata)

    class Forgetful(VolumePipeline):
        refused = False

        def ready(self) -> ColumnElement[bool]:
            return Volume.size_gb == 0 if self.refused else super().ready()

        async def process(self, item: PipelineItem[Volume]) -> Outcome:
            self.refused = True
            return await super().process(item)

    contract = TestRelatedRows()
    contract.pipeline_class = Forgetful
    with pytest.raises(AssertionError, match="it did not come back"):
        await contract.test_steps_back_while_somebody_holds_a_related_row(database.session_factory)


@contextmanager
def not_skipped() -> Iterator[None]:
    try:
        yield
    except SkipTest:
        pytest.fail("it was skipped")


async def test_related_rows_must_be_named(database: TemporaryDatabase) -> None:
    """A pipeline that declares locks would pass without being tested for them."""

    class Silent(PipelineContract[Volume]):
        pipeline_class = VolumePipeline
        ready_row = TestRelatedRows.ready_row

    await database.create_tables(Base.metadata)
    # A test that is skipped would be no failure of this one.
    with pytest.raises(TypeError, match="override related_rows"), not_skipped():
        await Silent().test_steps_back_while_somebody_holds_a_related_row(database.session_factory)
