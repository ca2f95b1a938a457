"""What a simulation notices, and how it tells it."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from rowlock import Outcome, PipelineItem, Retry, pipeline_hinter

from .command import tell
from .faults.fault_kinds import ALL_ALONG, Fault
from .scenario import Scenario
from .simulation import PromiseBrokenError, Simulation, SimulationReport, simulate
from .small_host import Task, TaskPipeline, Tasks


def first_failure(scenario: type[Scenario], *, seeds_max: int = 30) -> SimulationReport:
    with Simulation(scenario, replay="play {seed} again") as simulation:
        return next(
            report for report in simulation.run_all(range(1, seeds_max)) if not report.is_good
        )


class Calm(Tasks):
    faults = ()


class TestsPipeline(TaskPipeline):
    __test__ = False

    async def process(self, item: PipelineItem[Task]) -> Outcome:
        self.done.append(item.id)
        return Retry(error="always")


class NeverDone(Calm):
    settle_within = timedelta(seconds=8)

    def pipelines(self) -> Sequence[TaskPipeline]:
        return [TestsPipeline(self.world, self.done)]


def test_rows_that_do_not_settle_are_named() -> None:
    """A pipeline that goes round in circles would pass."""
    report = first_failure(NeverDone)
    wrong, *_ = report.wrongs
    assert "has not settled 8 s after the faults: still wants work" in wrong.text
    assert wrong.place is not None
    assert f"what happened to tasks {wrong.place[1]}" in str(report)
    assert "taken by TestsPipeline" in str(report)
    assert f"replay it: play {report.seed} again" in str(report)


class Checked(Calm):
    def check(self) -> None:
        raise AssertionError("the sum is wrong")


class Watched(Calm):
    """What must always be true is not, once something is done."""

    def always(self) -> None:
        assert not self.world.file.execute(
            "SELECT 1 FROM tasks WHERE status = 'done'"
        ).fetchall(), "it is done"


class Served(Calm):
    def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return [self.notice]

    async def notice(self) -> None:
        raise AssertionError("seen from outside")


class Stolen(Calm):
    def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return [self.steal]

    async def steal(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0.05)
            async with self.world.session_factory.begin() as session:
                held = Task.lock_token.is_not(None), Task.lock_owner != "thief"
                values = {"lock_token": type(self).token(), "lock_owner": "thief"}
                await session.execute(update(Task).where(*held).values(values))

    @staticmethod
    def token() -> Any:
        import uuid  # noqa: PLC0415 - drawn from the number of the run

        return uuid.uuid4()


@pytest.mark.parametrize(
    ("scenario", "told"),
    [
        (Checked, "the check fails: the sum is wrong"),
        (Watched, "what must always be true is not: it is done"),
        (Served, "a service says: seen from outside"),
        (Stolen, "A2: the lease of TaskPipeline was taken"),
    ],
)
def test_what_is_wrong_fails_the_run(scenario: type[Scenario], told: str) -> None:
    """A simulation would look on."""
    report = first_failure(scenario)
    with pytest.raises(PromiseBrokenError, match=told.split(":", 1)[0]) as failed:
        report.check()
    assert told in str(failed.value)


def test_a_scenario_is_played_by_its_number() -> None:
    """The shortest way to play one run would not be there."""
    report = simulate(Tasks, seed=4)
    assert report.is_good
    assert report.entries
    with pytest.raises(PromiseBrokenError, match="replay it: simulate\\(Checked, seed=4\\)"):
        simulate(Checked, seed=4)


def test_every_fault_happens() -> None:
    """A kind of fault would be in the list and never come."""
    signs = {
        Fault.KILL: "is killed",
        Fault.FREEZE: "goes on",
        Fault.OUTAGE: "nobody reaches the database",
        Fault.CUT: "does not reach the database",
        Fault.SLOW: "each way to the database takes",
        Fault.STATEMENT: "will be refused",
        Fault.COMMIT: "will lose its connection at a COMMIT",
        Fault.HINTS: "of all hints get lost",
        Fault.EARLY_HINT: "everybody is hinted for nothing",
        Fault.SHUT_DOWN: "is shut down",
        Fault.CLOCK: "is now wrong by",
    }
    assert signs.keys() == set(Fault) - ALL_ALONG
    left = set(signs)
    with Simulation(Tasks) as simulation:
        for report in simulation.run_all(range(1, 26)):
            told = "\n".join(map(str, report.entries))
            left = {fault for fault in left if signs[fault] not in told}
            if not left:
                return
    raise AssertionError(left)


class ListeningPipeline(TaskPipeline):
    """Notes who listens to the hints of its process."""

    async def process(self, item: PipelineItem[Task]) -> Outcome:
        process = self.world.process
        assert process is not None
        self.world.note(
            f"{process.name} has {len(pipeline_hinter._wakes.get('Task', ()))} listener"
        )
        return await super().process(item)


class Listening(Calm):
    replicas_num = 3

    def pipelines(self) -> Sequence[TaskPipeline]:
        return [ListeningPipeline(self.world, self.done)]


def test_listeners_of_one_replica_are_not_anothers() -> None:
    """A hint to one replica would wake all of them, as no hint does between processes."""
    with Simulation(Listening) as simulation:
        told = "\n".join(
            str(entry) for seed in range(1, 4) for entry in simulation.run(seed).check().entries
        )
    assert "replica 1 has 1 listener" in told
    assert "replica 2 has 1 listener" in told
    assert not re.search("has (?!1 )\\d+ listener", told)


def test_wall_clocks_are_wrong_and_the_database_is_not() -> None:
    """Code that trusts a host's clock would look right."""
    times: list[timedelta] = []

    class Clocks(Tasks):
        faults = (Fault.CLOCK,)

        def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
            return [self.look]

        async def look(self) -> None:
            for _ in range(30):
                await asyncio.sleep(0.5)
                times.append(self.world.utc_now() - self.world.clock.now)

    with Simulation(Clocks) as simulation:
        for seed in range(1, 4):
            simulation.run(seed).check()
    assert len(set(times)) > 1
    assert max(map(abs, times)) <= timedelta(hours=1)


@pytest.mark.parametrize(("scenario", "code"), [(Calm, 0), (Checked, 1)])
def test_the_command_tells_rate_and_failures(
    scenario: type[Scenario], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """A night of runs would end without a verdict."""
    with Simulation(scenario, replay="again --seed {seed}") as simulation:
        reports = simulation.run_all(range(7, 10))
        assert tell(reports, total=3, first=False, story=False) == code
    told = capsys.readouterr().out
    assert "3 runs in" in told
    assert ("0 failed" in told) is (code == 0)
    assert ("replay it: again --seed 8" in told) is (code == 1)


class Held(Calm):
    """Somebody keeps the file locked when all is over."""

    def check(self) -> None:
        """Count the rows of a copy, before and after one more is written there."""
        holder = sqlite3.connect(self.world.file.execute("PRAGMA database_list").fetchone()[2])
        holder.execute("BEGIN IMMEDIATE")
        with self.world.copying() as connection:
            before = len(connection.execute(select(Task.id)).all())
            connection.execute(insert(Task).values(status="todo"))
            assert len(connection.execute(select(Task.id)).all()) == before + 1 > 1
        holder.close()
        assert len(self.world.read(Task)) == before


def test_a_check_writes_into_a_copy_though_the_file_is_locked() -> None:
    """Where a process is left in the middle of a transaction, the check would fail, and hide what
    is wrong.
    """
    simulate(Held, seed=1)


def test_only_processes_have_a_line() -> None:
    """A check that writes would write by the line of nobody."""

    class Writes(Calm):
        def check(self) -> None:
            with pytest.raises(RuntimeError, match=r"read\(\) reads from outside"):
                _ = self.world.session_factory

    simulate(Writes, seed=1)
