"""Tests of changes that write nothing: they are reported where they are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import select, update

from rowlock import Apply, Outcome, PipelineError, PipelineItem, Retry, hold_rows
from rowlock.testing import TemporaryDatabase, stepping

from ..host import Run, RunPipeline, Volume
from .scenes import add, read

pytestmark = pytest.mark.either_database

Act = Callable[[PipelineItem[Any], Any], Awaitable[object]]


async def _change(item: PipelineItem[Any], session: Any) -> None:
    (await session.get(Run, 2)).status = "changed"


async def _flush(item: PipelineItem[Any], session: Any) -> None:
    await _change(item, session)
    await session.flush()


async def _add(item: PipelineItem[Any], session: Any) -> None:
    session.add(Run(id=3))


async def _delete(item: PipelineItem[Any], session: Any) -> None:
    await session.delete(await session.get(Run, 2))


async def _commit(item: PipelineItem[Any], session: Any) -> None:
    await _flush(item, session)
    await session.commit()


async def _roll_back(item: PipelineItem[Any], session: Any) -> None:
    await _flush(item, session)
    await session.rollback()


async def _autoflush(item: PipelineItem[Any], session: Any) -> None:
    await _change(item, session)
    await session.scalars(select(Run))


async def _execute(item: PipelineItem[Any], session: Any) -> None:
    await session.execute(update(Run).where(Run.id == 2).values(status="changed"))


async def _release_savepoint(item: PipelineItem[Any], session: Any) -> None:
    await session.scalar(select(Run.id))
    async with session.begin_nested():
        await _change(item, session)


async def _guard(item: PipelineItem[Any], session: Any) -> None:
    await item.guard(session)


async def _give_up(item: PipelineItem[Any], session: Any) -> None:
    await _change(item, session)
    raise KeyError


async def _after(database: TemporaryDatabase, process: Any) -> Any:
    await add(database, Run(id=1), Run(id=2, status="other"))
    pipeline = RunPipeline(answer=process)
    async with stepping(database.session_factory, pipeline) as steps:
        await steps.fetch_once()
        await steps.work_all()
    return await read(database, Run(id=1))


def _in_a_session(act: Act, outcome: Outcome) -> Any:
    async def process(item: PipelineItem[Any]) -> Outcome:
        if item.id == 1:
            with suppress(KeyError):
                async with item.session() as session:
                    await act(item, session)
        return outcome

    return process


@pytest.mark.parametrize(
    ("act", "named"),
    [
        (_change, "Run.status"),
        (_add, "Run"),
        (_delete, "Run"),
        (_flush, "Run.status"),
        (_autoflush, "Run.status"),
        (_execute, "Run"),
        (_release_savepoint, "Run.status"),
    ],
)
async def test_a_session_that_is_left_without_a_commit(
    database: TemporaryDatabase, act: Act, named: str
) -> None:
    """A dirty `item.session()` closed without a commit writes nothing, so the success that rests on
    it is refused.
    """
    row = await _after(database, _in_a_session(act, Apply({"result": 1})))
    assert f"process left item.session() without a commit ({named})" in (row.last_error or "")
    assert row.result is None


@pytest.mark.parametrize(
    ("act", "outcome"),
    [
        (_commit, Apply({"result": 1})),
        (_roll_back, Apply({"result": 1})),
        (_guard, Apply({"result": 1})),
        (_give_up, Apply({"result": 1})),
        (_change, Retry(values={"result": 1})),
    ],
)
async def test_a_session_that_is_left_on_purpose(
    database: TemporaryDatabase, act: Act, outcome: Outcome
) -> None:
    """What was committed, rolled back, given up by an exception or is no success is left alone."""
    row = await _after(database, _in_a_session(act, outcome))
    assert (row.last_error, row.result) == (None, 1)


@pytest.mark.parametrize("is_written", [False, True])
async def test_a_related_row_that_is_changed(database: TemporaryDatabase, is_written: bool) -> None:
    """A change of a related row writes nothing, unless the outcome writes that column of it."""

    async def process(item: PipelineItem[Any]) -> Outcome:
        if item.id != 1:
            return Apply()
        [related] = await item.lock_related(Run, Run.id == 3)
        related.status = "changed"
        key = "status" if is_written else "result"
        return Apply({"result": 1}, related={(Run, 3): {key: "changed"}})

    await add(database, Run(id=3, status="related"))
    row = await _after(database, process)
    said = "process changed related rows (Run.status), which writes nothing"
    assert (said in (row.last_error or "")) is not is_written
    assert (row.result == 1) is is_written


async def test_held_rows_that_are_changed(database: TemporaryDatabase) -> None:
    """A change of `held.rows` writes nothing: a block without a guard refuses it."""
    [volume] = await add(database, Volume())
    with pytest.raises(PipelineError, match=r"held.rows was changed \(size_gb\)"):
        async with hold_rows(database.session_factory, Volume, [volume.id]) as held:
            held.rows[0].size_gb = 5
    async with hold_rows(database.session_factory, Volume, [volume.id]) as held:
        held.rows[0].size_gb = 5
        async with database.session_factory.begin() as session:
            [there] = await held.guard(session)
            there.size_gb = held.rows[0].size_gb
    assert (await read(database, volume)).size_gb == 5
