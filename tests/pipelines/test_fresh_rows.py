"""Rows that come with their claim: used while they are fresh, and read anew after that."""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import ColumnElement, Enum, event, select, text
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, selectinload
from sqlalchemy.orm.interfaces import LoaderOption

from rowlock import Apply, LockColumns, PipelineItem, PipelineManager, ScheduleColumns, events
from rowlock.leases.claim_request import CLAIMED_BYTES_MAX
from rowlock.pipelines import fetcher, worker
from rowlock.pipelines.context import FRESH_S, FRESH_S_MAX
from rowlock.testing import TemporaryDatabase, stepping, virtual_time

from ..host import RecordingPipeline, Run, RunPipeline, Volume, VolumePipeline, heard_events
from .scenes import Faults, add, change, faults_of, until


class Feeling(enum.Enum):
    GOOD = "good"


class Base(DeclarativeBase):
    """The tables of this module alone."""


class Mood(LockColumns, ScheduleColumns, Base):
    """A host's table with a column that not every value fits, and one that a trigger keeps."""

    __tablename__ = "moods"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(default="new")
    mood: Mapped[Feeling] = mapped_column(
        Enum(Feeling, native_enum=False, length=20), default=Feeling.GOOD
    )
    revision: Mapped[int] = mapped_column(default=0)


class MoodPipeline(RecordingPipeline):
    model = Mood

    def ready(self) -> ColumnElement[bool]:
        return Mood.status == "new"

    def usual_answer(self, item: PipelineItem[Any]) -> Apply:
        return Apply({"status": "done"})


class WithAttachments(VolumePipeline):
    def options(self) -> Sequence[LoaderOption]:
        return (selectinload(Volume.attachments),)


def reads(faults: Faults) -> int:
    return faults.count(
        lambda statement: (
            statement.startswith("SELECT")
            and ".status" in statement.split("WHERE")[0]
            and " IN (" in statement
        )
    )


async def test_work_that_begins_at_once_needs_no_second_statement(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each row would cost a round trip more between the hint and its start."""
    monkeypatch.setattr(worker, "FRESH_S_MAX", 60)
    monkeypatch.setattr(fetcher, "FRESH_S", 60)  # however slow this machine is today
    await add(database, Run(id=1, result={"size": 3}))
    seen: list[Any] = []

    def answer(item: PipelineItem[Any]) -> Apply:
        seen.append((item.row.id, item.row.status, item.row.result, item.row.lock_token))
        return Apply({"status": "done"})

    with faults_of(database.engine) as faults, heard_events() as heard:
        pipeline = RunPipeline(answer=answer)
        async with PipelineManager(database.session_factory, [pipeline]):
            await heard.wait_for(events.ItemApplied)
    assert seen == [(1, "queued", {"size": 3}, pipeline.items[0].lock_token)]
    assert reads(faults) == 0


@virtual_time
async def test_work_that_begins_late_sees_the_row_as_it_is_then(
    virtual_database: TemporaryDatabase,
) -> None:
    """What a service wrote while the row was queued would be unknown to the attempt."""
    rows = await add(virtual_database, Run(id=1), Run(id=2))
    first_is_through, seen = asyncio.Event(), {}

    async def answer(item: PipelineItem[Any]) -> Apply:
        seen[item.id] = item.row.result
        if len(seen) == 1:
            await first_is_through.wait()
        return Apply({"status": "done"})

    pipeline = RunPipeline(answer=answer, workers_num=1)
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        await until(lambda: seen)
        [queued] = [row for row in rows if row.id not in seen]
        await change(virtual_database, queued, result="from a service")
        await asyncio.sleep(2 * FRESH_S)
        first_is_through.set()
        await until(lambda: len(seen) == 2)
    assert seen[queued.id] == "from a service"


@virtual_time
@pytest.mark.parametrize(("claim_s", "is_read"), [(FRESH_S / 2, False), (FRESH_S_MAX, True)])
async def test_a_claim_that_takes_long_brings_fresh_rows(
    virtual_database: TemporaryDatabase,
    monkeypatch: pytest.MonkeyPatch,
    *,
    claim_s: float,
    is_read: bool,
) -> None:
    """On a slow machine each row would be read twice, which makes it slower still; or work begin
    with a row as it was seconds ago.
    """
    claims = fetcher.claim

    async def claim(*args: Any, **options: Any) -> Any:
        items = await claims(*args, **options)
        await asyncio.sleep(claim_s)
        return items

    async def answer(item: PipelineItem[Any]) -> Apply:
        await asyncio.sleep(FRESH_S * 0.75)
        return Apply({"status": "done"})

    monkeypatch.setattr(fetcher, "claim", claim)
    await add(virtual_database, Run(id=1), Run(id=2))
    with faults_of(virtual_database.engine) as faults:
        pipeline = RunPipeline(answer=answer, workers_num=1)
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: len(pipeline.items) == 2)
    assert bool(reads(faults)) == is_read


@virtual_time
@pytest.mark.parametrize(("busy_s", "is_read"), [(FRESH_S / 4, False), (FRESH_S_MAX, True)])
async def test_a_busy_loop_makes_no_row_old(
    virtual_database: TemporaryDatabase, *, busy_s: float, is_read: bool
) -> None:
    """A drain on a busy machine would read each row twice, and be slower for it; or work begin with
    a row as it was seconds ago.
    """
    loop: Any = asyncio.get_running_loop()

    def answer(item: PipelineItem[Any]) -> Apply:
        loop._set_now(loop.time() + busy_s)
        return Apply({"status": "done"})

    await add(virtual_database, *(Run(id=number) for number in range(1, 21)))
    pipeline = RunPipeline(answer=answer, workers_num=2, queue_upper_limit_factor=10)
    with faults_of(virtual_database.engine) as faults:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: len(pipeline.items) == 20)
    assert bool(reads(faults)) == is_read


@virtual_time
async def test_a_row_that_waits_in_a_host_s_own_work_is_read_then(
    virtual_database: TemporaryDatabase,
) -> None:
    """What a worker class writes, or a service, before it processes the row would be unknown."""

    class Slow(worker.Worker[Any]):
        async def work(self, item: PipelineItem[Any]) -> None:
            await asyncio.sleep(2 * FRESH_S)
            await super().work(item)

    await add(virtual_database, Run(id=1))
    with faults_of(virtual_database.engine) as faults:
        pipeline: Any = RunPipeline()
        pipeline.worker_class = Slow
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: pipeline.items)
    assert reads(faults) == 1


@virtual_time
async def test_a_fresh_row_is_worked_on_under_trust_alone(
    virtual_database: TemporaryDatabase,
) -> None:
    """Work would begin on a row whose lease is over already, because its claim was answered
    late.
    """
    await add(virtual_database, Run(id=1))
    async with stepping(virtual_database.session_factory, RunPipeline()) as steps:
        [item] = await steps.fetch_once()
        item.row = Run(id=1)
        rows = worker.Loader(steps.run.context)
        assert await rows.load(item)
        item.lose()
        assert not await rows.load(item)


@virtual_time
async def test_rows_are_not_read_with_a_claim_while_the_queue_is_slow(
    virtual_database: TemporaryDatabase,
) -> None:
    """Wide rows would be read twice, and wait in memory, for as long as there is more work than
    workers.
    """
    await add(virtual_database, *(Run(id=number) for number in range(1, 31)))
    with_rows: dict[int, bool] = {}

    async def answer(item: PipelineItem[Any]) -> Apply:
        with_rows.update(
            {queued.id: queued.has_row for queued in pipeline.run.context.queue.waiting()}
        )
        await asyncio.sleep(10 * FRESH_S)
        return Apply({"status": "done"})

    pipeline = RunPipeline(
        answer=answer, workers_num=1, queue_upper_limit_factor=4, queue_lower_limit_factor=2
    )
    async with PipelineManager(virtual_database.session_factory, [pipeline]):
        await until(lambda: len(pipeline.items) == 30)
    assert len(with_rows) > 20
    first_claim = 5
    assert [
        number for number, has_row in with_rows.items() if has_row and number > 2 * first_claim
    ] == []


async def test_a_row_that_cannot_be_read_fails_alone(database: TemporaryDatabase) -> None:
    """One bad value would stop its pipeline, or have its neighbours set aside without ever
    having been begun.
    """
    await add(database, *(Mood(id=number) for number in range(1, 6)))
    async with database.session_factory.begin() as session:
        await session.execute(text("UPDATE moods SET mood = 'unheard of' WHERE id = 1"))
    with heard_events() as heard:
        async with PipelineManager(
            database.session_factory, [MoodPipeline(retry_delay=300)]
        ) as manager:
            await heard.wait_for(events.ItemApplied, count=4)
            await heard.wait_for(events.ItemReleased)
            fetches = manager.statistics()["MoodPipeline"].counters["fetches_failed"]
    async with database.session_factory() as session:
        statement = select(Mood.status, Mood.attempts).order_by(Mood.id)
        rows = [tuple(row) for row in await session.execute(statement)]
    assert fetches == 0
    assert rows == [("new", 0), *[("done", 0)] * 4]


async def test_a_claim_fetches_bounded_bytes(database: TemporaryDatabase) -> None:
    """A bound on rows × size held ahead: the queue would hold hundreds of large rows, of which
    workers read a few.
    """
    large = "x" * (CLAIMED_BYTES_MAX + 1)
    await add(database, Run(id=1, result=large), Run(id=2, result="small"), Run(id=3))
    pipeline = RunPipeline()
    async with stepping(database.session_factory, pipeline) as steps:
        steps.run.context.claims_rows = True
        has_row = {item.id: item.has_row for item in await steps.fetch_once()}
        await steps.work_all()
    assert has_row == {1: False, 2: True, 3: True}
    assert {item.id: item.row.result for item in pipeline.items} == {1: large, 2: "small", 3: None}


async def test_what_a_trigger_writes_is_in_the_row(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outcome that depends on it would be released for ever."""
    monkeypatch.setattr(worker, "FRESH_S_MAX", 60)
    monkeypatch.setattr(fetcher, "FRESH_S", 60)  # or on a slow machine every row is read anew
    await add(database, Mood(id=1))
    body = "UPDATE moods SET revision = revision + 1 WHERE id = NEW.id"
    async with database.session_factory.begin() as session:
        if database.dialect_name == "sqlite":
            await session.execute(
                text(f"CREATE TRIGGER counted AFTER UPDATE ON moods BEGIN {body}; END")
            )
        else:
            counts = "'BEGIN NEW.revision = NEW.revision + 1; RETURN NEW; END'"
            await session.execute(
                text(f"CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS {counts}")
            )
            await session.execute(
                text(
                    "CREATE TRIGGER counted BEFORE UPDATE ON moods FOR EACH ROW EXECUTE FUNCTION"
                    " counted()"
                )
            )
    pipeline = MoodPipeline(
        answer=lambda item: Apply({"status": "done"}, unless_changed=[Mood.revision])
    )
    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [pipeline]):
            await heard.wait_for(events.ItemApplied)
    assert len(pipeline.items) == 1


async def test_claims_are_nothing_to_the_hosts_session_events(database: TemporaryDatabase) -> None:
    """A host that hints whenever its session updates rows would hint for each claim, and each
    claim lead to the next.
    """
    await add(database, Run(id=1))
    updates: list[bool] = []

    class Watched(Session):
        """The host's own."""

    event.listen(Watched, "do_orm_execute", lambda state: updates.append(state.is_update))
    factory = async_sessionmaker(database.engine, sync_session_class=Watched)
    with heard_events() as heard:
        async with PipelineManager(factory, [RunPipeline()]):
            await heard.wait_for(events.ItemApplied)
    assert not any(updates)


async def test_the_hosts_options_are_respected(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`process` would find rows without what it asked for, now and then."""
    monkeypatch.setattr(worker, "FRESH_S_MAX", 60)
    monkeypatch.setattr(fetcher, "FRESH_S", 60)  # or on a slow machine every row is read anew
    await add(database, Volume())
    seen: list[Any] = []

    def answer(item: PipelineItem[Any]) -> Apply:
        seen.append(list(item.row.attachments))
        return Apply({"status": "active"})

    with heard_events() as heard:
        async with PipelineManager(database.session_factory, [WithAttachments(answer=answer)]):
            await heard.wait_for(events.ItemApplied)
    assert seen == [[]]


async def test_a_step_sees_what_the_test_has_changed(database: TemporaryDatabase) -> None:
    """A test that changes a row between two steps would depend on how fast it is."""
    [row] = await add(database, Run(id=1))
    async with stepping(database.session_factory, RunPipeline()) as steps:
        await steps.fetch_once()
        await change(database, row, result="changed")
        item = await steps.work_once()
    assert item.row.result == "changed"


@pytest.mark.parametrize(
    "values",
    [(1, True), (True, 1), ({"n": 1}, {"n": True}), ({"a": 1, "b": 2}, {"b": 2, "a": 1})],
    ids=str,
)
async def test_what_is_merely_equal_is_written_as_it_is(
    database: TemporaryDatabase, values: tuple[Any, Any]
) -> None:
    """An outcome would be written with its neighbour's value."""
    await add(database, Run(id=1), Run(id=2))

    def answer(item: PipelineItem[Any]) -> Apply:
        return Apply({"status": "done", "result": values[item.id - 1]})

    async with stepping(
        database.session_factory, RunPipeline(answer=answer, workers_num=2)
    ) as steps:
        items = await steps.fetch_once()
        for _ in items:
            steps.run.context.queue.get()
        await asyncio.gather(
            *(worker.work(item) for worker, item in zip(steps.run.workers, items, strict=True))
        )
        await steps.run.settler.wait_until_idle()
    async with database.session_factory() as session:
        rows = [await session.get(Run, number) for number in (1, 2)]
    assert [json.dumps(row.result) for row in rows if row is not None] == [
        json.dumps(value) for value in values
    ]
