"""One number is one history: to the last byte, tokens among it, in any process."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import uuid
from pathlib import Path

from rowlock import clock

from ..lengths import at_length
from .simulation import Simulation
from .small_host import Tasks

SEEDS = at_length(("3", "8"), ("3", "8", "21"))
ROOT = Path(__file__).parents[2]


def told_by_another_process(hash_seed: str) -> str:
    """Return what a process with other hashes says of the same runs."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "tests.simulator.small_host", *SEEDS]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=500
    ).stdout


def test_another_process_tells_the_same() -> None:
    """A run that failed in CI could not be looked at on a desk."""
    told = told_by_another_process("1")
    assert "taken by TaskPipeline (" in told
    with Simulation(Tasks) as simulation:
        here = [simulation.run(int(seed)).fingerprint for seed in SEEDS]
    assert [line for line in told.splitlines() if len(line) == 64 and " " not in line] == here


def test_what_ran_before_changes_nothing() -> None:
    """A run that failed as one of thousands would pass alone."""
    with Simulation(Tasks) as simulation:
        among_others = [simulation.run(seed).fingerprint for seed in (5, 6, 7, 5)]
    with Simulation(Tasks) as simulation:
        alone = simulation.run(7).fingerprint
    assert among_others[0] == among_others[3]
    assert among_others[2] == alone
    assert len(set(among_others)) == 3


def test_chance_and_time_are_given_back() -> None:
    """The tests that follow would draw the same keys again and again, or live in another year."""
    random.seed(7)
    expected, year = random.random(), clock.utc_now().year
    random.seed(7)
    with Simulation(Tasks) as simulation:
        simulation.run(1)
    assert random.random() == expected
    assert uuid.uuid4() != uuid.uuid4()
    assert clock.utc_now().year == year
