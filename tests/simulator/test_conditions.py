"""What a run has from its beginning to its end: a database that is far away, and code of the
host that raises.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from sqlalchemy import text

from rowlock import Apply, Event, Outcome, PipelineItem, events, logs, pipeline_hinter
from rowlock.testing import run_virtual, virtual_time_now

from .environment.engines import Engines, Schema
from .environment.faulty_connection import FaultyConnection
from .environment.processes import Process
from .faults.conditions import HOSTILE_CHANCE, ROUND_TRIPS_S, Conditions
from .faults.fault_kinds import ALL_ALONG, Fault
from .faults.hostile_host import HostileHost
from .scenario import Scenario, World
from .simulation import Simulation
from .small_host import Task, TaskPipeline, Tasks

SEEDS = range(1, 200)
CALLS = 50
logger = logging.getLogger("rowlock.of_a_test")


def host_of(kind: Fault, *, seed: int = 1) -> HostileHost:
    return HostileHost(Conditions(hostile=(kind,)), seed=seed, is_calm=lambda: False)


def test_each_kind_is_drawn_and_only_what_may_be() -> None:
    """A kind would never be part of any run, or be part of runs that exclude it."""
    drawn = [Conditions.drawn(tuple(Fault), seed=seed) for seed in SEEDS]
    assert {one.round_trip_s for one in drawn} == set(ROUND_TRIPS_S)
    for kind in ALL_ALONG - {Fault.LATENCY}:
        share = sum(kind in one.hostile for one in drawn) / len(drawn)
        assert HOSTILE_CHANCE / 2 < share < 2 * HOSTILE_CHANCE
    for seed in SEEDS:
        all_drawn = Conditions.drawn(tuple(Fault), seed=seed)
        assert Conditions.drawn([Fault.KILL], seed=seed) == Conditions()
        assert Conditions.drawn([Fault.LATENCY], seed=seed) == Conditions(all_drawn.round_trip_s)
        assert Conditions.drawn([*ALL_ALONG - {Fault.LATENCY}], seed=seed) == Conditions(
            hostile=all_drawn.hostile
        )


def test_a_run_without_them_is_the_run_that_it_was() -> None:
    """Whoever adds a kind to a scenario would lose every seed that had told something."""
    plain = [kind for kind in Fault if kind not in ALL_ALONG]
    seeds = [seed for seed in SEEDS if Conditions.drawn(tuple(Fault), seed=seed) == Conditions()][
        :1
    ]
    assert fingerprints(plain, seeds) == fingerprints(list(Fault), seeds)
    far = [seed for seed in SEEDS if Conditions.drawn(tuple(Fault), seed=seed).round_trip_s][:1]
    assert fingerprints(plain, far) != fingerprints([*plain, Fault.LATENCY], far)


def fingerprints(kinds: Sequence[Fault], seeds: Sequence[int]) -> list[str]:
    class Chosen(Tasks):
        faults = kinds

    with Simulation(Chosen) as simulation:
        return [report.fingerprint for report in simulation.run_all(seeds)]


@pytest.fixture
def engines() -> Iterator[Engines]:
    engines = Engines(lambda _: Schema([Task], {}, []))
    engines.have_engines(1)
    engines.clean()
    yield engines
    engines.close()


def test_every_statement_takes_a_round_trip(engines: Engines) -> None:
    """A BEGIN, a COMMIT or a ROLLBACK would be as quick as next door, so a batch would end in
    its time.
    """
    faulty_connection = FaultyConnection(Random(1))
    pooled = engines.next_engine(faulty_connection)

    async def scene() -> None:
        async with pooled.engine.connect() as connection:
            faulty_connection.round_trip_s = 1.0
            took = [virtual_time_now()]
            for statement in (
                "BEGIN IMMEDIATE",
                "SELECT 1",
                "INSERT INTO tasks (id, status) VALUES ('1', 'todo')",
            ):
                await connection.execute(text(statement))
                took.append(virtual_time_now())
            await connection.commit()
            took.append(virtual_time_now())
            await connection.execute(text("BEGIN IMMEDIATE"))
            await connection.rollback()
            took.append(virtual_time_now())
            await connection.rollback()
            took.append(virtual_time_now())
        steps = [later - earlier for earlier, later in pairwise(took)]
        assert steps == pytest.approx([1, 1, 1, 1, 2, 0])

    run_virtual(scene)


@pytest.mark.parametrize("seed", range(1, 13))
def test_log_calls_raise(seed: int) -> None:
    """Hosts whose handlers, filters or record factories raise would be nowhere tested."""
    host = host_of(Fault.LOGGING, seed=seed)
    failed = 0
    with host.at_home():
        for _ in range(CALLS):
            try:
                logger.warning("told", extra={"pipeline": "P", "row_id": 1})
            except (Exception, SystemExit):  # noqa: BLE001 - any of them
                failed += 1
    assert failed > CALLS // 10


def test_logging_is_given_back() -> None:
    """The tests that follow would have a logger that raises."""
    before = (
        logging.getLogRecordFactory(),
        [*logging.getLogger("rowlock").handlers],
        logging.getLogger("rowlock").level,
    )
    for seed in range(1, 9):
        with host_of(Fault.LOGGING, seed=seed).at_home():
            pass
    now = (
        logging.getLogRecordFactory(),
        logging.getLogger("rowlock").handlers,
        logging.getLogger("rowlock").level,
    )
    assert now == before


def test_what_one_run_counted_is_nothing_to_the_next() -> None:
    """The lines of the run before would decide which lines of this one raise, and no seed be
    replayed.
    """
    for seed in (1, 2):
        told = logs.get_logger("rowlock.of_a_test")
        told.error("100% wrong", exc_info=ValueError())
        with host_of(Fault.LOGGING, seed=seed).at_home():
            assert logs._repeats._windows == {}
            told.error("100% wrong", exc_info=ValueError())
        assert logs._repeats._windows == {}


def test_each_way_to_log_is_drawn() -> None:
    """A way in which logging raises would never be part of any run."""
    ways = set()
    for seed in range(1, 30):
        with host_of(Fault.LOGGING, seed=seed).at_home():
            factory: Any = logging.getLogRecordFactory()
            ways.add((factory.__qualname__, len(logging.getLogger("rowlock").handlers[0].filters)))
    assert len(ways) == 4


def test_listeners_and_relays_raise() -> None:
    """Hosts that listen to events, or attach a relay, would be nowhere tested."""
    host = host_of(Fault.LISTENERS)
    with host.at_home():
        for _ in range(CALLS):
            events.emit(Event("P"))
    assert host.raised[Fault.LISTENERS] > 0
    told = host.raised[Fault.LISTENERS]
    events.emit(Event("P"))
    assert host.raised[Fault.LISTENERS] == told
    host = host_of(Fault.WAKES)
    with host.at_home():
        for _ in range(CALLS):
            with suppress(Exception):
                pipeline_hinter.hint_fetch("Task")
    assert host.raised[Fault.WAKES] > 0
    assert not pipeline_hinter.reaches("Task")


def test_wakes_raise() -> None:
    """Hosts that attach wakes of their own would be nowhere tested."""
    host, pipeline = host_of(Fault.WAKES), TaskPipeline(World(0, None, None), [])  # type: ignore[arg-type]
    host.attach([pipeline])
    (wake,) = pipeline_hinter._wakes["Task"]
    try:
        for _ in range(CALLS):
            pipeline_hinter.wake("Task")
    finally:
        pipeline_hinter.detach("Task", wake)
    assert host.raised[Fault.WAKES] > 0


class Once(TaskPipeline):
    async def process(self, item: PipelineItem[Task]) -> Outcome:
        self.done.append(item.id)
        return Apply({"status": "done"})


def scenario_of(kind: type[TaskPipeline], *kinds: Fault) -> type[Scenario]:
    """Return a scenario in which nothing happens but what lasts for all of the run."""

    class Chosen(Tasks):
        faults = kinds

        def pipelines(self) -> Sequence[TaskPipeline]:
            return [kind(self.world, self.done)]

    return Chosen


def test_hooks_raise_until_the_faults_are_over() -> None:
    """Hosts whose `also` and hooks raise would be nowhere tested, or their rows never settle."""
    scenario = scenario_of(Once, Fault.HOOKS, Fault.CLOCK)
    seeds = [
        seed for seed in SEEDS if Fault.HOOKS in Conditions.drawn([Fault.HOOKS], seed=seed).hostile
    ][:3]
    with Simulation(scenario) as simulation:
        reports = list(simulation.run_all(seeds))
    assert all(report.is_good for report in reports)
    told = "\n".join(str(entry) for report in reports for entry in report.entries)
    assert "FetchFailed" in told
    assert "ItemFailed" in told
    assert "in hooks" in told


def test_hooks_are_calm_in_the_end() -> None:
    """Rows would have to settle while what decides about them raises."""
    host = HostileHost(Conditions(hostile=(Fault.HOOKS,)), seed=1, is_calm=lambda: True)
    process = Process("replica", FaultyConnection(Random(1)))
    outcomes = [process.call(lambda: host.spoil_outcome(Apply())) for _ in range(CALLS)]
    assert all(outcome.also is None for outcome in outcomes)
    hostile = host_of(Fault.HOOKS)
    assert any(process.call(lambda: hostile.spoil_outcome(Apply())).also for _ in range(CALLS))
    assert not any(hostile.spoil_outcome(Apply()).also for _ in range(CALLS))
