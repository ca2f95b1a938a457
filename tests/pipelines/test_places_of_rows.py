"""Rows that have no place of their own in the table that a statement names."""

from __future__ import annotations

import pytest
from sqlalchemy import ColumnElement, and_, text

from rowlock import Apply, PipelineManager
from rowlock.testing import TemporaryDatabase

from ..host import Attachment, RecordingPipeline, Run, RunPipeline, Volume
from .blocking import until_so
from .scenes import add, read_all

VIEWS = ["ALTER TABLE runs RENAME TO hidden_runs", "CREATE VIEW runs AS SELECT * FROM hidden_runs"]
PARTITIONS = [
    "ALTER TABLE runs RENAME TO old_runs",
    "CREATE TABLE runs (LIKE old_runs INCLUDING DEFAULTS) PARTITION BY HASH (id)",
    "CREATE TABLE runs_0 PARTITION OF runs FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
    "CREATE TABLE runs_1 PARTITION OF runs FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
]


@pytest.mark.parametrize("changes", [VIEWS, PARTITIONS], ids=["a view", "partitions"])
async def test_rows_of_views_and_partitions_are_each_done_once(
    postgresql_database: TemporaryDatabase, changes: list[str]
) -> None:
    """A view has no places, and each partition has the same ones: claims would fail, or an
    outcome be written to two rows.
    """
    await add(postgresql_database)
    async with postgresql_database.engine.begin() as connection:
        for change in changes:
            await connection.execute(text(change))
    await add(postgresql_database, *(Run(id=number) for number in range(40)))

    pipeline = RunPipeline(answer=lambda item: Apply({"status": f"done {item.id}"}))
    async with PipelineManager(postgresql_database.session_factory, [pipeline]):
        await until_so(lambda: pipeline.statistics().counters["applied"] == 40)
    assert sorted(item.id for item in pipeline.items) == list(range(40))
    rows = await read_all(postgresql_database, Run)
    assert {row.id: row.status for row in rows} == {n: f"done {n}" for n in range(40)}


class AttachedPipeline(RecordingPipeline):
    model = Attachment

    def ready(self) -> ColumnElement[bool]:
        """Attachments of submitted volumes."""
        return and_(Attachment.volume_id == Volume.id, Volume.status == "submitted")


async def test_what_is_ready_may_name_another_table(postgresql_database: TemporaryDatabase) -> None:
    """Rows of both tables have a place: no claim would know which one is meant."""
    [volume] = await add(postgresql_database, Volume())
    await add(postgresql_database, Attachment(volume_id=volume.id))
    pipeline = AttachedPipeline()
    async with PipelineManager(postgresql_database.session_factory, [pipeline]):
        await until_so(lambda: pipeline.statistics().counters["applied"] == 1)
