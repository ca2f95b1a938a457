"""Two pipelines of one model: what one of them leaves is the other's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import ColumnElement, and_, bindparam

from rowlock import Apply, PipelineManager, Related, Reset
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Attachment, RecordingPipeline, Volume, VolumePipeline
from .scenes import add, change, is_free, read, replica


class TerminatingPipeline(RecordingPipeline):
    """Ends volumes that a user has stopped, whatever became of them before."""

    model = Volume

    def ready(self) -> ColumnElement[bool]:
        return Volume.status == "terminating"

    def usual_answer(self, item: Any) -> Any:
        return Apply({"status": "gone"})


@pytest.mark.parametrize("both_here", [True, False], ids=["both here", "the other elsewhere"])
@virtual_time
async def test_a_row_of_a_dead_sibling_is_taken_when_its_lease_has_ended(
    virtual_database: TemporaryDatabase, *, both_here: bool
) -> None:
    """A user stops what a dead replica had begun, and it runs on until a sweep, minutes later."""
    [volume] = await add(virtual_database, Volume())
    run = VolumePipeline().build_run(replica(virtual_database), None)  # type: ignore[arg-type]
    assert await run.fetcher.fetch_once(1) == 1
    await change(virtual_database, volume, status="terminating")
    pipelines = [TerminatingPipeline(), *([VolumePipeline()] if both_here else [])]
    async with PipelineManager(virtual_database.session_factory, pipelines):
        await asyncio.sleep(29)
        assert (await read(virtual_database, volume)).status == "terminating"
        # The longest rest of a fetcher is 6 s.
        await asyncio.sleep(1 + 7)
        assert (await read(virtual_database, volume)).status == "gone"
    assert is_free(await read(virtual_database, volume))


@virtual_time
async def test_a_row_that_a_sibling_elsewhere_has_reset_is_taken_within_seconds(
    virtual_database: TemporaryDatabase,
) -> None:
    """A row waits for a pipeline that nobody runs any more, though another one of its model
    wants it.
    """
    [volume] = await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline(answer=Reset())) as steps:
        await steps.fetch_once()
        await steps.work_once()
    assert (await read(virtual_database, volume)).lock_owner == "VolumePipeline"
    await change(virtual_database, volume, status="terminating")
    async with PipelineManager(
        virtual_database.session_factory, [TerminatingPipeline(min_processing_interval=0)]
    ):
        await asyncio.sleep(7)
        assert (await read(virtual_database, volume)).status == "terminating"
        await asyncio.sleep(0.2 + 7)
        assert (await read(virtual_database, volume)).status == "gone"


@virtual_time
async def test_who_steps_back_comes_back_before_its_sibling(
    virtual_database: TemporaryDatabase,
) -> None:
    """A parent that waits for busy children would lose its row, and its place with it, to
    another pipeline each time.
    """

    class Eager(TerminatingPipeline):
        def ready(self) -> ColumnElement[bool]:
            return Volume.status == "submitted"

    eager = Eager(min_processing_interval=0)
    [volume] = await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline(answer=Reset())) as steps:
        await steps.fetch_once()
        await steps.work_once()
    async with PipelineManager(
        virtual_database.session_factory, [VolumePipeline(answer=Reset()), eager]
    ):
        await asyncio.sleep(120)
        assert (await read(virtual_database, volume)).status == "submitted"
    assert eager.items == []


class NamingVolumes(RecordingPipeline):
    """Locks attachments; binds the state that it wants by a name."""

    model = Volume
    locks = (
        Related(
            Attachment,
            on=and_(Attachment.volume_id == Volume.id, Attachment.name != bindparam("not", "x")),
        ),
    )

    def ready(self) -> ColumnElement[bool]:
        return Volume.status == bindparam("wanted", "packing")


class NamingAttachments(RecordingPipeline):
    model = Attachment

    def ready(self) -> ColumnElement[bool]:
        wanted = Attachment.status == bindparam("wanted", "submitted")
        return and_(wanted, Attachment.name != bindparam("not", "y"))


async def test_parameters_of_one_name_are_each_pipelines_own(database: TemporaryDatabase) -> None:
    """Rows in a state of the other pipeline's would be worked on again and again, and those that
    wait for work never.
    """
    [volume] = await add(database, Volume(status="idle"))
    wanted, *_ = await add(
        database,
        Attachment(volume_id=volume.id, name="x", status="submitted"),
        Attachment(volume_id=volume.id, name="packed", status="packing"),
        Attachment(volume_id=volume.id, name="y", status="submitted"),
    )
    async with stepping(
        database.session_factory, NamingAttachments(), beside=[NamingVolumes()]
    ) as steps:
        assert [item.id for item in await steps.fetch_once()] == [wanted.id]
