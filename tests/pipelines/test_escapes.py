"""Tests of what escapes: whatever is raised where an item is in hand, by whom ever, the row is
free in the end.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rowlock import Apply, PipelineItem, PipelineManager, Worker, events
from rowlock.pipelines import heartbeater as heartbeater_module
from rowlock.pipelines.attempt import Ended
from rowlock.testing import Steps, TemporaryDatabase, stepping, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline, heard_events
from .hostile import HostExit, break_loggers
from .scenes import add, counted, hang, is_free, now, read, until
from .told import Line, told

ERRORS = [KeyError("Attempt to overwrite 'worker' in LogRecord"), SystemExit(3), HostExit()]


def ids(error: object) -> str:
    """Name a case."""
    return type(error).__name__


async def settled(steps: Steps[Any]) -> None:
    """Wait for all that is released."""
    while steps.run.context.background:
        await steps.run.context.background.wait_for_one()


# ---------------------------------------------------------------- what escapes


class CarelessWorker(Worker[Any]):
    """Loses its first item before it is worked on."""

    has_lost = False

    async def work(self, item: PipelineItem[Any]) -> None:
        """Raise once."""
        if not type(self).has_lost:
            type(self).has_lost = True
            raise RuntimeError("a bug of the host's")
        await asyncio.sleep(5)
        await super().work(item)


class CarelessPipeline(VolumePipeline):
    """Brings workers that lose items."""

    worker_class = CarelessWorker


@virtual_time
async def test_an_item_that_a_worker_of_the_hosts_loses_comes_back(
    virtual_database: TemporaryDatabase,
) -> None:
    """One exception in a method that a host has overridden would keep a row locked as long as
    the process lives.
    """
    CarelessWorker.has_lost = False
    await add(virtual_database, Volume())
    pipeline = CarelessPipeline(workers_num=1)
    with heard_events() as heard:
        async with PipelineManager(virtual_database.session_factory, [pipeline]):
            await until(lambda: heard.of(events.ItemApplied))
            assert pipeline.statistics().counters["strays"] == 1, (
                "the second time it was in hand all the while"
            )
            assert pipeline.statistics().tracked == 0
    assert len(heard.of(events.StrayFound)) == 1


@pytest.mark.parametrize("error", ERRORS, ids=ids)
def test_whatever_escapes_from_a_worker_gives_its_item_back(
    virtual_database: TemporaryDatabase, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row would be leased and renewed for ever."""

    @virtual_time
    async def play() -> None:
        [row] = await add(virtual_database, Volume())
        async with stepping(
            virtual_database.session_factory, VolumePipeline(answer=ValueError("no"))
        ) as steps:
            await steps.fetch_once()
            with monkeypatch.context() as patch:
                break_loggers(patch, error)
                with pytest.raises(type(error)):
                    await steps.work_once()
                await settled(steps)
            assert is_free(await read(virtual_database, row))
            assert (steps.run.statistics().tracked, len(steps.run.settler)) == (0, 0)
            assert counted(steps)["strays"] == 0, "it was released at once, not by the next beat"

    play()


@pytest.mark.parametrize("error", ERRORS, ids=ids)
def test_a_pipeline_outlives_loggers_that_raise(
    virtual_database: TemporaryDatabase, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One log line that a host's filter does not like would cost a worker, the row, or the whole
    event loop.
    """

    @virtual_time
    async def play() -> None:
        rows = await add(virtual_database, *(Run(id=number) for number in range(1, 7)))
        failing = True

        def answer(item: PipelineItem[Any]) -> Any:
            return ValueError("no") if failing and item.id % 2 else Apply({"status": "done"})

        pipeline = RunPipeline(answer=answer, workers_num=2, retry_delay=1)
        with heard_events() as heard:
            async with PipelineManager(virtual_database.session_factory, [pipeline]):
                with monkeypatch.context() as patch:
                    logger = break_loggers(patch, error)
                    await until(lambda: len(heard.of(events.ItemApplied)) == 3)
                    await until(lambda: len(heard.of(events.ItemReleased)) >= 3)
                    assert logger.calls >= 3
                failing = False
                await until(lambda: len(heard.of(events.ItemApplied)) == 6)
                await until(lambda: pipeline.statistics().tracked == 0)
                assert len(pipeline.run.settler) == 0
                assert pipeline.health().healthy
        assert [(await read(virtual_database, row)).status for row in rows] == ["done"] * 6

    play()


@pytest.fixture
def record_factory() -> Iterator[Callable[[BaseException], None]]:
    """A host whose record factory raises, until the test ends."""
    before = logging.getLogRecordFactory()

    def broken(error: BaseException) -> None:
        def make(*_args: object, **_fields: object) -> logging.LogRecord:
            raise error

        logging.setLogRecordFactory(make)

    yield broken
    logging.setLogRecordFactory(before)


class BrokenFilter(logging.Filter):
    """Raises at every record of the library's."""

    def __init__(self, error: BaseException) -> None:
        """Raise `error`."""
        super().__init__()
        self._error = error

    def filter(self, record: logging.LogRecord) -> bool:
        """Raise."""
        raise self._error


@pytest.mark.parametrize("error", ERRORS, ids=ids)
@pytest.mark.parametrize("how", ["factory", "filter", "listener"])
def test_logging_and_listeners_of_the_hosts_cost_no_row(
    virtual_database: TemporaryDatabase,
    error: BaseException,
    how: str,
    record_factory: Callable[[BaseException], None],
    request: pytest.FixtureRequest,
) -> None:
    """A row whose failure cannot be told would not be retried, and its worker be gone."""

    def bad_listener(_event: events.Event) -> None:
        raise error

    @virtual_time
    async def play() -> None:
        [row] = await add(virtual_database, Run())
        pipeline = RunPipeline(answer=ValueError("no"), max_attempts=2, retry_delay=1)
        async with stepping(virtual_database.session_factory, pipeline) as steps:
            await steps.fetch_once()
            await steps.work_once()
            assert (counted(steps)["retried"], counted(steps)["strays"]) == (1, 0)
        after = await read(virtual_database, row)
        assert (is_free(after), after.last_error) == (True, "ValueError: no")

    if how == "factory":
        record_factory(error)
    elif how == "filter":
        broken, names = (
            BrokenFilter(error),
            [name for name in logging.Logger.manager.loggerDict if "rowlock" in name],
        )
        for name in names:
            logging.getLogger(name).addFilter(broken)
            request.addfinalizer(lambda name=name: logging.getLogger(name).removeFilter(broken))
    else:
        request.addfinalizer(events.subscribe(bad_listener))
    play()


# ---------------------------------------------------------------- settlements


@pytest.mark.parametrize("error", ERRORS, ids=ids)
def test_an_outcome_that_cannot_be_handed_in_gives_its_row_back(
    virtual_database: TemporaryDatabase, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would count as being settled for ever: its lease be renewed, and a drain wait for it in
    vain.
    """

    @virtual_time
    async def play() -> None:
        [row] = await add(virtual_database, Volume())

        def refuse(*_args: object) -> None:
            raise error

        async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
            await steps.fetch_once()
            monkeypatch.setattr(steps.run.settler._writer, "submit_nowait", refuse)
            with pytest.raises(type(error)):
                await steps.work_once()
            await settled(steps)
            assert (steps.run.statistics().tracked, len(steps.run.settler)) == (0, 0)
            assert is_free(await read(virtual_database, row))

    play()


@virtual_time
async def test_what_cannot_be_handed_over_is_given_back(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would count as being settled, so that no check would find it, and be renewed for ever."""
    [row] = await add(virtual_database, Volume())

    def refuse(_what: object, how: Any) -> None:
        if inspect.iscoroutine(how):
            how.close()
        raise MemoryError

    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        await steps.fetch_once()
        with monkeypatch.context() as patch:
            patch.setattr(steps.run.settler._writer, "submit_nowait", refuse)
            patch.setattr(steps.run.settler, "_in_a_task", refuse)
            with pytest.raises(MemoryError):
                await steps.work_once()
        assert (steps.run.statistics().tracked, len(steps.run.settler)) == (1, 0)
        await steps.beat_once()
        await settled(steps)
        assert is_free(await read(virtual_database, row))


@virtual_time
async def test_a_settlement_that_is_cancelled_before_it_began_has_ended(
    virtual_database: TemporaryDatabase,
) -> None:
    """Its item would stay tracked, and what waits for it wait for ever; an event loop that ends
    cancels tasks like that.
    """
    await add(virtual_database, Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        await steps.fetch_once()
        item = steps.run.context.queue.get()
        assert item is not None
        steps.run.settler.settle_later(item, Ended.INTERRUPTED)
        assert item in steps.run.settler
        for _ in range(20):
            # Begun again, it is cancelled again.
            for task in asyncio.all_tasks():
                if task.get_name() == "rowlock: settle an outcome":
                    task.cancel()
            await asyncio.sleep(0)
        assert item not in steps.run.settler
        assert steps.run.statistics().tracked == 0


@pytest.mark.parametrize("error", ERRORS, ids=ids)
def test_a_settlement_that_fails_ends_nothing_but_itself(
    virtual_database: TemporaryDatabase, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """The event loop would end with a task of ours, or an item be tracked for ever."""

    @virtual_time
    async def play() -> None:
        await add(virtual_database, Volume())
        async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
            await steps.fetch_once()
            item = steps.run.context.queue.get()
            assert item is not None

            async def fail() -> None:
                raise error

            item.after_settling = fail
            steps.run.settler.settle_later(item, Ended.LEASE_LOST)
            await settled(steps)
            assert (steps.run.statistics().tracked, len(steps.run.settler)) == (0, 0)

    play()
    text = "VolumePipeline: a background task failed: see to what waited for an outcome"
    extra = {"pipeline": "VolumePipeline", "purpose": "see to what waited for an outcome"}
    assert told(caplog, "background") == [Line(text, extra, repr(error))]


# ---------------------------------------------------------------- act first, tell after


@pytest.mark.parametrize("error", ERRORS, ids=ids)
def test_all_lost_leases_are_lost_before_any_is_told_of(
    virtual_database: TemporaryDatabase, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log call that raises would let work go on whose lease another replica may take."""

    @virtual_time
    async def play() -> None:
        await add(virtual_database, *(Volume() for _ in range(3)))
        pipeline = VolumePipeline(answer=hang)
        async with stepping(virtual_database.session_factory, pipeline) as steps:
            items = await steps.fetch_once()
            working = [asyncio.create_task(steps.work_once()) for _ in range(2)]
            await until(lambda: pipeline.running == 2)
            for item in items:
                item.trusted_until = lost_at = now()
            with monkeypatch.context() as patch:
                break_loggers(patch, error)
                with pytest.raises(type(error)):
                    steps.run.heartbeater.lose_expired()
            assert all(item.is_lost for item in items)
            assert (
                steps.queued,
                steps.run.statistics().tracked,
                counted(steps)["leases_lost"],
            ) == ((), 0, 3)
            await asyncio.wait(working)
            assert pipeline.running == 0
            assert now() == lost_at, "not ended by their own time limit"

    play()


@virtual_time
async def test_a_renewal_that_fails_keeps_no_other_from_being_renewed(
    virtual_database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its failure cannot be told, the leases behind it would end."""
    monkeypatch.setattr(heartbeater_module, "LEASES_PER_STATEMENT_MAX", 1)
    await add(virtual_database, Volume(), Volume())
    async with stepping(virtual_database.session_factory, VolumePipeline()) as steps:
        items = await steps.fetch_once()
        trusted_until = [item.trusted_until for item in items]
        await asyncio.sleep(16)
        renew = steps.run.heartbeater._renew
        tried: list[Any] = []

        async def fail_first(chunk: Any, **how: Any) -> int:
            tried.extend(chunk)
            if len(tried) == 1:
                raise OSError("network")
            return await renew(chunk, **how)

        steps.run.heartbeater._renew = fail_first  # type: ignore[method-assign]
        with monkeypatch.context() as patch:
            break_loggers(patch, SystemExit(3))
            with pytest.raises(SystemExit):
                await steps.beat_once()
        renewed = [
            item.trusted_until > before for item, before in zip(items, trusted_until, strict=True)
        ]
        assert sorted(renewed) == [False, True]
        assert steps.run.health().renewal_failures == 1
