"""Metrics for Prometheus: true, bounded, and read without a statement."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import event

from rowlock import ConfigurationError, PipelineManager, Retry
from rowlock.insight import Observer
from rowlock.telemetry import metrics
from rowlock.telemetry.metrics import METRICS, Reading
from rowlock.telemetry.prometheus import _lines, exposition, register
from rowlock.testing import TemporaryDatabase, virtual_time

from ..host import Run, RunPipeline, Volume, VolumePipeline
from ..pipelines.scenes import add, faults_of, hang, until
from .scrapes import parsed, registered, scraped, value

pytestmark = pytest.mark.either_database

PIPELINE = "VolumePipeline"


@virtual_time
async def test_a_scrape_says_what_was_done(virtual_database: TemporaryDatabase) -> None:
    """A dashboard would show figures that nobody can trust."""
    await add(virtual_database, *(Volume() for _ in range(7)))
    pipeline = VolumePipeline(workers_num=2)
    manager = PipelineManager(virtual_database.session_factory, [pipeline])
    registry = registered(manager)
    async with manager:
        await until(lambda: pipeline.statistics().counters["applied"] >= 7)
        await until(lambda: pipeline.statistics().settling == 0)
        series, now = scraped(registry), pipeline.statistics()
        assert (
            value(series, "outcomes_total", pipeline=PIPELINE, outcome="applied")
            == (now.counters["applied"])
        )
        assert value(series, "attempts_total", pipeline=PIPELINE) == now.counters["started"]
        assert value(series, "rows_claimed_total", pipeline=PIPELINE) == now.counters["claimed"]
        assert value(series, "process_seconds_count", pipeline=PIPELINE) == (
            now.buckets["process"].count
        )
        assert value(series, "process_seconds_bucket", pipeline=PIPELINE, le="+Inf") == (
            now.buckets["process"].count
        )
        assert value(series, "workers", pipeline=PIPELINE) == 2
        assert value(series, "healthy", pipeline=PIPELINE) == 1
        assert value(series, "loop_late_seconds", pipeline=PIPELINE, loop="fetcher") == 0
        assert abs(value(series, "clock_skew_seconds")) < 1e9


@virtual_time
async def test_buckets_are_cumulative(virtual_database: TemporaryDatabase) -> None:
    """Quantiles over all replicas would be wrong, and no error would say so."""
    await add(virtual_database, Run())
    pipeline = RunPipeline()
    manager = PipelineManager(virtual_database.session_factory, [pipeline])
    async with manager:
        await until(lambda: pipeline.statistics().counters["applied"])
        process = pipeline.run.context.histograms.process
        for seconds in (0.001, 0.02, 0.02, 5, 10_000):
            process.add(seconds)
        done = pipeline.statistics().counters["started"]
        series = scraped(registered(manager))
    counts = [
        value(series, "process_seconds_bucket", pipeline="RunPipeline", le=le)
        for le in ("0.005", "0.025", "5.0", "1800.0", "+Inf")
    ]
    assert counts == [1 + done, 3 + done, 4 + done, 4 + done, 5 + done]


@virtual_time
async def test_the_number_of_series_does_not_grow_with_rows(
    virtual_database: TemporaryDatabase,
) -> None:
    """A row's id, owner or error as a label would fill the memory of the host's Prometheus."""
    await add(virtual_database)
    pipeline = VolumePipeline(answer=lambda item: Retry(error=f"{item.id} is broken"))
    manager = PipelineManager(virtual_database.session_factory, [pipeline])
    registry = registered(manager)
    async with manager:
        before = scraped(registry)
        await add(virtual_database, *(Volume() for _ in range(300)))
        pipeline.hint()
        await until(lambda: pipeline.statistics().counters["retried"] >= 300)
        after = scraped(registry)
    new = {name for name, _ in after.keys() - before.keys()}
    assert new <= {"rowlock_clock_skew_seconds"}  # known once a row was claimed
    assert value(after, "outcomes_total", pipeline=PIPELINE, outcome="retried") >= 300


@virtual_time
async def test_labels_are_of_closed_sets(virtual_database: TemporaryDatabase) -> None:
    """A hundred thousand ids, owners or errors would be a hundred thousand series."""
    await add(virtual_database)
    pipeline = VolumePipeline()
    manager = PipelineManager(virtual_database.session_factory, [pipeline])
    async with manager:
        context, before = pipeline.run.context, scraped(registered(manager))
        for number in range(100_000):
            context.counters.retried += 1
            context.failures.failed("fetcher", f"row {uuid.UUID(int=number)} of tenant {number}")
            context.histograms.process.add(number / 100)
        assert scraped(registered(manager)).keys() == before.keys()


@virtual_time
async def test_a_scrape_runs_no_statement_and_answers_in_an_outage(
    virtual_database: TemporaryDatabase,
) -> None:
    """Metrics would be missing when they are needed most, or load the database with each scrape."""
    await add(virtual_database, Volume())
    pipeline = VolumePipeline(answer=hang)
    manager = PipelineManager(virtual_database.session_factory, [pipeline])
    registry = registered(manager)
    statements: list[str] = []
    async with manager:
        await until(lambda: pipeline.statistics().running == 1)
        with faults_of(virtual_database.engine) as faults:
            faults.fail(ConnectionError("no database"))
            await until(lambda: pipeline.statistics().counters["fetches_failed"] >= 2)

            @event.listens_for(virtual_database.engine.sync_engine, "before_cursor_execute")
            def note(*arguments: object) -> None:
                statements.append(str(arguments[2]))

            series = scraped(registry)
            assert statements == []
            assert value(series, "healthy", pipeline=PIPELINE) == 0
            assert value(series, "fetches_total", pipeline=PIPELINE, result="failed") >= 2
            faults.heal()
        await manager.drain(0)


@virtual_time
async def test_the_fast_text_is_what_a_registry_shows(virtual_database: TemporaryDatabase) -> None:
    """Whoever changes from the one to the other would read other figures."""
    await add(virtual_database, *(Volume() for _ in range(7)))
    pipeline = VolumePipeline()
    manager = PipelineManager(virtual_database.session_factory, [pipeline])
    async with manager:
        await until(lambda: pipeline.statistics().counters["applied"] >= 7)
        await until(lambda: pipeline.statistics().settling == 0)
    observer = Observer(manager)
    observer.lag_s, observer.skew_s = 1e9, -0.1
    text, registry = exposition(observer), registered(observer)
    assert parsed(text) == scraped(registry)
    assert sorted(comments_of(text)) == sorted(comments_of(generate_latest(registry)))
    assert exposition(observer) == text


def comments_of(text: bytes) -> list[str]:
    """Return what is said of metrics, and not by them."""
    return [line for line in text.decode().splitlines() if line.startswith("#")]


@pytest.mark.parametrize("value", ["plain", 'quo"ted', "back\\slash", "two\nlines", "\\n"])
def test_label_values_are_escaped(value: str) -> None:
    """A name of a replica would tear the whole scrape."""
    reading = Reading(METRICS[0], {("P", value): 1.0})
    [(_, labels)] = parsed("".join(_lines(reading)).encode())
    assert dict(labels) == {"pipeline": "P", "result": value}


def named_pipelines(count: int) -> list[VolumePipeline]:
    return [type(f"P{number}Pipeline", (VolumePipeline,), {})() for number in range(count)]


async def test_pipelines_beyond_the_limit_share_a_name(database: TemporaryDatabase) -> None:
    """A host that makes classes as it runs would make series without end."""
    manager = PipelineManager(database.session_factory, named_pipelines(metrics.PIPELINES_MAX + 3))
    series = scraped(registered(manager))
    names = {labels for name, labels in series if name == "rowlock_attempts_total"}
    assert len(names) == metrics.PIPELINES_MAX + 1
    assert value(series, "attempts_total", pipeline=metrics.OTHER) == 0
    assert value(series, "process_seconds_count", pipeline=metrics.OTHER) == 0


@virtual_time
async def test_values_of_one_name_are_summed(virtual_database: TemporaryDatabase) -> None:
    """Prometheus refuses a scrape in which a series stands twice."""
    await add(virtual_database)
    factory = virtual_database.session_factory
    pipelines = [VolumePipeline(workers_num=3), VolumePipeline(workers_num=4)]
    managers = [PipelineManager(factory, [one]) for one in pipelines]
    async with managers[0]:
        async with managers[1]:
            for pipeline in pipelines:
                pipeline.run.context.counters.swept += 5
                pipeline.run.context.histograms.write.add(2.0)
            await asyncio.sleep(1)
            series = scraped(registered(*managers))
            assert value(series, "rows_swept_total", pipeline=PIPELINE) == 10
            assert value(series, "write_seconds_sum", pipeline=PIPELINE) == 4
            assert value(series, "workers", pipeline=PIPELINE) == 7
            assert value(series, "healthy", pipeline=PIPELINE) == 1
        assert value(scraped(registered(*managers)), "healthy", pipeline=PIPELINE) == 0


async def test_an_observer_shows_its_managers_and_what_it_alone_knows(
    database: TemporaryDatabase,
) -> None:
    """Nobody would be told of a pipeline that was paused and forgotten, or of a loop that stands
    still.
    """
    paused = type("PausedPipeline", (VolumePipeline,), {})()
    manager = PipelineManager(database.session_factory, [paused, VolumePipeline()])
    observer = Observer(manager)
    observer.paused, observer.lag_s, observer.skew_s = frozenset({"PausedPipeline"}), 0.25, -3.0
    series = scraped(registered(observer, manager))
    assert value(series, "paused", pipeline="PausedPipeline") == 1
    assert value(series, "paused", pipeline=PIPELINE) == 0
    assert value(series, "event_loop_lag_seconds") == 0.25
    assert value(series, "clock_skew_seconds") == -3
    assert metrics.MetricSources.of([observer, manager]).managers == (manager,)
    alone = {name for name, _ in scraped(registered(manager))}
    assert alone.isdisjoint({"rowlock_paused", "rowlock_event_loop_lag_seconds"})


async def test_a_registration_that_cannot_work_is_refused(
    database: TemporaryDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host would hear of it at the first scrape, or never."""
    manager, registry = PipelineManager(database.session_factory), CollectorRegistry()
    with pytest.raises(ConfigurationError, match=r"register\(manager\)"):
        register(registry=registry)
    collector = register(manager, registry=registry)
    with pytest.raises(ConfigurationError, match="in one call"):
        register(manager, registry=registry)
    registry.unregister(collector)
    register(manager, registry=registry)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "/somewhere")
    with pytest.raises(ConfigurationError, match="multi-process"):
        register(manager, registry=CollectorRegistry())
