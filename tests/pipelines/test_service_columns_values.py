"""`Pipeline.intent`: which values count as changed, and which outcomes are written all the same."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func
from sqlalchemy.orm import load_only

from rowlock import Apply, Outcome, Park, Retry, request_update
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, Volume, VolumePipeline
from .scenes import add, counted, is_free, read
from .test_service_columns import AnyRunPipeline, asked_meanwhile, fetch_and_work


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, "stop"), ("stop", None), ({"a": 1}, {"a": 2}), ([1], [1, 2]), (None, {}), (0, False)],
    ids=str,
)
async def test_values_of_json_and_nulls(
    database: TemporaryDatabase, before: Any, after: Any
) -> None:
    """A null would equal nothing, so that such a change is never seen, or always."""
    await add(database, Run(id=1, result=before), Run(id=2, result=before))

    async def answer(item: Any) -> Outcome:
        if item.id == 1:
            await asked_meanwhile(database, Apply(), result=after)(item)
        return Apply({"status": "done"})

    async with stepping(database.session_factory, AnyRunPipeline(answer=answer)) as steps:
        await fetch_and_work(steps)
    assert [(await read(database, Run(id=key))).status for key in (1, 2)] == ["queued", "done"]


async def test_a_time_that_the_database_wrote(database: TemporaryDatabase) -> None:
    """A moment in another spelling would be a change for ever: the row would be worked on
    without end.
    """
    [row] = await add(database, Volume())

    class Timed(VolumePipeline):
        intent = (Volume.active_at,)

    async with database.session_factory.begin() as session:
        await request_update(session, Volume, row.id, {"active_at": func.now()})
    pipeline = Timed(answer=Apply({"status": "active"}))
    async with stepping(database.session_factory, pipeline) as steps:
        await fetch_and_work(steps)
    assert pipeline.stale == []
    assert (await read(database, row)).status == "active"


async def test_a_column_that_the_host_does_not_load(database: TemporaryDatabase) -> None:
    """Every outcome would fail for want of the value that it is compared with."""
    [row] = await add(database, Volume())

    class Sparing(VolumePipeline):
        intent = (Volume.disk_id,)

        def options(self) -> Any:
            return [load_only(Volume.status)]

    async with stepping(
        database.session_factory, Sparing(answer=Apply({"status": "active"}))
    ) as steps:
        await fetch_and_work(steps)
    assert (await read(database, row)).status == "active"


async def test_a_retry_that_would_overwrite_it_is_not_written(database: TemporaryDatabase) -> None:
    """A failed attempt would undo a stop as well as one that succeeded."""
    await add(database, Run(id=1, result="asked"))
    retry = Retry(error="no disk", values={"result": "trying"}, after=3600)
    pipeline = AnyRunPipeline(answer=asked_meanwhile(database, retry, result="stop"))
    async with stepping(database.session_factory, pipeline) as steps:
        await fetch_and_work(steps)
        after = await read(database, Run(id=1))
        assert (after.result, after.attempts, after.last_error) == ("stop", 0, None)
        assert is_free(after)
        assert [outcome for _, outcome in pipeline.stale] == [retry]
        assert counted(steps)["changed"] == 1
        assert len(await steps.fetch_once()) == 1


@pytest.mark.parametrize("values", [{}, {"status": "waiting"}], ids=["nothing", "another"])
async def test_a_retry_that_leaves_it_alone_is_written(
    database: TemporaryDatabase, values: dict[str, Any]
) -> None:
    """A failure would cost no attempt whenever a service asks for something: a poison row would
    go on for ever.
    """
    await add(database, Run(id=1))
    retry = Retry(error="no disk", values=values, after=3600)
    pipeline = AnyRunPipeline(answer=asked_meanwhile(database, retry, result="stop"))
    async with stepping(database.session_factory, pipeline) as steps:
        await fetch_and_work(steps)
        after = await read(database, Run(id=1))
        assert (after.result, after.attempts, after.last_error) == ("stop", 1, "no disk")
        assert after.status == values.get("status", "queued")
        assert pipeline.stale == []
        assert len(await steps.fetch_once()) == 1, (
            "the request is heard, whatever the delay of the retry"
        )


@pytest.mark.parametrize(
    ("outcome", "attempts"),
    [(Park("no disk"), 0), (Retry(error="no disk"), 24)],
    ids=["park", "last attempt"],
)
async def test_a_row_is_not_set_aside_with_a_request_in_it(
    database: TemporaryDatabase, outcome: Outcome, attempts: int
) -> None:
    """A stop that came too late for the attempt that parks the row would stand in it, and nobody
    act on it.
    """
    await add(database, Run(id=1, attempts=attempts), Run(id=2, attempts=attempts))

    async def answer(item: Any) -> Outcome:
        if item.id == 1:
            await asked_meanwhile(database, Apply(), result="stop")(item)
        return outcome

    pipeline = AnyRunPipeline(answer=answer, max_attempts=25)
    async with stepping(database.session_factory, pipeline) as steps:
        await fetch_and_work(steps)
        asked, other = await read(database, Run(id=1)), await read(database, Run(id=2))
        assert (asked.parked_at, asked.attempts, asked.result) == (None, attempts, "stop")
        assert is_free(asked)
        assert other.parked_at is not None
        assert [item.id for item in await steps.fetch_once()] == [1]


async def test_a_row_that_cannot_be_read_is_set_aside_all_the_same(
    database: TemporaryDatabase,
) -> None:
    """Where nothing was read, nothing can be compared: such a row would head the queue for ever."""
    await add(database, Run(id=1, attempts=2))

    class Unreadable(AnyRunPipeline):
        def options(self) -> Any:
            raise LookupError("the host's options")

    async with stepping(database.session_factory, Unreadable(max_attempts=3)) as steps:
        await fetch_and_work(steps)
    after = await read(database, Run(id=1))
    assert after.parked_at is not None
    assert "the host's options" in after.last_error
    assert is_free(after)


async def test_a_retry_without_a_change_is_written(database: TemporaryDatabase) -> None:
    """A retry that writes a service's column would never be written."""
    await add(database, Run(id=1))
    retry = Retry(error="no disk", values={"result": "trying"})
    async with stepping(database.session_factory, AnyRunPipeline(answer=retry)) as steps:
        await fetch_and_work(steps)
    after = await read(database, Run(id=1))
    assert (after.result, after.attempts) == ("trying", 1)
