"""The nursery of replicas, one for each test process; and a database with tables, historian and
a clock that replicas follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .survivors import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Makes replicas that are processes of their own."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def clock_file(tmp_path: Path) -> Path:
    """Where replicas on SQLite read the time."""
    return tmp_path / "clock"
