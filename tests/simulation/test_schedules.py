"""Thousands of random schedules of parents, children and services; each must settle without a leak.

``ROWLOCK_SIMULATION_SCHEDULES`` says how many (by default forty); ``python
tests/simulation`` runs any number of them.
"""

from __future__ import annotations

import os
import re
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from .book import Book
from .play import Played, ground, play, play_one
from .schedule import Ground, Schedule
from .services import Services
from .tables import orphans
from .verdict import judge, unsettled

SCHEDULES = int(os.environ.get("ROWLOCK_SIMULATION_SCHEDULES", "40"))
PER_TEST = 20
SHOWN_MAX = 3
"""Most schedules of a test that are told when they fail."""
A_MARK = re.compile(r"\([0-9a-f]{8}\)")


def broken(played: Iterator[Played]) -> list[str]:
    return [str(one) for one in played if one.wrongs]


@pytest.mark.parametrize("first", range(1, SCHEDULES + 1, PER_TEST))
def test_random_schedules(first: int, tmp_path: Path) -> None:
    """Some order of events would leave a row locked, let two work on it, or write half a result."""
    failures = broken(play(range(first, min(first + PER_TEST, SCHEDULES + 1)), tmp_path))
    assert not failures, "\n\n".join(failures[:SHOWN_MAX])


def test_a_number_replays_its_schedule(tmp_path: Path) -> None:
    """A schedule that failed once could not be looked at again."""
    (tmp_path / "alone").mkdir()
    third = list(play((301, 302, 304), tmp_path))[-1]
    alone = next(iter(play((304,), tmp_path / "alone")))
    assert [A_MARK.sub("", step) for step in third.steps] == [
        A_MARK.sub("", step) for step in alone.steps
    ]
    assert len(alone.steps) > 5


def test_a_failure_says_how_to_replay_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever meets a failure would not know where to begin."""

    async def fail(self: Schedule) -> None:
        self.book.note("a step")
        raise RuntimeError("planned")

    monkeypatch.setattr(Schedule, "play", fail)
    with ground(tmp_path) as place:
        told = str(play_one(7, place))
    assert "python tests/simulation --of steps --seed 7 --seeds 1 --story" in told
    assert "a step" in told
    assert "planned" in told


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Ground]:
    with ground(tmp_path) as ready:
        ready.file.execute(
            "INSERT INTO fleets (id, status, wanted, seen, touched, held, due_at, attempts)"
            " VALUES (1, 'done', 0, 0, 0, 0, '2031-01-01', 0)"
        )
        ready.file.execute(
            "INSERT INTO instances (id, fleet_id, status, wanted, seen, touched, held)"
            " VALUES (1, 1, 'done', 0, 0, 0, 0)"
        )
        yield ready


def verdict(file: sqlite3.Connection) -> list[str]:
    book = Book()
    book.note = lambda text: None  # type: ignore[method-assign]  # there is no loop whose time could be noted
    judge(book, file, Services(book))
    return book.wrongs


@pytest.mark.parametrize(
    "spoilt",
    [
        "lock_token = 'x'",
        "lock_owner = 'x'",
        "lock_expires_at = 'x'",
        "status = 'todo'",
        "seen = -1",
    ],
)
def test_the_judge_sees_what_has_not_settled(place: Ground, spoilt: str) -> None:
    """A schedule would pass with a lock column that is set."""
    assert unsettled(place.file) == []
    place.file.execute(f"UPDATE instances SET {spoilt}")
    assert len(unsettled(place.file)) == 1


@pytest.mark.parametrize("spoilt", ["touched_by = 'x'", "touched = 1", "held = 1", "wanted = 1"])
def test_the_judge_sees_what_does_not_agree(place: Ground, spoilt: str) -> None:
    """A schedule would pass with half a result, or without what a service wrote."""
    assert verdict(place.file) == []
    place.file.execute(f"UPDATE instances SET {spoilt}")
    assert verdict(place.file) != []


def test_the_judge_sees_orphans_and_thieves(place: Ground) -> None:
    """A schedule would pass in which a live lease was stolen, or a related row outlived its main
    row.
    """
    lease = "lock_token = ?, lock_owner = 'FleetPipeline', lock_expires_at = '2999-01-01'"
    token, thief = (uuid.UUID(int=number).hex for number in (1, 2))
    for table in ("fleets", "instances"):
        place.file.execute(f"UPDATE {table} SET {lease}", (token,))
    assert orphans(place.file) == []
    assert not any(wrong.startswith(("A2", "A5")) for wrong in verdict(place.file))
    place.file.execute("UPDATE instances SET lock_token = ?", (thief,))
    assert orphans(place.file) == [("instances", 1, "FleetPipeline")]
    assert any(wrong.startswith("A2 broken: instances 1") for wrong in verdict(place.file))
