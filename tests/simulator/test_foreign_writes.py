"""What one process does to a lease of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from rowlock import database_now
from rowlock.rows.database_time import database_time_after

from .judge.foreign_writes import by_another
from .judge.stories import LEASE_S, Story
from .simulation import Simulation
from .small_host import Task, Tasks


def told(story: Story, *, who: str = "replica 2", holder: str | None = "replica 1") -> str:
    return "; ".join(by_another(story.changes[-1], holder=holder, who=who))


@pytest.fixture
def story() -> Story:
    story = Story()
    story.add()
    story.claim()
    return story


@pytest.mark.parametrize(
    ("wait_s", "text"),
    [(LEASE_S - 1, "A2: replica 2 ended the lease of replica 1, 1.000 s"), (LEASE_S, "")],
)
@pytest.mark.parametrize("end", ["free", "claim"])
def test_a_lease_is_its_takers_to_its_end(story: Story, end: str, wait_s: float, text: str) -> None:
    """A row that a stranger frees would be taken by the next while its holder is at work."""
    story.wait(wait_s)
    getattr(story, end)()
    assert text in told(story)
    assert bool(told(story)) is bool(text)
    assert told(story, who="replica 1") == ""
    assert told(story, holder=None) == ""


def test_a_lease_is_its_takers_to_prolong(story: Story) -> None:
    """A dead holder's lease could be kept alive by somebody else."""
    story.wait(1)
    story.renew()
    assert told(story) == "A3: replica 2 changed the end of the lease of replica 1"
    assert told(story, who="replica 1") == ""


@pytest.mark.parametrize("wait_s", [1, LEASE_S + 1])
def test_an_outcome_is_its_takers_to_write(story: Story, wait_s: float) -> None:
    """An outcome of the last holder would end the lease of its heir, and look like the heir's
    own.
    """
    story.wait(wait_s)
    story.apply()
    assert told(story) == "A1: replica 2 wrote an outcome under the lease of replica 1"
    assert told(story, who="replica 1") == ""


def test_a_row_may_be_deleted_or_written_by_anybody(story: Story) -> None:
    """A service that writes its own columns, or deletes a row, would be blamed."""
    story.change(values={"wanted": 1})
    assert told(story) == ""
    story.delete()
    assert told(story) == ""


CLEARED = {"lock_token": None, "lock_owner": None, "lock_expires_at": None}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (CLEARED, "A2: meddle 1 ended the lease of replica"),
        (
            {"lock_expires_at": database_time_after(timedelta(seconds=5))},
            "A3: meddle 1 changed the end of the lease of replica",
        ),
        (
            {**CLEARED, "last_processed_at": database_now()},
            "A1: meddle 1 wrote an outcome under the lease of replica",
        ),
    ],
)
def test_a_simulation_knows_whose_hand_it_was(values: dict[str, Any], text: str) -> None:
    """What the columns do not tell, and the simulator knows, would pass."""

    class Meddled(Tasks):
        faults = ()

        def services(self) -> Sequence[Callable[[], Coroutine[Any, Any, None]]]:
            return [self.meddle]

        async def meddle(self) -> None:
            for _ in range(20):
                await asyncio.sleep(0.05)
                async with self.world.session_factory.begin() as session:
                    await session.execute(
                        update(Task).where(Task.lock_token.is_not(None)).values(values)
                    )

    with Simulation(Meddled) as simulation:
        reports = simulation.run_all(range(1, 8))
        assert any(text in str(wrong) for report in reports for wrong in report.wrongs)
