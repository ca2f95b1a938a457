"""How long rows may wait once nothing goes wrong any more, and how soon hints are followed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from rowlock import Apply, Fetcher, Outcome, PipelineItem

from .judge.stories import START, Story
from .liveness import RESETS_MAX, Liveness
from .scenario import Scenario, World
from .simulation import Simulation
from .small_host import Task, TaskPipeline, Tasks

PLACE = ("jobs", "1")


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(create_engine("sqlite://")) as session:
        yield session


@pytest.fixture
def story() -> Story:
    story = Story()
    story.add()
    return story


class Quick(TaskPipeline):
    min_processing_interval = 1
    orphaned_after = 10
    fetch_delays = (1,)
    database_timeout = 3
    process_timeout = 4
    cancel_grace = 1
    workers_num = 1
    queue_upper_limit_factor = 2


def told(
    story: Story,
    session: Session,
    *,
    rounds_max: int = 5,
    served: bool = False,
    seconds: float = 0.0,
) -> str:
    """Return what is said of the row, some time after the last change."""
    pipeline = Quick(World(0, None, None), [])  # type: ignore[arg-type]
    changes = [*story.changes]
    patience = Liveness([pipeline], changes, since=START, rounds_max=rounds_max)
    now = story.now + timedelta(seconds=seconds)
    late = patience.look(session, now, unsettled=[PLACE], hungry=(), served=served)
    return "; ".join(text for _, text in late)


def test_a_row_that_nothing_happens_to_is_named(story: Story, session: Session) -> None:
    """A row that everybody has forgotten would be waited for by the hour."""
    bound_s = 1 + 2 * 1.2 * 10 + 1.2 + 3 + 1
    assert told(story, session, seconds=bound_s) == ""
    assert "nothing has happened to it for 30.3" in told(story, session, seconds=bound_s + 0.1)
    assert told(story, session, seconds=bound_s + 0.1, served=True) == ""


def test_a_row_may_rest_until_it_is_due(story: Story, session: Session) -> None:
    """A row that was told to rest for an hour would be called forgotten."""
    story.change(due_at=START + timedelta(hours=1))
    assert told(story, session, seconds=3600) == ""
    story.change(due_at=START)
    assert "nothing has happened" in told(story, session, seconds=3600)


def test_a_row_that_one_attempt_keeps_is_named(story: Story, session: Session) -> None:
    """An attempt that never ends, and whose lease is renewed all the time, would be waited for
    by the hour.
    """
    story.claim(owner="Quick")
    bound_s = (1 + 2) * (4 + 1) + 6 + 1.2 + 3 + 1
    for _ in range(2):
        story.wait(13)
        story.renew()
    assert told(story, session, seconds=bound_s - 26) == ""
    assert "one attempt of Quick has held it for 26.3" in told(
        story, session, seconds=bound_s - 26 + 0.1
    )


def test_a_row_that_goes_round_for_ever_is_named(story: Story, session: Session) -> None:
    """A run would go on for hours where a pipeline never comes to an end."""
    for _ in range(3):
        story.claim(owner="Quick")
        story.apply()
    assert told(story, session, rounds_max=3) == ""
    assert "was taken 3 times since the faults were over" in told(story, session, rounds_max=2)
    assert told(story, session, rounds_max=0)
    story.delete()
    assert told(story, session, rounds_max=0) == ""


def test_a_row_that_steps_back_for_others_makes_no_rounds(story: Story, session: Session) -> None:
    """A host whose related rows are busy for a while would be called broken."""
    for _ in range(RESETS_MAX):
        story.claim(owner="Quick")
        story.apply(lock_owner="Quick")
    assert told(story, session, rounds_max=1) == ""
    story.claim(owner="Quick")
    story.apply(lock_owner="Quick")
    assert "stepped back 5001 times" in told(story, session, rounds_max=1)


class Blind(Fetcher[Any]):
    async def fetch_once(self, limit: int) -> int:
        return 0


class Deaf(Fetcher[Any]):
    def hint(self) -> None:
        """Go on resting."""


class BlindPipeline(TaskPipeline):
    fetcher_class = Blind


class DeafPipeline(TaskPipeline):
    fetcher_class = Deaf


class RestlessPipeline(TaskPipeline):
    """Writes every row as it was, for ever."""

    async def process(self, item: PipelineItem[Task]) -> Outcome:
        return Apply({"status": "todo"}, after=timedelta(0))


def scenario_of(kind: type[TaskPipeline]) -> type[Scenario]:
    """Return a scenario in which nothing goes wrong but what the pipeline does."""

    class Spoilt(Tasks):
        faults = ()
        rounds_max = 10

        def pipelines(self) -> Sequence[TaskPipeline]:
            return [kind(self.world, self.done)]

        def check(self) -> None:
            """Nothing."""

    return Spoilt


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (BlindPipeline, "B1: BlindPipeline had room for it, and has not taken it for"),
        (DeafPipeline, "B6: DeafPipeline of replica 1 was hinted, and has not looked for 1 s"),
        (RestlessPipeline, "times since the faults were over, and still wants something"),
    ],
)
def test_who_waits_for_too_long_is_told_soon(kind: type[TaskPipeline], text: str) -> None:
    """A row that nobody takes, a hint that nobody hears, and a row that goes round for ever
    would cost minutes, or pass.
    """
    with Simulation(scenario_of(kind)) as simulation:
        failed = next(one for one in simulation.run_all(range(1, 6)) if not one.is_good)
    assert any(text in str(wrong) for wrong in failed.wrongs)
    assert failed.entries[-1].at_s < 1000


def test_an_endless_row_may_be_called_settled() -> None:
    """A pipeline whose rows are always ready could not be simulated."""

    class Settled(scenario_of(RestlessPipeline)):  # type: ignore[misc]
        def unsettled(self, pipeline: object) -> Any:
            return Task.last_processed_at.is_(None)

    with Simulation(Settled) as simulation:
        assert all(report.is_good for report in simulation.run_all(range(1, 3)))
