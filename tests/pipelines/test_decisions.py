"""Tests of decisions: what goes wrong with an object that the host returned fails its own row."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from rowlock import Apply, Outcome, RelatedLockUnavailable, Retry
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline
from .scenes import add, counted, is_free, read


class LazyValues(dict[str, Any]):
    """Values that are computed when they are asked for, which fails."""

    def items(self) -> NoReturn:
        raise ConnectionError("no answer")


@pytest.mark.parametrize("outcome", [Apply(LazyValues()), Retry(values=LazyValues())])
@virtual_time
async def test_what_an_outcome_raises_is_the_rows_failure(
    virtual_database: TemporaryDatabase, outcome: Outcome
) -> None:
    """The row would stay leased, or a worker be lost."""
    rows = await add(virtual_database, Run(id=1), Run(id=2))

    def answer(item: Any) -> Any:
        return outcome if item.id == 1 else Apply({"status": "done"})

    async with stepping(virtual_database.session_factory, RunPipeline(answer=answer)) as steps:
        await steps.fetch_once()
        assert await steps.work_all() == 2
        assert (counted(steps)["retried"], counted(steps)["applied"]) == (1, 1)
        assert steps.run.statistics().tracked == 0
    bad, good = [await read(virtual_database, row) for row in rows]
    assert is_free(bad)
    assert (bad.status, bad.attempts, good.status) == ("queued", 1, "done")
    assert bad.last_error


@virtual_time
async def test_a_refused_lock_within_a_group_is_no_failure(
    virtual_database: TemporaryDatabase,
) -> None:
    """A row that waits for others would count attempts, and be parked in the end."""
    await add(virtual_database, Volume())
    error = ExceptionGroup("tasks", [RelatedLockUnavailable(model="Disk", wanted=2, available=1)])
    async with stepping(virtual_database.session_factory, VolumePipeline(answer=error)) as steps:
        await steps.fetch_once()
        await steps.work_once()
        assert counted(steps)["reset"] == 1
