"""`Pipeline.intent`: an outcome that was computed before a service changed such a column is not
written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import ColumnElement
from sqlalchemy.ext.asyncio import AsyncSession

from rowlock import Apply, ModelError, Outcome, request_update
from rowlock.testing import Steps, TemporaryDatabase, stepping

from ..host import Run, RunPipeline, Volume, VolumePipeline
from .scenes import add, counted, is_free, read, read_all

pytestmark = pytest.mark.either_database(but=["test_an_outcome_of_older_values_is_not_written"])


class StoppablePipeline(VolumePipeline):
    intent = (Volume.status,)

    def ready(self) -> ColumnElement[bool]:
        return Volume.status.in_(["submitted", "stopping"])


class AnyRunPipeline(RunPipeline):
    """Runs whatever their status, with a service's column."""

    intent = ("result",)

    def ready(self) -> ColumnElement[bool]:
        return Run.id > 0


def asked_meanwhile(
    database: TemporaryDatabase, outcome: Outcome, **values: Any
) -> Callable[[Any], Awaitable[Outcome]]:
    """Return the answer of a `process` in whose middle a service asks for `values`, once."""
    asked: set[Any] = set()

    async def answer(item: Any) -> Outcome:
        if item.id not in asked:
            asked.add(item.id)
            async with database.session_factory.begin() as session:
                assert await request_update(session, type(item.row), item.id, values)
        return outcome

    return answer


async def fetch_and_work(steps: Steps[Any]) -> None:
    await steps.fetch_once()
    await steps.work_all()


# ---------------------------------------------------------------- what may be named


@pytest.mark.parametrize(
    "intent",
    [[Volume.status, Volume.size_gb], ["status", "size_gb"], (Volume.status, "size_gb", "status")],
)
def test_columns_are_named_by_attribute_or_name(intent: Any) -> None:
    """A host would have to know which of the two it was."""

    class Named(VolumePipeline):
        pass

    Named.intent = intent
    assert [column.name for column in Named().intent_columns] == ["status", "size_gb"]


@pytest.mark.parametrize(
    ("intent", "text"),
    [
        ("status", "Named.intent is a list of columns, not 'status'"),
        (None, "Named.intent is a list of columns, not None"),
        ({Volume.status: True}, "is a list of columns"),
        (Volume.status, "is a list of columns"),
        (["stop"], "Named.intent: Volume has no column 'stop'"),
        ([5], "has no column 5"),
        ([Run.due_at], "has no column"),
        ([Volume.attachments], "has no column"),
        (["lock_token"], "names Volume.lock_token, which no service changes"),
        ([Volume.last_processed_at], "names Volume.last_processed_at"),
        ([Volume.id], "names Volume.id"),
    ],
    ids=[
        "name",
        "none",
        "map",
        "column",
        "unknown",
        "number",
        "another model",
        "relation",
        "lock",
        "stamp",
        "key",
    ],
)
def test_what_may_not_be_named(intent: Any, text: str) -> None:
    """An intent that guards nothing, or against rowlock's own writes, would be found out when a
    stop was lost.
    """

    class Named(VolumePipeline):
        pass

    Named.intent = intent
    with pytest.raises(ModelError, match=text) as caught:
        Named()
    assert caught.value.model == "Volume"


def test_the_schedule_is_not_to_be_named() -> None:
    """Every attempt is a change of `attempts`: no outcome would ever be written."""

    class Named(RunPipeline):
        intent = ("due_at",)

    with pytest.raises(ModelError, match=r"names Run\.due_at"):
        Named()


# ---------------------------------------------------------------- Apply


@pytest.mark.parametrize(
    "values", [{"status": "active"}, {"disk_id": "disk"}, {}], ids=["it", "another", "nothing"]
)
async def test_an_outcome_of_older_values_is_not_written(
    database: TemporaryDatabase, values: dict[str, Any]
) -> None:
    """A stop would be overwritten, or passed over by an outcome that knows nothing of it."""
    [row] = await add(database, Volume())
    pipeline = StoppablePipeline(answer=asked_meanwhile(database, Apply(values), status="stopping"))
    async with stepping(database.session_factory, pipeline) as steps:
        await fetch_and_work(steps)
        after = await read(database, row)
        assert (after.status, after.disk_id, after.last_processed_at) == ("stopping", None, None)
        assert is_free(after)
        assert [(item.id, outcome) for item, outcome in pipeline.stale] == [(row.id, Apply(values))]
        assert (counted(steps)["changed"], counted(steps)["applied"]) == (1, 0)
        [item] = await steps.fetch_once()  # at once: not after the usual interval
        assert (item.id, item.attempt) == (row.id, 1)
        await steps.work_once()
        assert pipeline.items[1].row.status == "stopping"
    assert len(pipeline.stale) == 1


async def test_also_is_not_run(database: TemporaryDatabase) -> None:
    """The host's statements would be kept beside an outcome that was not."""
    [row] = await add(database, Volume())
    ran = []

    async def also(session: AsyncSession, now: datetime) -> None:
        ran.append(now)

    answer = asked_meanwhile(database, Apply({"status": "active"}, also=also), status="stopping")
    async with stepping(database.session_factory, StoppablePipeline(answer=answer)) as steps:
        await fetch_and_work(steps)
        assert (ran, counted(steps)["changed"]) == ([], 1)
        await steps.fetch_once()
        await steps.work_once()
    assert len(ran) == 1
    assert (await read(database, row)).status == "active"


@pytest.mark.parametrize(
    "values", [{"size_gb": 5}, {"status": "submitted"}], ids=["another", "the same"]
)
async def test_what_is_not_a_change_of_it_does_no_harm(
    database: TemporaryDatabase, values: dict[str, Any]
) -> None:
    """A service that writes other columns, or the same value again, would throw away the work of
    a pipeline.
    """
    [row] = await add(database, Volume())
    pipeline = StoppablePipeline(
        answer=asked_meanwhile(database, Apply({"status": "active"}), **values)
    )
    async with stepping(database.session_factory, pipeline) as steps:
        await fetch_and_work(steps)
    after = await read(database, row)
    assert (after.status, after.size_gb) == ("active", values.get("size_gb", 1))


async def test_a_refused_outcome_spoils_no_other(database: TemporaryDatabase) -> None:
    """Of outcomes that are written together, those of rows that nobody asked anything of would
    be refused, too.
    """
    rows = await add(database, *(Volume() for _ in range(4)))

    async def answer(item: Any) -> Outcome:
        if item.id == rows[1].id:
            await asked_meanwhile(database, Apply(), status="stopping")(item)
        return Apply({"status": "active"})

    pipeline = StoppablePipeline(answer=answer)
    async with stepping(database.session_factory, pipeline) as steps:
        await fetch_and_work(steps)
    by_id = {row.id: row.status for row in await read_all(database, Volume)}
    assert [by_id[row.id] for row in rows] == ["active", "stopping", "active", "active"]
