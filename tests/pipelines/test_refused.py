"""Outcomes that the database refuses: the pipeline says what comes of them."""

from __future__ import annotations

from typing import Any

import pytest

from rowlock import Apply, Outcome, PipelineItem, Retry
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Attachment, Volume, VolumePipeline
from .scenes import add, is_free, read

pytestmark = pytest.mark.either_database


class Judging(VolumePipeline):
    """Has a result refused, and says what comes of it.

    Attributes:
        says: the answer, or what is raised instead.
    """

    says: Any = Apply({"status": "failed"})

    def on_refused(self, item: PipelineItem[Volume], error: Exception) -> Outcome:
        assert "NOT NULL" in str(error).upper() or "not-null" in str(error)
        if isinstance(self.says, BaseException):
            raise self.says
        return self.says  # type: ignore[no-any-return]


async def refused(database: TemporaryDatabase, pipeline: VolumePipeline) -> tuple[Volume, Any]:
    """Have an outcome refused; return the row, and what was counted."""
    [volume] = await add(database, Volume())
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_once()
        return await read(database, volume), steps.run.context.counters


async def test_by_default_it_is_a_failed_attempt(database: TemporaryDatabase) -> None:
    """A row whose result cannot be written would be gone, or stay leased."""
    row, counters = await refused(database, VolumePipeline(answer=Apply({"status": None})))
    assert (row.status, is_free(row), counters.retried, counters.applied) == (
        "submitted",
        True,
        1,
        0,
    )


async def test_the_pipeline_may_say_what_comes_of_it(database: TemporaryDatabase) -> None:
    """Work of hours would be done again, only to be refused again."""
    row, counters = await refused(database, Judging(answer=Apply({"status": None})))
    assert (row.status, is_free(row), counters.retried, counters.applied) == ("failed", True, 0, 1)


@pytest.mark.parametrize(
    "says",
    [
        ValueError("a slip"),
        "nonsense",
        Apply({"no_such_column": 1}),
        Apply({"status": "failed"}, related={(Attachment, 1): {"status": "failed"}}),
        Apply({"status": None}),
    ],
    ids=["raises", "none", "unknown column", "related row that is not held", "refused again"],
)
async def test_a_slip_there_keeps_no_row(
    database: TemporaryDatabase, caplog: pytest.LogCaptureFixture, says: Any
) -> None:
    """A row would stay leased, or its worker hang, because of a slip in what is said about a
    slip.
    """
    pipeline = Judging(answer=Apply({"status": None}))
    pipeline.says = says
    row, counters = await refused(database, pipeline)
    assert (row.status, is_free(row), counters.retried) == ("submitted", True, 1)
    assert (
        "could not be written" if says == Apply({"status": None}) else "on_refused failed"
    ) in caplog.text


async def test_what_is_said_may_be_a_retry_with_a_time(database: TemporaryDatabase) -> None:
    """A host that wants to wait for longer would need a column of its own."""
    pipeline = Judging(answer=Apply({"status": None}))
    pipeline.says = Retry(error="later")
    row, counters = await refused(database, pipeline)
    assert (row.status, is_free(row), counters.retried) == ("submitted", True, 1)
