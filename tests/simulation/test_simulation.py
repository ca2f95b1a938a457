"""Seeds of whole managers with everything going wrong; each must keep every promise and
settle.

``ROWLOCK_SIMULATION_SEEDS`` says how many (by default sixty); ``python tests/simulation``
plays any number of them.
"""

from __future__ import annotations

import os

import pytest

from ..simulator.simulation import Simulation
from .crowd import Crowd
from .family import Family
from .orders import Orders
from .steered import Steered

SEEDS = int(os.environ.get("ROWLOCK_SIMULATION_SEEDS", "60"))
OF_FAMILY = SEEDS // 3
OF_CROWD = SEEDS // 20
OF_STEERED = SEEDS // 5
PER_TEST = 20
COMMAND = "python tests/simulation --of {} --seed {{seed}} --seeds 1 --story"


def broken(scenario: type[Orders | Family | Crowd | Steered], first: int, last: int) -> list[str]:
    command = COMMAND.format(scenario.__name__.lower())
    with Simulation(scenario, replay=command) as simulation:
        return [
            str(report)
            for report in simulation.run_all(range(first, last + 1))
            if not report.is_good
        ]


@pytest.mark.parametrize("first", range(1, SEEDS - OF_FAMILY + 1, PER_TEST))
def test_orders(first: int) -> None:
    """Some fault at some moment would lose an order, do a step twice under one token, or leave
    it leased.
    """
    failures = broken(Orders, first, min(first + PER_TEST - 1, SEEDS - OF_FAMILY))
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("first", range(1, OF_FAMILY + 1, PER_TEST))
def test_family(first: int) -> None:
    """Some fault at some moment would leave related rows locked, write half a result, or undo
    what a service did.
    """
    failures = broken(Family, first, min(first + PER_TEST - 1, OF_FAMILY))
    assert not failures, "\n\n".join(failures)


@pytest.mark.parametrize("first", range(1, OF_STEERED + 1, PER_TEST))
def test_steered(first: int) -> None:
    """Some fault at some moment would let a paused pipeline claim, or a row that a person has
    released or parked be lost or done twice.
    """
    failures = broken(Steered, first, min(first + PER_TEST - 1, OF_STEERED))
    assert not failures, "\n\n".join(failures)


def test_crowd() -> None:
    """Results that were computed would be lost, again and again, where a database is too far
    away to write all of them at once.
    """
    failures = broken(Crowd, 1, OF_CROWD)
    assert not failures, "\n\n".join(failures)
