"""Tests of how a PostgreSQL server from the wheel is prepared by many processes at once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from rowlock.testing import PostgresqlServer
from rowlock.testing.databases import creation_of, machine_lock, server_parent

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


def test_files_are_kept_in_memory_where_there_is_room(tmp_path: Path) -> None:
    """A small memory would be filled by a server, and a disk takes most of a test's time."""
    free = shutil.disk_usage(tmp_path).free
    assert server_parent(tmp_path, free_min=free // 2) == tmp_path
    for memory, least in ((tmp_path, 2 * free), (tmp_path / "none", 0)):
        assert not server_parent(memory, free_min=least).is_relative_to(tmp_path)


@pytest.mark.parametrize(
    ("fsync", "version", "by_files"),
    [("off", 150000, True), ("off", 140012, False), ("on", 180000, False)],
)
def test_files_are_copied_where_nobody_waits_for_the_disk(
    fsync: str, version: int, by_files: bool
) -> None:
    """A durable server would write 300 files to the disk for each test, and an older one would
    refuse the words.
    """
    assert ("FILE_COPY" in creation_of("it", fsync=fsync, version=version)) is by_files
