"""What a run that fails says, and what is refused before it begins."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from rowlock import Outcome, PipelineItem

from . import run
from .command import tell
from .faults.fault_kinds import Fault
from .scenario import Scenario
from .simulation import LINES_MAX, PromiseBrokenError, Simulation, SimulationReport, simulate
from .small_host import Task, TaskPipeline, Tasks
from .trace import Entry, Wrong


class Calm(Tasks):
    """Nothing goes wrong."""

    faults = ()


class Silent(Calm):
    """Its check fails and does not say why."""

    def check(self) -> None:
        """Fail."""
        raise AssertionError


class Mistaken(Calm):
    """Its check has a mistake."""

    def check(self) -> None:
        """Look for what is not there."""
        assert {}["no such disk"]


class MistakenAlways(Calm):
    """What must always be true has a mistake."""

    def always(self) -> None:
        """Look for what is not there."""
        assert {}["no such disk"]


class SilentService(Calm):
    """A service fails and does not say why."""

    def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """One that fails."""
        return [self.fail]

    async def fail(self) -> None:
        """Fail."""
        raise AssertionError


@pytest.mark.parametrize(
    ("scenario", "text"),
    [
        (Silent, "the check fails: AssertionError, test_telling.py, line "),
        (Silent, ": raise AssertionError"),
        (Mistaken, "the check fails: KeyError: 'no such disk', test_telling.py, line "),
        (
            MistakenAlways,
            "what must always be true is not: KeyError: 'no such disk', test_telling.py, line ",
        ),
        (SilentService, "a service says: AssertionError, test_telling.py, line "),
    ],
)
def test_whoever_says_nothing_is_found_by_the_line(scenario: type[Scenario], text: str) -> None:
    """A plain `assert` outside of a test would fail a run without a word."""
    with Simulation(scenario) as simulation:
        assert text in str(simulation.run(1))


class CarelessPipeline(TaskPipeline):
    """Starts a task that dies, and never asks for it."""

    async def process(self, item: PipelineItem[Task]) -> Outcome:
        """Let something die."""
        task = asyncio.create_task(self.die(), name="a task of the host")
        await asyncio.wait([task])
        return await super().process(item)

    async def die(self) -> None:
        """Die."""
        raise RuntimeError("nobody asks")


class Careless(Calm):
    """Its pipeline does not ask."""

    def pipelines(self) -> Sequence[TaskPipeline]:
        """One."""
        return [CarelessPipeline(self.world, self.done)]


TOLD = (
    "replica 1: the task a task of the host died, and nobody asked why: RuntimeError: nobody asks,"
    " test_telling.py"
)


def test_a_task_that_dies_unasked_is_told() -> None:
    """A host would not learn of a task that it had lost."""
    report = simulate(Careless, seed=1)
    assert TOLD in "\n".join(map(str, report.entries))


def test_a_task_of_the_library_that_dies_unasked_fails_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop of the library would die silently (B3)."""
    monkeypatch.setattr(run, "OURS", Path(__file__).parent)
    with Simulation(Careless) as simulation:
        assert f"B3: {TOLD}" in str(simulation.run(1))


class Told(Calm):
    """Its own column is watched."""

    watched = {Task: ("status",)}  # noqa: RUF012 - as a host writes it


class Overwriting(Told):
    """Its pipeline writes what only services write."""

    services_own = ("status",)


def test_watched_columns_are_told_and_judged() -> None:
    """The story of a row would leave out what was written, and nobody could say whose a column
    is.
    """
    with Simulation(Told) as simulation:
        told = "\n".join(map(str, simulation.run(1).check().entries))
    assert "status 'todo' -> 'done'" in told
    with Simulation(Overwriting) as simulation:
        assert "A6: an outcome wrote status, which is the services' own" in str(simulation.run(1))


async def _is_awaited(_scenario: Scenario) -> None:
    """What nobody awaits."""


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        ({"faults": ("kill",)}, r"faults: 'kill' is no Fault; write Fault.KILL"),
        ({"watched": {int: ("status",)}}, r"watched: no pipeline leases <class 'int'>"),
        ({"services_own": ("status",)}, r"services_own: 'status' is not watched"),
        ({"faults": Fault.KILL}, r"faults is a list, such as \[Fault.KILL\]"),
        ({"watched": {Task: "status"}}, r"the columns of Task are a list: \['status'\]"),
        ({"watched": {Task: ["colour"]}}, r"Task has no column 'colour'"),
        ({"settle_within": 5}, r"settle_within is a timedelta or None, not 5"),
        ({"replicas_num": 0}, r"replicas_num is a whole number from 1 on, not 0"),
        ({"check": _is_awaited}, r"check is a plain `def`"),
        ({"always": _is_awaited}, r"always is a plain `def`"),
    ],
)
def test_what_cannot_be_chosen_is_refused_at_once(choices: dict[str, Any], text: str) -> None:
    """A slip of the pen would look like a broken promise."""
    with pytest.raises(TypeError, match=text):
        Simulation(type("Slip", (Calm,), choices))
    Simulation(type("Right", (Calm,), {"faults": (Fault.KILL,)})).__exit__(None, None, None)


def _exit(_scenario: Scenario) -> None:
    sys.exit("no")


def _fail(_scenario: Scenario) -> None:
    pytest.fail("as pytest does it")


@pytest.mark.parametrize(
    ("end", "says"), [(_exit, "SystemExit: no"), (_fail, "Failed: as pytest does it")]
)
def test_a_check_that_ends_the_test_is_a_failure_with_a_seed(end: Any, says: str) -> None:
    """A failure would come without its story, and without a way to play it again."""
    for method in ("check", "always"):
        with pytest.raises(PromiseBrokenError, match=says):
            simulate(type("Ending", (Calm,), {method: end}), seed=1)


@pytest.mark.parametrize(
    "make",
    [lambda: _is_awaited(Calm), lambda: 7, lambda: print],
    ids=["coroutine", "number", "def"],
)
def test_a_service_that_is_none_is_refused(make: Callable[[], Any]) -> None:
    """What nobody runs would pass."""
    scenario = type("Unserved", (Calm,), {"services": lambda _self: [make()]})
    with pytest.raises(TypeError, match=r"services\(\) returns coroutine functions"):
        simulate(scenario, seed=1)


async def _slips() -> None:
    raise TypeError("no such keyword")


def test_a_slip_of_a_service_is_a_failure() -> None:
    """A service that never does what it should would pass, since the database may fail it, too."""
    with pytest.raises(
        PromiseBrokenError, match="a service has a slip: TypeError: no such keyword"
    ):
        simulate(type("Slipping", (Calm,), {"services": lambda _self: [_slips]}), seed=1)


async def test_a_running_loop_is_told_what_to_do() -> None:
    """The likeliest first mistake, an `async def` test, would end in warnings about coroutines."""
    with pytest.raises(RuntimeError, match="call it from a plain `def` test"):
        simulate(Calm, seed=1)


def test_a_report_is_bounded_and_readable() -> None:
    """A failure would fill the screen, and its lines be those of Python."""
    place = ("tasks", "7")
    entries = [
        Entry(0.5, "replica 1", f"line {number} of it", place) for number in range(LINES_MAX + 5)
    ]
    told = str(
        SimulationReport(3, [Wrong("it is wrong", place)], entries, 1.0, "again")
    ).splitlines()
    assert told[1] == "  tasks 7: it is wrong"
    assert "line 4 of it" not in "\n".join(told)
    assert "  ... 5 lines before" in "\n".join(told)
    assert told[-1].endswith(f"line {LINES_MAX + 4} of it")


def test_the_story_of_a_failure_has_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Who asks for everything would be given the story of one row."""
    with Simulation(Silent) as simulation:
        assert tell(simulation.run_all([1]), total=1, first=False, story=True) == 1
    told = capsys.readouterr().out
    assert "all has settled" in told.partition("broke a promise")[0]


class Resetting(Calm):
    """A row is given the name of its pipeline."""

    def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        """One that does so."""
        return [self.keep]

    async def keep(self) -> None:
        """Free whatever is leased, and leave the name."""
        await asyncio.sleep(0.05)
        freed = {"lock_token": None, "lock_expires_at": None}
        async with self.world.session_factory.begin() as session:
            await session.execute(update(Task).where(Task.lock_token.is_not(None)).values(freed))


def test_a_row_that_is_kept_for_somebody_says_so() -> None:
    """That a row waits for its pipeline would be told by silence."""
    with Simulation(Resetting) as simulation:
        told = "\n".join(
            str(entry) for seed in range(1, 6) for entry in simulation.run(seed).entries
        )
    assert ", kept for TaskPipeline" in told
