"""The whole demo as a user runs it: real files, real processes, real kills."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..lengths import at_length

FILES = at_length(400, 3000)
MANY_FILES = 2000
"""They take longer than it takes to interrupt a demo."""
ENDS_S_MAX = 300
LINES_MAX = ENDS_S_MAX + 30
"""One a second, and the verdict: a log of a build is not flooded."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with many small files, one of them empty and one without a last newline."""
    place = tmp_path / "folder"
    place.mkdir()
    for number in range(max(FILES, MANY_FILES)):
        (place / f"{number}.txt").write_text("some words\n" * (number % 500) + "end" * (number % 2))
    return place


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    place = tmp_path / "scratch"
    place.mkdir()
    return place


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Whoever runs the tests in a shell's background ignores Ctrl-C, and so would all that he
    starts.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def started(
    folder: Path, scratch: Path, interruptible: None, request: pytest.FixtureRequest
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "rowlock", "demo", str(folder), "--rows", str(request.param)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"TMPDIR": str(scratch)},
    )
    with process:
        yield process
        process.kill()


@pytest.mark.parametrize("started", [FILES], indirect=True)
def test_a_replica_is_killed_and_nothing_is_lost(
    started: subprocess.Popen[str], scratch: Path
) -> None:
    """The first thing that a newcomer runs would not show what the library is for."""
    out, _ = started.communicate(timeout=ENDS_S_MAX)
    assert started.returncode == 0, out
    assert f"ok   files in the catalogue: {FILES:,}\n" in out
    assert "ok   replicas killed with -9: 1 of 3\n" in out
    assert re.search(r"ok   rows taken over when their leases had run out: [1-9]", out)
    assert len(re.findall(r"taken by\s+CatalogueFiles", out)) >= 2, (
        f"the story of such a row, leased twice: {out}"
    )
    assert len(out.splitlines()) < LINES_MAX
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("started", [MANY_FILES], indirect=True)
def test_interrupted_demo_leaves_nothing_behind(
    started: subprocess.Popen[str], scratch: Path
) -> None:
    """Ctrl-C, or a build that is stopped, would leave a folder on the disk, or processes."""
    assert started.stdout is not None
    assert any(" waiting  3 replicas" in line for line in iter(started.stdout.readline, ""))
    started.send_signal(signal.SIGTERM)  # which it takes for Ctrl-C
    out, _ = started.communicate(timeout=ENDS_S_MAX)
    assert started.returncode == 130, out
    assert list(scratch.iterdir()) == []
