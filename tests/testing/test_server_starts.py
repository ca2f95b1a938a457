"""Tests of how a PostgreSQL server from the wheel is prepared by many processes at once."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rowlock.testing import PostgresqlServer
from rowlock.testing.databases.temporary import machine_lock

if TYPE_CHECKING:
    from pathlib import Path

ANOTHER_PROCESS = """
import sys
import fasteners

print(fasteners.InterProcessLock(sys.argv[1]).acquire(blocking=False))
"""


def _may_another_process_begin() -> bool:
    command = [sys.executable, "-c", ANOTHER_PROCESS, str(machine_lock())]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"


def test_one_process_at_a_time_adds_the_system_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a fresh machine, parallel workers would add the server's user at once: all but one
    fail.
    """
    answers = []

    def prepare(*_: object, **__: object) -> None:
        answers.append(_may_another_process_begin())
        raise ZeroDivisionError

    monkeypatch.setattr(PostgresqlServer, "_server", prepare)
    with pytest.raises(ZeroDivisionError):
        PostgresqlServer(tmp_path).start()
    assert answers == [False]
    assert _may_another_process_begin()
