"""What a run that fails says, and what is refused before it begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from rowlock import Outcome, PipelineItem

from . import run
from .scenario import Scenario
from .simulation import PromiseBrokenError, Simulation, simulate
from .small_host import Task, TaskPipeline, Tasks


class Calm(Tasks):
    faults = ()


class Silent(Calm):
    def check(self) -> None:
        raise AssertionError


class Mistaken(Calm):
    def check(self) -> None:
        assert {}["no such disk"]


class MistakenAlways(Calm):
    def always(self) -> None:
        assert {}["no such disk"]


class SilentService(Calm):
    def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
        return [self.fail]

    async def fail(self) -> None:
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
        task = asyncio.create_task(self.die(), name="a task of the host")
        await asyncio.wait([task])
        return await super().process(item)

    async def die(self) -> None:
        raise RuntimeError("nobody asks")


class Careless(Calm):
    def pipelines(self) -> Sequence[TaskPipeline]:
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
    watched = {Task: ("status",)}  # noqa: RUF012 - as a host writes it


class Overwriting(Told):
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


async def _slips() -> None:
    raise TypeError("no such keyword")


def test_a_slip_of_a_service_is_a_failure() -> None:
    """A service that never does what it should would pass, since the database may fail it, too."""
    with pytest.raises(
        PromiseBrokenError, match="a service has a slip: TypeError: no such keyword"
    ):
        simulate(type("Slipping", (Calm,), {"services": lambda _self: [_slips]}), seed=1)
