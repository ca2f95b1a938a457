"""Seeds of whole managers with everything going wrong; each must keep every promise and
settle.

``ROWLOCK_SIMULATION_SEEDS`` says how many (by default eighteen); ``python tests/simulation``
plays any number of them.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
from collections.abc import Iterator

import pytest

from ..simulator.simulation import Simulation
from .book import Book
from .crowd import Crowd
from .family import Family
from .orders import Orders
from .services import Services
from .steered import Steered
from .tables import create_tables, orphans
from .verdict import judge_writes, noted

SEEDS = int(os.environ.get("ROWLOCK_SIMULATION_SEEDS", "18"))
OF_ORDERS = OF_FAMILY = SEEDS * 2 // 3
OF_CROWD = max(1, SEEDS // 20)
OF_STEERED = SEEDS // 5
PER_TEST = 5
COMMAND = "python tests/simulation --of {} --seed {{seed}} --seeds 1 --story"


def broken(scenario: type[Orders | Family | Crowd | Steered], first: int, last: int) -> list[str]:
    command = COMMAND.format(scenario.__name__.lower())
    with Simulation(scenario, replay=command) as simulation:
        return [
            str(report)
            for report in simulation.run_all(range(first, last + 1))
            if not report.is_good
        ]


@pytest.mark.parametrize("first", range(1, OF_ORDERS + 1, PER_TEST))
def test_orders(first: int) -> None:
    """Some fault at some moment would lose an order, do a step twice under one token, or leave
    it leased.
    """
    failures = broken(Orders, first, min(first + PER_TEST - 1, OF_ORDERS))
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


@pytest.fixture
def file() -> Iterator[sqlite3.Connection]:
    """A database whose rows a test spoils by hand."""
    with sqlite3.connect(":memory:", isolation_level=None) as file:
        create_tables(file)
        insert = (
            "INSERT INTO {} ({}, status, wanted, seen, touched, held)"
            " VALUES ({}, 'done', 0, 0, 0, 0)"
        )
        file.execute(insert.format("fleets", "id, due_at, attempts", "1, '2031-01-01', 0"))
        file.execute(insert.format("instances", "id, fleet_id", "1, 1"))
        yield file


def verdict(file: sqlite3.Connection) -> list[str]:
    book = Book()
    book.note = lambda text: None  # type: ignore[method-assign]  # there is no loop whose time could be noted
    judge_writes(book, noted(file), Services(book))
    return book.wrongs


@pytest.mark.parametrize("spoilt", ["touched_by = 'x'", "touched = 1", "held = 1", "wanted = 1"])
def test_the_judge_sees_what_does_not_agree(file: sqlite3.Connection, spoilt: str) -> None:
    """A run would pass with half a result, or without what a service wrote."""
    assert verdict(file) == []
    file.execute(f"UPDATE instances SET {spoilt}")
    assert verdict(file) != []


def test_the_judge_sees_orphans(file: sqlite3.Connection) -> None:
    """A run would pass in which a related row outlived its main row."""
    lease = "lock_token = ?, lock_owner = 'FleetPipeline', lock_expires_at = '2999-01-01'"
    token, thief = (uuid.UUID(int=number).hex for number in (1, 2))
    for table in ("fleets", "instances"):
        file.execute(f"UPDATE {table} SET {lease}", (token,))
    assert orphans(file) == []
    file.execute("UPDATE instances SET lock_token = ?", (thief,))
    assert orphans(file) == [("instances", 1, "FleetPipeline")]
